"""The door for `stream:{conversation}`: every record there is built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magent2.bus.records import NewRecord
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
