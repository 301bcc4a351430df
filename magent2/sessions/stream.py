"""The topic `stream:{conversation}`: builds its records from events, and renders records as flat events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypedDict

from magent2.bus.records import NewRecord, Record
from magent2.models.address import stream_topic
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import RunFields
from magent2.models.json_types import JsonObject, storable

CLOSING = ("output", "message")
CLOSING_RUN = ("restarted", "stopped", "failed")  # statuses of a run after which its tokens so far are obsolete


def stream_record(
    event: BaseStreamEvent | Mapping[str, object], fields: Mapping[str, object] | None = None
) -> NewRecord:
    """An event as a record. `fields` are v1.1 fields of the run; fields of the event itself take precedence.

    A token is a draft of its run, or of its message if it has no run. It is closed by the next output or message of
    that run, which has the whole text, or by the event that the run was stopped, has failed or is restarted: then no
    text follows. Retention may drop closed drafts.
    """
    return payload_record(event_payload(event) if fields is None else {**fields, **event_payload(event)})


def payload_record(payload: JsonObject) -> NewRecord:
    """The record of an event that is JSON already. The record keeps the dict, so the caller must not change it."""
    topic = stream_topic(str(payload["conversation_id"]))
    kind = payload.get("event")
    draft = payload.get("run_id") or payload.get("message_id")
    if kind == "token":
        return NewRecord(topic, payload, draft=draft)
    closes = kind in CLOSING or (kind == "run" and payload.get("status") in CLOSING_RUN)
    return NewRecord(topic, payload, closes=draft if closes else None)


def event_payload(event: BaseStreamEvent | Mapping[str, object]) -> JsonObject:
    """An event as JSON, from a model or a mapping. Fields of v1.1 events that are not set are left out."""
    if isinstance(event, dict):  # the frequent case: tokens
        return dict(event)
    if not isinstance(event, BaseStreamEvent):
        return dict(event)
    drop_none = isinstance(event, RunFields)
    try:
        return event.model_dump(mode="json", exclude_none=drop_none)
    except (ValueError, RecursionError):  # the author of a runner may put anything into the fields
        fields = storable({name: value for name, value in event if value is not None or not drop_none})
        return {**fields, **event.model_dump(mode="json", include=set(BaseStreamEvent.model_fields))}


# Flat events: the records of a conversation as the session API (`/api/…`) shows them. `SessionEvent` is something else:
# a record that the conversation was created or changed.

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
KIND_MAX_CHARS = 64
UNNAMED = "record"  # type of a record without a usable event name
REPLY_TO = "reply_to"
RUN_KIND = "run_kind"  # field of events of manual tool runs and routing runs

# Fields that a flat event has at its top level, or leaves out. All others go into `data`.
_LIFTED = frozenset(
    {"event", "id", "conversation_id", "created_at", "message_id", "index", "agent", "text", "reason", "seq"}
)


# Where an event has its agent, text and reason, if not in fields of that name: the agent that continues after a
# handoff, the status of a session change, the code of an error
_AGENTS = {"handoff": "target"}
_TEXTS = {"tool_step": "result_summary", "error": "message"}
_REASONS = {"session": "status", "error": "code", "tool_step": "error"}
_LIFTED_FROM = {"tool_step": _LIFTED | {"result_summary", "error"}, "error": _LIFTED | {"message", "code"}}


class _FlatType(NamedTuple):
    """Type, role and finality of a flat event."""

    type: str
    role: str | None = None
    final: bool | None = None


_FLAT_TYPES = {
    "token": _FlatType("token", ASSISTANT, False),
    "user_message": _FlatType("message", USER, True),
    "message": _FlatType("message", ASSISTANT, True),
    "output": _FlatType("message", ASSISTANT, True),
}


class FlatEvent(TypedDict):
    """A record as the session API shows it; `ApiEvent` in `models/api/messages.py` is its schema.

    `data` holds the fields that have no place of their own.
    """

    session_id: str
    seq: int
    type: str
    message_id: str | None
    token_seq: int | None
    role: str | None
    agent_id: str | None
    text: str | None
    final: bool | None
    reason: str | None
    data: dict[str, object]
    timestamp_ms: int


def flat_event(session_id: str, record: Record) -> FlatEvent | None:
    """The flat event of a record; `None` if the record was erased."""
    if record.erased:
        return None
    payload = record.payload
    kind = payload.get("event")
    name = kind if isinstance(kind, str) else ""
    flat = _flat_type(name, payload)
    return {
        "session_id": session_id,
        "seq": record.seq,
        "type": flat.type,
        "message_id": payload.get("message_id"),
        "token_seq": payload.get("index") if flat.type == "token" else None,
        "role": flat.role,
        "agent_id": _text_field(payload, _AGENTS.get(name, "agent")),
        "text": _text_field(payload, _TEXTS.get(name, "text")),
        "final": flat.final,
        "reason": _text_field(payload, _REASONS.get(name, "reason")),
        "data": _data_of(name, payload),
        "timestamp_ms": record.at_ms,
    }


def _flat_type(kind: str, payload: Mapping[str, object]) -> _FlatType:
    if kind == "output" and payload.get(RUN_KIND):
        return _FlatType("output", TOOL, True)
    if kind in _FLAT_TYPES:
        return _FLAT_TYPES[kind]
    if kind == "tool_step":
        return _FlatType("tool_call" if _is_call(payload) else "tool_result", TOOL)
    if kind == "run":
        return _FlatType("run", None, payload.get("status") in ("finished", "failed", "stopped"))
    return _FlatType(kind_of(payload))


def kind_of(payload: Mapping[str, object]) -> str:
    """Return the kind of a record, or `record` for one whose `event` cannot stand in an `event:` line."""
    kind = payload.get("event")
    if isinstance(kind, str) and 0 < len(kind) <= KIND_MAX_CHARS and kind.isprintable():
        return kind
    return UNNAMED


def _is_call(payload: Mapping[str, object]) -> bool:
    """Whether a tool step is the call. A v1 event may have no status; then a result or error marks it as the result."""
    status = payload.get("status")
    if status is None:
        return payload.get("result_summary") is None and payload.get("error") is None
    return bool(status == "start")


def _text_field(payload: Mapping[str, object], name: str) -> str | None:
    text = payload.get(name)
    return text if isinstance(text, str) else None


def _data_of(kind: str, payload: Mapping[str, object]) -> dict[str, object]:
    """The remaining fields; for a session change, the changed settings."""
    if kind == "session":
        data = payload.get("data")
        return dict(data) if isinstance(data, Mapping) else {}
    lifted = _LIFTED_FROM.get(kind, _LIFTED)
    return {name: value for name, value in payload.items() if name not in lifted and value is not None}
