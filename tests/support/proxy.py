"""A TCP proxy that drops connections before it forwards a request or a reply."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 65_536
START_DEADLINE_S = 30.0


@dataclass
class Losses:
    """How often a connection was lost, and where."""

    requests: int = 0  # before the server saw all of it
    replies: int = 0  # after the server had answered

    @property
    def total(self) -> int:
        return self.requests + self.replies


class LossyProxy:
    """Proxy of a local server. `request_loss` and `reply_loss` are probabilities per chunk.

    A lost chunk may be forwarded in part; then both connections are closed.
    """

    def __init__(self, port: int, rng: random.Random, request_loss: float = 0.0, reply_loss: float = 0.0) -> None:
        self.request_loss = request_loss
        self.reply_loss = reply_loss
        self.losses = Losses()
        self.port = 0
        self._upstream_port = port
        self._rng = rng
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def address(self, url: str) -> str:
        """Return the URL of the server with the port of the proxy."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{self._upstream_port}", f":{self.port}")))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_DEADLINE_S), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def behave(self) -> None:
        """Lose nothing any more."""
        self.request_loss = self.reply_loss = 0.0

    def move(self, port: int) -> None:
        """Forward to another server from now on."""
        self._upstream_port = port
        self.cut()

    def cut(self) -> None:
        """Lose every connection now."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        self._loop.run_until_complete(self._settled())

    async def _settled(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end or chance closes it."""
        upstream: asyncio.StreamWriter | None = None
        try:
            replies, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            ways = (self._pump(reader, upstream, self._loses_request), self._pass_back(replies, writer))
            pumps = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            return  # the server is down, so the proxy refuses too
        finally:
            writer.transport.abort()
            if upstream is not None:
                upstream.transport.abort()

    async def _pass_back(self, replies: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pump(replies, writer, self._loses_reply)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, loses: Callable[[], bool]
    ) -> None:
        while piece := await source.read(CHUNK_BYTES):
            lost = loses()
            target.write(piece[: self._rng.randrange(len(piece))] if lost else piece)
            await target.drain()
            if lost:
                return

    def _loses_request(self) -> bool:
        lost = self._rng.random() < self.request_loss
        self.losses.requests += lost
        return lost

    def _loses_reply(self) -> bool:
        lost = self._rng.random() < self.reply_loss
        self.losses.replies += lost
        return lost


class ModelProxy(LossyProxy):
    """Proxy of a model server that interferes once, after a number of tokens of an answer.

    It closes the connection, or withholds the rest as long as the client stays connected.
    """

    def __init__(self, port: int, after_tokens: int, hold: bool = False) -> None:
        super().__init__(port, random.Random(0))
        self.hung_up = threading.Event()  # the client left while the rest was held back
        self._tokens_left = after_tokens
        self._hold = hold

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _pass_back(self, replies: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await replies.read(CHUNK_BYTES):
            writer.write(piece)
            await writer.drain()
            if self._has_come_to_its_token(piece):
                await self._come_between()
                return

    def _has_come_to_its_token(self, piece: bytes) -> bool:
        before = self._tokens_left
        self._tokens_left -= piece.count(b"event: response.output_text.delta")
        return self._tokens_left <= 0 < before

    async def _come_between(self) -> None:
        if not self._hold:
            return
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.hung_up.set()
