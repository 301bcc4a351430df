"""Streams of `/v1`: the records of a session as events of the Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import orjson
from starlette.types import Receive, Scope, Send

from magent2.bus.interface import Engine
from magent2.bus.records import Record
from magent2.gateway.access.auth import Identity, identity_of
from magent2.gateway.openai_api.mapping import ProtocolEvent, ResponseMapping
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.open_streams import EventStream, OpenStreams
from magent2.gateway.streaming.reader import Reader
from magent2.gateway.streaming.sse import EndReason, EventFrame, FrameBatch, FrameFormat, StreamRequest
from magent2.models.json_types import JsonObject
from magent2.sessions.stream import kind_of

# What a client is told in place of the rest of a stream. After a drain it just resumes.
END_TEXTS: dict[EndReason, str] = {
    "deleted": "the session was deleted",
    "revoked": "the API key was revoked",
}


class RecordsFormat(FrameFormat):
    """Hands the records themselves to the readers: what an event looks like depends on the events before it."""

    def record(self, record: Record) -> EventFrame:
        if record.erased:
            return EventFrame(record.seq, "", b"")
        return EventFrame(record.seq, kind_of(record.payload), orjson.dumps(record.payload.get("text")), record)

    def malformed(self, conversation: str, seq: int) -> EventFrame:
        return EventFrame(seq, "", b"")

    def gap(self, conversation: str, cursor: int, floor: int) -> bytes:
        return error_frame("the log does not have all events of this response any more", "events_gone")

    def end(self, conversation: str, reason: EndReason) -> bytes:
        return error_frame(END_TEXTS[reason], reason) if reason in END_TEXTS else b""


RECORDS_FORMAT = RecordsFormat()


def error_frame(message: str, code: str) -> bytes:
    error = {"type": "server_error", "code": code, "message": message, "param": None}
    return sse_frame("error", {"type": "error", "sequence_number": 0, "error": error})


def sse_frame(kind: str, payload: JsonObject) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (kind.encode(), orjson.dumps(payload))


class ResponseReader(Reader):
    """Reads one response: maps the records of its session, and ends with its last event."""

    __slots__ = ("_after_number", "_over", "mapping")

    def __init__(
        self, bus: Engine, fanout: Fanout, mapping: ResponseMapping, identity: Identity, after_number: int
    ) -> None:
        super().__init__(bus, fanout, StreamRequest(mapping.id.session, mapping.id.seq - 1), identity)
        self.mapping = mapping
        self._after_number = after_number
        self._over = False

    @property
    def is_over(self) -> bool:
        """Whether the last event of the response was read."""
        return self._over

    @property
    def last_frame(self) -> bytes | None:
        return self.closing() if self._over else super().last_frame

    def closing(self) -> bytes:
        """What follows the last event."""
        return b""

    def encode(self, event: ProtocolEvent) -> bytes:
        return sse_frame(event.type, event.payload())

    async def read(self) -> Iterator[FrameBatch]:
        return self._mapped(await self._frames_after_cursor())

    def _mapped(self, frames: list[EventFrame]) -> Iterator[FrameBatch]:
        pieces: list[bytes] = []
        for frame in frames:
            self._cursor = frame.seq
            if frame.record is None or self._over:
                continue
            new = [event for event in self.mapping.take(frame.record) if event.number > self._after_number]
            pieces += map(self.encode, new)
            if new and self.mapping.is_over:
                self._over = True
        if self.mapping.is_over and not self._is_behind():
            self._over = True  # the client has seen the last event before
        if pieces:
            yield FrameBatch(b"".join(pieces), self._cursor, len(pieces))


class ResponseStream(EventStream):
    """The streaming response of one response. `at_end` is called after its last event was sent."""

    opening = b""  # OpenAI's clients take a `retry:` line for an event without data

    def __init__(
        self,
        bus: Engine,
        streams: OpenStreams,
        mapping: ResponseMapping,
        after_number: int = -1,
        at_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(streams, StreamRequest(mapping.id.session))
        self._bus = bus
        self._mapping = mapping
        self._after_number = after_number
        self._at_end = at_end
        self._reader: ResponseReader | None = None

    def make_reader(self, identity: Identity) -> ResponseReader:
        fanout = self._streams.fanout(RECORDS_FORMAT)
        return ResponseReader(self._bus, fanout, self._mapping, identity, self._after_number)

    def _enter(self, scope: Scope) -> ResponseReader:
        identity = identity_of(scope)
        self._streams.check(identity)
        self._reader = self._streams.admit(self.make_reader(identity))
        return self._reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        if self._at_end is not None and self._reader is not None and self._reader.is_over:
            await self._at_end()
