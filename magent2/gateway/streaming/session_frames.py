"""Frames of session events (`/api/…/stream`). No I/O."""

from __future__ import annotations

from typing import Any

import orjson

from magent2.bus.records import Record
from magent2.gateway.streaming.sse import EndReason, EventFrame, FrameFormat
from magent2.sessions.stream import FlatEvent, flat_event

FIELDS = (
    "session_id", "seq", "type", "message_id", "token_seq", "role", "agent_id", "text", "final", "reason", "data",
    "timestamp_ms",
)  # fmt: skip


def record_frame(record: Record) -> EventFrame:
    event = flat_event(record.topic.partition(":")[2], record)
    return EventFrame(record.seq, "", b"") if event is None else _numbered(event)


def malformed_frame(session_id: str, seq: int) -> EventFrame:
    text = f"record {seq} cannot be read and is passed over"
    return _numbered(_unsaid(session_id, "error", seq=seq, text=text, reason="malformed_record"))


def gap_frame(session_id: str, cursor: int, floor: int) -> bytes:
    return _unnumbered(_unsaid(session_id, "gap", data={"cursor": cursor, "floor": floor}))


def end_frame(session_id: str, reason: EndReason | str) -> bytes:
    return _unnumbered(_unsaid(session_id, "end", reason=reason))


def _unsaid(session_id: str, sort: str, **fields: Any) -> dict[str, Any]:
    """An event that is no record of the session."""
    return {**dict.fromkeys(FIELDS), "data": {}, "session_id": session_id, "type": sort, **fields}


def _numbered(event: FlatEvent | dict[str, Any]) -> EventFrame:
    kind = str(event["type"])
    data = b"id: %d\nevent: %s\ndata: %b\n\n" % (event["seq"], kind.encode(), orjson.dumps(event))
    return EventFrame(event["seq"], kind, data)


def _unnumbered(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


EVENT_FORMAT = FrameFormat(record_frame, malformed_frame, gap_frame, end_frame)
