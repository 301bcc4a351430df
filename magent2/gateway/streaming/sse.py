"""Server-sent events: frames, cursors and filters. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import orjson

from magent2.bus.records import Record
from magent2.errors import InvalidInput
from magent2.models.events import EndEvent, GapEvent
from magent2.models.schemas import CONTRACT
from magent2.sessions.stream import FlatEvent, flat_event, kind_of

CURSOR_MAX = 2**53  # the largest number that every JSON reader keeps exactly
CURSOR_MAX_DIGITS = 16
MAX_EVENTS_MAX = 1_000_000
KINDS_TEXT_MAX_CHARS = 1000
BATCH_MAX_BYTES = 256 << 10  # of one write to a client

RETRY = b"retry: 1000\n\n"
HEARTBEAT = b": \n\n"


EndReason: TypeAlias = Literal["deleted", "revoked", "drain", "max_events"]


def _event_names() -> frozenset[str]:
    fields = (model.model_fields.get("event") for model in CONTRACT)
    return frozenset(name for field in fields if field is not None for name in get_args(field.annotation))


KINDS = _event_names()


class BadCursor(InvalidInput):
    """A cursor that no stream can have."""


class UnknownKind(InvalidInput):
    """A kind of event that does not exist."""


CURSOR_PATTERN = r"^\s*[0-9]{1,16}\s*$"  # for documents: what `parse_cursor` accepts


def parse_cursor(text: str) -> int:
    """Parse a seq: a whole number from 0 to 2^53, in ASCII digits."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > CURSOR_MAX_DIGITS or int(digits) > CURSOR_MAX:
        raise BadCursor(f"a cursor is a whole number from 0 to {CURSOR_MAX}, not {text[:40]!r}")
    return int(digits)


def parse_kinds(text: str) -> frozenset[str]:
    """Parse a comma-separated list of event kinds."""
    names = frozenset(name.strip() for name in text[: KINDS_TEXT_MAX_CHARS + 1].split(","))
    unknown = sorted(names - KINDS)
    if unknown or len(text) > KINDS_TEXT_MAX_CHARS:
        raise UnknownKind(f"{unknown[0][:40]!r} is not a kind of event; use some of {', '.join(sorted(KINDS))}")
    return names


# --- frames


class EventFrame(NamedTuple):
    """A record as server-sent event, encoded once for all clients. Without data it only moves cursors.

    `record` is for a format whose readers encode the record themselves.
    """

    seq: int
    kind: str
    data: bytes
    record: Record | None = None


class FrameFormat(ABC):
    """Encodes records and notices of a stream. Streams of the same format share their frames."""

    @abstractmethod
    def record(self, record: Record) -> EventFrame:
        """Encode a record. The frame of an erased record has no data."""

    @abstractmethod
    def malformed(self, conversation: str, seq: int) -> EventFrame:
        """Encode an error event in place of a record that cannot be read."""

    @abstractmethod
    def gap(self, conversation: str, cursor: int, floor: int) -> bytes:
        """Encode the notice that the records after `cursor` are gone; the stream goes on after `floor`."""

    @abstractmethod
    def end(self, conversation: str, reason: EndReason) -> bytes:
        """Encode the last event of a stream."""


class RecordFormat(FrameFormat):
    """Records as they are stored, with their seq (`/stream/{conversation_id}`)."""

    def record(self, record: Record) -> EventFrame:
        return EventFrame(record.seq, "", b"") if record.erased else payload_frame(record.seq, record.payload)

    def malformed(self, conversation: str, seq: int) -> EventFrame:
        payload = {
            "event": "error",
            "conversation_id": conversation,
            "code": "malformed_record",
            "message": _malformed_text(seq),
        }
        return payload_frame(seq, payload)

    def gap(self, conversation: str, cursor: int, floor: int) -> bytes:
        event = GapEvent(conversation_id=conversation, cursor=str(cursor), floor=floor)
        return notice_frame("gap", event.model_dump_json().encode())

    def end(self, conversation: str, reason: EndReason) -> bytes:
        event = EndEvent(conversation_id=conversation, reason=reason)
        return notice_frame("end", event.model_dump_json().encode())


class SessionEventFormat(FrameFormat):
    """Flat events of sessions (`/api/…/stream`, `ApiEvent` in the OpenAPI document)."""

    def record(self, record: Record) -> EventFrame:
        event = flat_event(record.topic.partition(":")[2], record)
        return EventFrame(record.seq, "", b"") if event is None else _frame(record.seq, str(event["type"]), event)

    def malformed(self, conversation: str, seq: int) -> EventFrame:
        fields = {"seq": seq, "text": _malformed_text(seq), "reason": "malformed_record"}
        return _frame(seq, "error", self._event(conversation, "error", fields))

    def gap(self, conversation: str, cursor: int, floor: int) -> bytes:
        event = self._event(conversation, "gap", {"data": {"cursor": cursor, "floor": floor}})
        return notice_frame("gap", orjson.dumps(event))

    def end(self, conversation: str, reason: EndReason | Literal["unknown"]) -> bytes:
        return notice_frame("end", orjson.dumps(self._event(conversation, "end", {"reason": reason})))

    @staticmethod
    def _event(conversation: str, kind: str, fields: Mapping[str, object]) -> dict[str, object]:
        """Return an event that is not a record of the session. It has the same fields as one."""
        return {
            **dict.fromkeys(FlatEvent.__annotations__),
            "data": {},
            "session_id": conversation,
            "type": kind,
            **fields,
        }


RECORD_FORMAT = RecordFormat()
EVENT_FORMAT = SessionEventFormat()


def payload_frame(seq: int, payload: Mapping[str, object]) -> EventFrame:
    return _frame(seq, kind_of(payload), {**payload, "seq": seq})


def notice_frame(kind: str, data: bytes) -> bytes:
    """Encode an event without `id:`, which leaves the client's cursor where it is."""
    return b"event: %s\ndata: %b\n\n" % (kind.encode(), data)


def _frame(seq: int, kind: str, event: Mapping[str, object]) -> EventFrame:
    return EventFrame(seq, kind, b"id: %d\nevent: %s\ndata: %b\n\n" % (seq, kind.encode(), orjson.dumps(event)))


def _malformed_text(seq: int) -> str:
    return f"record {seq} cannot be read and is passed over"


# --- what one client gets


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The parameters of a stream. `after` is the last seq that the client has, `None` if it has none."""

    conversation: str
    after: int | None = None
    kinds: frozenset[str] | None = None
    max_events: int | None = None
    frame_format: FrameFormat = RECORD_FORMAT


class FrameBatch(NamedTuple):
    """Bytes of one write, the cursor after them, and how many records they show."""

    data: bytes
    cursor: int
    shown: int


def batches(frames: list[EventFrame], kinds: frozenset[str] | None, left: int | None) -> Iterator[FrameBatch]:
    """Join the frames of these kinds, at most `left` of them, into few writes.

    Frames that are left out move the cursor too: an `id:` line without data tells the client, so that it does not
    resume before them.
    """
    pieces: list[bytes] = []
    cursor = shown_cursor = size = shown = 0
    for seq, kind, data, _ in frames:
        cursor = seq
        if not data or (kinds is not None and kind not in kinds):
            continue
        pieces.append(data)
        shown_cursor, size, shown = seq, size + len(data), shown + 1
        if shown == left:
            break
        if size >= BATCH_MAX_BYTES:
            yield FrameBatch(b"".join(pieces), cursor, len(pieces))
            pieces, size = [], 0
    if cursor != shown_cursor:
        yield FrameBatch(b"".join([*pieces, b"id: %d\n\n" % cursor]), cursor, len(pieces))
    elif pieces:
        yield FrameBatch(b"".join(pieces), cursor, len(pieces))
