"""The open streams of a process (limits, heartbeats, end), and the response that writes one to its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magent2.background import log_error
from magent2.bus.base import FOLLOW_RETRY_S
from magent2.bus.interface import Engine
from magent2.errors import NotYours, TransientError, UnknownCursor
from magent2.gateway.access.auth import TOKEN_IDENTITY, Access, Identity, identity_of
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.open_counts import LimitShare
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.reader import Reader
from magent2.gateway.streaming.sse import HEARTBEAT, RETRY, EndReason, FrameBatch, FrameFormat, StreamRequest
from magent2.telemetry import Metrics

log = logging.getLogger(__name__)

HEARTBEAT_SLOTS = 15  # heartbeats are spread over this many moments of their interval
ABORT = "magent2.abort"  # extension of our server: close the connection without waiting for unsent data

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class OpenStream(Protocol):
    """An open stream, as far as its registration needs it."""

    identity: Identity
    slot: int
    beat: bool

    def wake(self) -> None: ...
    def end(self, reason: EndReason) -> None: ...
    def close(self) -> None: ...
    @property
    def is_idle(self) -> bool: ...


S = TypeVar("S", bound=OpenStream)


class WriteClock:
    """Ends the streams whose clients have not accepted a write for `max_s`.

    One timer serves the writes of all streams: a timer for each write would take longer than the write.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._begun: dict[asyncio.Timeout, float] = {}  # writes in progress by the time limit of their stream, in order
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, stream: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        self._begun[stream] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._max_s, self._check)

    def end(self, stream: asyncio.Timeout) -> None:
        self._begun.pop(stream, None)

    def _check(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for stream, begun in list(self._begun.items()):
            left_s = begun + self._max_s - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._check)
                return
            del self._begun[stream]
            stream.reschedule(loop.time())


class OpenStreams:
    """The readers of a process. One timer serves all heartbeats, so that an idle reader has no timer of its own."""

    def __init__(
        self, bus: Engine, limits: GatewayLimits, access: Access, metrics: Metrics, share: LimitShare | None = None
    ) -> None:
        share = share or LimitShare()
        self.limits = limits
        self.metrics = metrics
        self.writes = WriteClock(limits.send_max_s)
        self._bus = bus
        self._access = access
        self._fanouts: dict[FrameFormat, Fanout] = {}
        self._slots: list[set[OpenStream]] = [set() for _ in range(HEARTBEAT_SLOTS)]
        self._next_slot = 0  # of the next reader
        self._current_slot = 0
        self._timer: asyncio.TimerHandle | None = None
        self._token = access.token
        self._counts = share.streams  # by principal, administrators aside
        self._by_key: dict[str, set[OpenStream]] = {}
        self.keys = KeyCache(bus, self.revoke, self._by_key.__contains__, share.gateways)
        self.draining = False

    def enter(self, request: StreamRequest, identity: Identity = TOKEN_IDENTITY) -> Reader:
        """Open a reader, if the limits allow one more."""
        self.check(identity)
        return self.admit(Reader(self._bus, self.fanout(request.frame_format), request, identity))

    def fanout(self, frame_format: FrameFormat) -> Fanout:
        """Return the fan-out that all streams of this format share."""
        return self._fanouts.setdefault(frame_format, Fanout(self._bus, frame_format))

    def check(self, identity: Identity) -> None:
        """Raise a problem if no stream can be opened for this identity."""
        if self.draining:
            raise Problem.draining()
        if self._counts.total >= self.limits.streams_max:
            raise Problem.too_many_streams(self.limits.streams_max)
        if self.keys.has_ended(identity.key):
            raise Problem.unauthorized()

    @property
    def open(self) -> int:
        """The number of open streams of this process."""
        return self._counts.own

    def admit(self, reader: S) -> S:
        """Register a reader. Closes it and raises a problem if there are too many streams, in all or of its principal.

        `check` was before; another gateway of the address may have opened a stream since.
        """
        name, key = reader.identity.principal.bound, reader.identity.key
        counts, limits = self._counts, self.limits
        counts.add(name)
        too_many: Problem | None = None
        if counts.total > limits.streams_max:
            too_many = Problem.too_many_streams(limits.streams_max)
        elif name is not None and counts.of(name) > limits.streams_per_principal_max:
            too_many = Problem.too_many_of_yours(limits.streams_per_principal_max)
        if too_many is not None:
            counts.remove(name)
            reader.close()
            raise too_many
        if key is not None:
            self._by_key.setdefault(key, set()).add(reader)
        self.metrics.streams_open.set(self.open)
        reader.slot = self._next_slot = (self._next_slot + 1) % HEARTBEAT_SLOTS
        self._slots[reader.slot].add(reader)
        if self._timer is None:
            self._token = self._access.token
            self._start_timer()
        return reader

    def leave(self, reader: OpenStream) -> None:
        name, key = reader.identity.principal.bound, reader.identity.key
        self._counts.remove(name)
        if key is not None:
            self._by_key[key].discard(reader)
            if not self._by_key[key]:
                del self._by_key[key]
        self.metrics.streams_open.set(self.open)
        self._slots[reader.slot].discard(reader)
        reader.close()
        if not self.open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def revoke(self, key: str) -> int:
        """End the streams of an API key. Return how many there were."""
        readers = self._by_key.get(key, set())
        for reader in readers:
            reader.end("revoked")
        return len(readers)

    def close(self) -> None:
        """Stop following the API keys."""
        self.keys.close()

    def drain(self) -> None:
        """End all streams. Their clients reconnect to another gateway."""
        self.draining = True
        for reader in self.readers():
            reader.end("drain")

    def readers(self) -> list[OpenStream]:
        return [reader for slot in self._slots for reader in slot]

    def _start_timer(self) -> None:
        delay_s = self.limits.heartbeat_s / HEARTBEAT_SLOTS
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._start_timer()
        self._current_slot = (self._current_slot + 1) % HEARTBEAT_SLOTS
        for reader in self._slots[self._current_slot]:
            reader.beat = True
            reader.wake()
        if self._access.token != self._token:
            self._token = self._access.token
            for reader in self.readers():
                if reader.identity.key is None:
                    reader.end("revoked")


class StreamSource(OpenStream, Protocol):
    """The reader behind one streaming response."""

    gone: bool

    @property
    def last_frame(self) -> bytes | None: ...
    @property
    def is_deleted(self) -> bool: ...
    @property
    def is_draining(self) -> bool: ...
    def leave(self) -> None: ...
    def refresh(self) -> None: ...
    async def wait(self) -> None: ...
    async def read(self) -> Iterator[FrameBatch]: ...
    async def check_allowed(self) -> bool: ...
    async def find_gap(self) -> bytes: ...


class EventStream(Response):
    """Streams a conversation until the client leaves, the stream ends, or the client reads too slowly.

    Plain ASGI: events that are ready together go out in one write.
    """

    media_type = "text/event-stream"
    opening = RETRY  # before the first event

    def __init__(self, streams: OpenStreams, request: StreamRequest) -> None:
        super().__init__()
        self._streams = streams
        self._request = request
        self._time_limit = asyncio.timeout(None)  # `WriteClock` sets it when a write takes too long

    def _enter(self, scope: Scope) -> StreamSource:
        return self._streams.enter(self._request, identity_of(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._enter(scope)
        disconnect = asyncio.create_task(_wait_for_disconnect(receive, reader))
        try:
            async with self._time_limit:
                await self._stream(reader, send)
        except TimeoutError:
            log.info("closed a stream whose client reads too slowly", extra={"topic": self._request.conversation})
            self._streams.metrics.cut_off.inc()
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:  # another server sees that the response has no end
                abort["now"]()
                await disconnect
        finally:
            disconnect.cancel()
            self._streams.leave(reader)

    async def _stream(self, reader: StreamSource, send: Send) -> None:
        first = await self._first(reader)
        if first is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._write(send, self.opening + first)
        while not reader.gone:
            if reader.is_draining:
                await self._send_last(reader, send)
            end = reader.last_frame
            if end is not None:
                await self._write(send, end, last=True)
                return
            await reader.wait()
            if reader.beat:
                reader.beat = False
                await self._write(send, HEARTBEAT)
            else:
                await self._send_new(reader, send)

    async def _first(self, reader: StreamSource) -> bytes | None:
        """Read before the status is sent: an unavailable bus can still be a 503, a deleted conversation a 204."""
        await reader.check_allowed()
        try:
            batches = await reader.read()
        except UnknownCursor:
            return await reader.find_gap()
        if reader.is_deleted:
            return None
        # Checked again: a conversation that did not exist at the first check may have got another owner since.
        return b"".join([batch.data for batch in batches]) if await reader.check_allowed() else b""

    async def _send_new(self, reader: StreamSource, send: Send) -> None:
        """Send the frames after the reader's cursor, if the caller may read the conversation."""
        try:
            batches = await reader.read()
            if not await reader.check_allowed():
                return
            for batch in batches:
                self._streams.metrics.events_sent.inc(batch.shown)
                await self._write(send, batch.data)
        except NotYours:
            reader.end("revoked")
        except UnknownCursor:
            await self._write(send, await reader.find_gap())
        except TransientError as error:
            log.warning("cannot read the log for a stream; will retry", extra={"error": str(error)})
            await asyncio.sleep(FOLLOW_RETRY_S)

    async def _send_last(self, reader: StreamSource, send: Send) -> None:
        """Send what was written before the gateway began to drain: its workers may just have ended their last runs."""
        reader.refresh()
        await self._send_new(reader, send)

    async def _write(self, send: Send, data: bytes, *, last: bool = False) -> None:
        self._streams.writes.begin(self._time_limit)
        try:
            await send({"type": "http.response.body", "body": data, "more_body": not last})
        finally:
            self._streams.writes.end(self._time_limit)


async def _wait_for_disconnect(receive: Receive, reader: StreamSource) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:  # noqa: BLE001  a connection that cannot be read is over
        log_error("cannot read from the client of a stream", error)
    reader.leave()
