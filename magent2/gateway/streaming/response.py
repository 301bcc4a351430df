"""The answer to `GET /stream/…`: plain ASGI, so that events that are ready together go out in one write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magent2.bus.base import FOLLOW_RETRY_S
from magent2.errors import NotYours, TransientError, UnknownCursor
from magent2.gateway.access.identity import identity_of
from magent2.gateway.streaming.open_streams import OpenStream, OpenStreams
from magent2.gateway.streaming.sse import HEARTBEAT, RETRY, FrameBatch, StreamRequest

log = logging.getLogger(__name__)

ABORT = "magent2.abort"  # extension of our server: drop the connection without waiting for what it has not taken

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class StreamSource(OpenStream, Protocol):
    """The reader behind one streaming response."""

    gone: bool

    @property
    def ended(self) -> bytes | None: ...
    @property
    def is_deleted(self) -> bool: ...
    def leave(self) -> None: ...
    async def wait(self) -> None: ...
    async def read(self) -> Iterator[FrameBatch]: ...
    async def may_see(self) -> bool: ...
    async def find_gap(self) -> bytes: ...


class EventStream(Response):
    """Follows a conversation until the client leaves, the stream ends, or the client takes too long to read."""

    media_type = "text/event-stream"

    def __init__(self, streams: OpenStreams, wanted: StreamRequest) -> None:
        super().__init__()
        self._streams = streams
        self._wanted = wanted

    def _enter(self, scope: Scope) -> StreamSource:
        return self._streams.enter(self._wanted, identity_of(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._enter(scope)
        listening = asyncio.create_task(_listen(receive, reader))
        try:
            await self._stream(reader, send)
        except TimeoutError:
            log.info("a stream's reader is too slow and was cut off", extra={"topic": self._wanted.conversation})
            self._streams.metrics.cut_off.inc()
            await _hang_up(scope, listening)
        finally:
            listening.cancel()
            self._streams.leave(reader)

    async def _stream(self, reader: StreamSource, send: Send) -> None:
        first = await self._first(reader)
        if first is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._write(send, RETRY + first)
        while not reader.gone:
            end = reader.ended
            if end is not None:
                await self._write(send, end, last=True)
                return
            await reader.wait()
            if reader.beat:
                reader.beat = False
                await self._write(send, HEARTBEAT)
            await self._pass_on(reader, send)

    async def _first(self, reader: StreamSource) -> bytes | None:
        """What is there at once, before anything is promised: the bus may be away, or the conversation gone."""
        await reader.may_see()
        try:
            batches = await reader.read()
        except UnknownCursor:
            return await reader.find_gap()
        if reader.is_deleted:
            return None
        return b"".join([batch.data for batch in batches]) if await reader.may_see() else b""

    async def _pass_on(self, reader: StreamSource, send: Send) -> None:
        """Send what is there after the reader's cursor, if it is theirs: a reader may have been here first."""
        try:
            batches = await reader.read()
            if not await reader.may_see():
                return
            for batch in batches:
                self._streams.metrics.events_sent.inc(batch.shown)
                await self._write(send, batch.data)
        except NotYours:
            reader.end("revoked")
        except UnknownCursor:
            await self._write(send, await reader.find_gap())
        except TransientError as error:
            log.warning("a stream waits for the bus", extra={"error": str(error)})
            await asyncio.sleep(FOLLOW_RETRY_S)

    async def _write(self, send: Send, data: bytes, *, last: bool = False) -> None:
        async with asyncio.timeout(self._streams.limits.send_max_s):
            await send({"type": "http.response.body", "body": data, "more_body": not last})


async def _hang_up(scope: Scope, listening: asyncio.Task[None]) -> None:
    """Drop the connection, if our server runs this; another sees that the answer has no end."""
    abort = scope.get("extensions", {}).get(ABORT)
    if abort is not None:
        abort["now"]()
        await listening


async def _listen(receive: Receive, reader: StreamSource) -> None:
    """Hear when the client goes."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.leave()
