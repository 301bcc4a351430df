"""The door for `stream:{conversation}`: every record there is built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from magent2.bus.records import NewRecord, Record
from magent2.models.address import stream_topic
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import RunFields

CLOSING = ("output", "message")


def stream_record(event: BaseStreamEvent | Mapping[str, Any], fields: Mapping[str, Any] | None = None) -> NewRecord:
    """An event as a record. `fields` are v1.1 facts of the run; what the event says itself comes first.

    A token is a draft of its message; the output or message of that id closes it. An event that names no message is
    neither, and is kept.
    """
    return payload_record(event_payload(event) if fields is None else {**fields, **event_payload(event)})


def payload_record(payload: dict[str, Any]) -> NewRecord:
    """An event that is JSON already, and nobody else's."""
    topic = stream_topic(str(payload["conversation_id"]))
    message, kind = payload.get("message_id"), payload.get("event")
    if kind == "token":
        return NewRecord(topic, payload, draft=message)
    return NewRecord(topic, payload, closes=message if kind in CLOSING else None)


def event_payload(event: BaseStreamEvent | Mapping[str, Any]) -> dict[str, Any]:
    """An event as JSON, whichever way a runner gives it; a field that is not set is left out of v1.1 events."""
    if isinstance(event, dict):  # tokens are many, and come like this
        return dict(event)
    if isinstance(event, BaseStreamEvent):
        return event.model_dump(mode="json", exclude_none=isinstance(event, RunFields))
    return dict(event)


# --- The second rendering of a conversation's records: flat events, as a chat wants them. Pure.

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
KIND_MAX_CHARS = 64
UNNAMED = "record"  # a record that does not say what it is
REPLY_TO = "reply_to"
RUN_KIND = "run_kind"  # of events of runs that are no part of the talk: a tool run by hand, a decision who answers

# What has a field of its own, or says nothing to a reader; all else is data.
_LIFTED = frozenset(
    {"event", "id", "conversation_id", "created_at", "message_id", "index", "agent", "text", "reason", "seq"}
)


# Where an event's text and reason are, if not in fields of that name.
_TEXTS = {"tool_step": "result_summary", "error": "message"}
_REASONS = {"session": "status", "error": "code", "tool_step": "error"}
_LIFTED_FROM = {"tool_step": _LIFTED | {"result_summary", "error"}, "error": _LIFTED | {"message", "code"}}


class _Sort(NamedTuple):
    """What a record becomes."""

    type: str
    role: str | None = None
    final: bool | None = None


_SORTS = {
    "token": _Sort("token", ASSISTANT, False),
    "user_message": _Sort("message", USER, True),
    "message": _Sort("message", ASSISTANT, True),
    "output": _Sort("message", ASSISTANT, True),
}


def flat_event(session_id: str, record: Record) -> dict[str, Any] | None:
    """The event, or nothing for a record that was erased."""
    if record.erased:
        return None
    payload = record.payload
    sort = _sort_of(payload)
    return {
        "session_id": session_id,
        "seq": record.seq,
        "type": sort.type,
        "message_id": payload.get("message_id"),
        "token_seq": payload.get("index") if sort.type == "token" else None,
        "role": sort.role,
        "agent_id": _agent_of(payload),
        "text": _text_of(payload),
        "final": sort.final,
        "reason": _reason_of(payload),
        "data": _data_of(payload),
        "timestamp_ms": record.at_ms,
    }


def _sort_of(payload: Mapping[str, Any]) -> _Sort:
    kind = payload.get("event")
    if kind == "output" and payload.get(RUN_KIND):
        return _Sort("output", TOOL, True)
    if isinstance(kind, str) and kind in _SORTS:
        return _SORTS[kind]
    if kind == "tool_step":
        return _Sort("tool_call" if _is_call(payload) else "tool_result", TOOL)
    if kind == "run":
        return _Sort("run", None, payload.get("status") in ("finished", "failed", "stopped"))
    named = isinstance(kind, str) and 0 < len(kind) <= KIND_MAX_CHARS and kind.isprintable()
    return _Sort(str(kind) if named else UNNAMED)


def _is_call(payload: Mapping[str, Any]) -> bool:
    """Whether a step is the call; an event of v1 may leave its status out and only have a result."""
    status = payload.get("status")
    if status is None:
        return payload.get("result_summary") is None and payload.get("error") is None
    return bool(status == "start")


def _agent_of(payload: Mapping[str, Any]) -> str | None:
    """Who speaks or acts; of a handoff, who goes on."""
    agent = payload.get("target") if payload.get("event") == "handoff" else payload.get("agent")
    return agent if isinstance(agent, str) else None


def _text_of(payload: Mapping[str, Any]) -> str | None:
    text = payload.get(_TEXTS.get(str(payload.get("event")), "text"))
    return text if isinstance(text, str) else None


def _reason_of(payload: Mapping[str, Any]) -> str | None:
    """Why: of a handoff or a run as it says; of a change of the session what it was; of an error its code."""
    reason = payload.get(_REASONS.get(str(payload.get("event")), "reason"))
    return reason if isinstance(reason, str) else None


def _data_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What is left; of a change of the session, what has changed."""
    kind = payload.get("event")
    if kind == "session":
        data = payload.get("data")
        return dict(data) if isinstance(data, Mapping) else {}
    lifted = _LIFTED_FROM.get(str(kind), _LIFTED)
    return {name: value for name, value in payload.items() if name not in lifted and value is not None}
