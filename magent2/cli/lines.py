"""Events as lines that a person reads. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from magent2.cli.printing import printable, shortened
from magent2.client import ConversationEvent

ARGUMENTS_MAX_CHARS = 100
RESULT_MAX_CHARS = 200
DRAFTS = ("token",)  # the output contains them


def line_of(event: ConversationEvent) -> str:
    """`   7 12:04:01 general  hello`: number, time, who, what."""
    return f"{event.seq:>5} {clock_of(event.data)} {printable(what_of(event))}"


def clock_of(data: Mapping[str, Any]) -> str:
    return str(data.get("created_at") or "")[11:19].ljust(8)


def what_of(event: ConversationEvent) -> str:
    describe = _DESCRIPTIONS.get(event.kind)
    return f"{event.kind} {shortened(json.dumps(dict(event.data)), 200)}" if describe is None else describe(event.data)


def call_of(data: Mapping[str, Any]) -> str:
    """A tool step: what was called, or what came of it."""
    status, name = data.get("status"), data.get("name")
    if status == "start":
        return f"calls {name} {shortened(json.dumps(data.get('args') or {}), ARGUMENTS_MAX_CHARS)}"
    if status == "error":
        return f"{name} failed: {shortened(data.get('error'), RESULT_MAX_CHARS)}"
    return f"{name} → {shortened(data.get('result_summary'), RESULT_MAX_CHARS)}"


def _speaker(data: Mapping[str, Any]) -> str:
    return str(data.get("agent") or "agent")


def _text(data: Mapping[str, Any]) -> str:
    return f"{_speaker(data)}: {data.get('text') or ''}"


def _user_message(data: Mapping[str, Any]) -> str:
    return f"{data.get('sender')} → {data.get('recipient')}: {data.get('text') or ''}"


def _run(data: Mapping[str, Any]) -> str:
    reason = f" ({data['reason']})" if data.get("reason") else ""
    return f"{_speaker(data)} run {data.get('status')}{reason}"


def _handoff(data: Mapping[str, Any]) -> str:
    return f"{data.get('source') or 'nobody'} hands over to {data.get('target')}"


def _error(data: Mapping[str, Any]) -> str:
    retry = data.get("retry_in_s")
    return f"error {data.get('code')}: {data.get('message')}" + ("" if retry is None else f" (again in {retry:g} s)")


def _gap(data: Mapping[str, Any]) -> str:
    return f"gap: events up to {data.get('floor')} are gone"


_DESCRIPTIONS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "user_message": _user_message,
    "token": _text,
    "output": _text,
    "message": _text,
    "tool_step": lambda data: f"{_speaker(data)} {call_of(data)}",
    "run": _run,
    "handoff": _handoff,
    "session": lambda data: f"conversation {data.get('status')}",
    "error": _error,
    "gap": _gap,
    "end": lambda data: f"end: {data.get('reason')}",
}
