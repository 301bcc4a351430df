"""Folds of a session for its readers: what was said, and what it has used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magent2.bus.records import Record
from magent2.sessions.api_events import REPLY_TO, rendered
from magent2.sessions.history import History


def said(session_id: str, record: Record) -> dict[str, Any] | None:
    """The record as a line of the transcript, if it is one: something that a person or an agent has said."""
    event = rendered(session_id, record)
    if event is None or event["type"] != "message" or not event["text"]:
        return None
    names = ("seq", "message_id", "role", "agent_id", "text", "timestamp_ms")
    return {**{name: event[name] for name in names}, "reply_to": event["data"].get(REPLY_TO)}


def transcript_of(session_id: str, records: Iterable[Record]) -> list[dict[str, Any]]:
    lines = (said(session_id, record) for record in records)
    return [line for line in lines if line is not None]


def usage_of(history: History) -> dict[str, Any]:
    """What all runs that have ended have used: `{usage, runs, by_agent}`."""
    total: dict[str, Any] = {}
    by_agent: dict[str, dict[str, Any]] = {}
    runs = 0
    for run in history.runs.values():
        usage = run.end.get("usage") if run.end is not None else None
        runs += run.end is not None
        if isinstance(usage, Mapping):
            total = added(total, usage)
            by_agent[run.agent] = added(by_agent.get(run.agent, {}), usage)
    return {"usage": total, "runs": runs, "by_agent": by_agent}


def added(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers added up, also those inside; what is no number is left out."""
    summed = dict(total)
    for name, value in more.items():
        known = summed.get(name)
        if isinstance(value, Mapping):
            summed[name] = added(known if isinstance(known, Mapping) else {}, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            summed[name] = value + (known if isinstance(known, int | float) else 0)
    return summed
