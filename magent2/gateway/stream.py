"""The answer to `GET /stream/…`: plain ASGI, so that events that are ready together go out in one write."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magent2.bus.face import FOLLOW_RETRY_S
from magent2.errors import TransientError, UnknownCursor
from magent2.gateway.reader import Reader
from magent2.gateway.sse import HEARTBEAT, RETRY, Wanted
from magent2.gateway.streams import Streams

log = logging.getLogger(__name__)

ABORT = "magent2.abort"  # extension of our server: drop the connection without waiting for what it has not taken

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class EventStream(Response):
    """Follows a conversation until the client leaves, the stream ends, or the client takes too long to read."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, wanted: Wanted) -> None:
        super().__init__()
        self._streams = streams
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._streams.enter(self._wanted)
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

    async def _stream(self, reader: Reader, send: Send) -> None:
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

    async def _first(self, reader: Reader) -> bytes | None:
        """What is there at once, before anything is promised: the bus may be away, or the conversation gone."""
        try:
            data = b"".join([batch.data for batch in await reader.read()])
        except UnknownCursor:
            return await reader.find_gap()
        return None if reader.is_deleted else data

    async def _pass_on(self, reader: Reader, send: Send) -> None:
        """Send what is there after the reader's cursor."""
        try:
            for batch in await reader.read():
                self._streams.metrics.events_sent.inc(batch.shown)
                await self._write(send, batch.data)
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


async def _listen(receive: Receive, reader: Reader) -> None:
    """Hear when the client goes."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.leave()
