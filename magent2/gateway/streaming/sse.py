"""Server-sent events: frames, cursors and filters. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import orjson

from magent2.bus.records import Record
from magent2.errors import InvalidInput
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import EndEvent, GapEvent
from magent2.models.schemas import CONTRACT

CURSOR_MAX = 2**53  # the largest number that every JSON reader keeps exactly
CURSOR_MAX_DIGITS = 16
MAX_EVENTS_MAX = 1_000_000
KIND_MAX_CHARS = 64
KINDS_TEXT_MAX_CHARS = 1000
BATCH_MAX_BYTES = 256 << 10  # of one write to a reader

RETRY = b"retry: 1000\n\n"
HEARTBEAT = b": \n\n"
UNNAMED = "record"  # a record that does not say what it is

EndReason: TypeAlias = Literal["deleted", "revoked", "drain", "max_events"]


def _event_names() -> frozenset[str]:
    fields = (model.model_fields.get("event") for model in CONTRACT)
    return frozenset(name for field in fields if field is not None for name in get_args(field.annotation))


KINDS = _event_names()


class EventFrame(NamedTuple):
    """A record as server-sent event, encoded once for all readers."""

    seq: int
    kind: str
    data: bytes


class BadCursor(InvalidInput):
    """A cursor that no stream can have."""


class UnknownKind(InvalidInput):
    """A kind of event that does not exist."""


def record_frame(record: Record) -> EventFrame:
    """An erased record keeps its place and says nothing."""
    if record.erased:
        return EventFrame(record.seq, "", b"")
    return payload_frame(record.seq, record.payload)


def payload_frame(seq: int, payload: dict[str, Any]) -> EventFrame:
    kind = kind_of(payload)
    text = orjson.dumps({**payload, "seq": seq})
    return EventFrame(seq, kind, b"id: %d\nevent: %s\ndata: %b\n\n" % (seq, kind.encode(), text))


def kind_of(payload: dict[str, Any]) -> str:
    kind = payload.get("event")
    if isinstance(kind, str) and 0 < len(kind) <= KIND_MAX_CHARS and kind.isprintable():
        return kind
    return UNNAMED


def malformed_frame(conversation: str, seq: int) -> EventFrame:
    """In place of a record that cannot be read: the stream says so and goes on after it."""
    payload = {
        "event": "error",
        "conversation_id": conversation,
        "code": "malformed_record",
        "message": f"record {seq} cannot be read and is passed over",
    }
    return payload_frame(seq, payload)


def gap_frame(conversation: str, cursor: int, floor: int) -> bytes:
    return _unnumbered(GapEvent(conversation_id=conversation, cursor=str(cursor), floor=floor), "gap")


def end_frame(conversation: str, reason: EndReason) -> bytes:
    return _unnumbered(EndEvent(conversation_id=conversation, reason=reason), "end")


def _unnumbered(event: BaseStreamEvent, kind: str) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (kind.encode(), event.model_dump_json().encode())


def place_mark(seq: int) -> bytes:
    """Moves the reader's cursor and shows nothing."""
    return b"id: %d\n\n" % seq


def parse_cursor(text: str) -> int:
    """A seq: a whole number from 0 to 2^53, in plain digits."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > CURSOR_MAX_DIGITS or int(digits) > CURSOR_MAX:
        raise BadCursor(f"a cursor is a whole number from 0 to {CURSOR_MAX}, not {text[:40]!r}")
    return int(digits)


def parse_kinds(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text[: KINDS_TEXT_MAX_CHARS + 1].split(","))
    unknown = sorted(names - KINDS)
    if unknown or len(text) > KINDS_TEXT_MAX_CHARS:
        raise UnknownKind(f"{unknown[0][:40]!r} is no kind of event; there are {', '.join(sorted(KINDS))}")
    return names


@dataclass(frozen=True, slots=True, eq=False)
class FrameFormat:
    """How records become frames. Readers with the same format share frames."""

    record: Callable[[Record], EventFrame]
    malformed: Callable[[str, int], EventFrame]
    gap: Callable[[str, int, int], bytes]
    end: Callable[[str, EndReason], bytes]


RECORD_FORMAT = FrameFormat(record_frame, malformed_frame, gap_frame, end_frame)


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a client asked for. `after` is the last seq that it has, `None` if it has none."""

    conversation: str
    after: int | None = None
    kinds: frozenset[str] | None = None
    max_events: int | None = None
    rendering: FrameFormat = RECORD_FORMAT


class FrameBatch(NamedTuple):
    """Bytes to send, the cursor after them, and how many records they show."""

    data: bytes
    cursor: int
    shown: int


def batches(frames: list[EventFrame], kinds: frozenset[str] | None, left: int | None) -> Iterator[FrameBatch]:
    """The frames that a reader wants, at most `left` of them, as few writes; what is passed over moves its cursor too.

    Nothing when there is nothing to say at all.
    """
    pieces: list[bytes] = []
    cursor = marked = size = shown = 0
    for seq, kind, data in frames:
        cursor = seq
        if not data or (kinds is not None and kind not in kinds):
            continue
        pieces.append(data)
        marked, size, shown = seq, size + len(data), shown + 1
        if shown == left:
            break
        if size >= BATCH_MAX_BYTES:
            yield FrameBatch(b"".join(pieces), cursor, len(pieces))
            pieces, size = [], 0
    if cursor != marked:
        yield FrameBatch(b"".join([*pieces, place_mark(cursor)]), cursor, len(pieces))
    elif pieces:
        yield FrameBatch(b"".join(pieces), cursor, len(pieces))
