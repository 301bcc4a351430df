"""Clients of `GET /stream/…`: they store raw bytes and parse them only after the measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson

from bench.support.gateway.load_client import ANSWER_TIMEOUT_S, HOST, Refused, Server

OUTPUT = b"\nevent: output\n"  # of a frame; in the data of one, a line break is escaped
BEGUN = b"\nretry: "
DIALS = 50  # connections that are opened at a time


class Listener(asyncio.Protocol):
    """One open stream. `outputs` counts the answers, `at` is the time of the last one."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._tail = b""
        self._wanted = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news: asyncio.Future[None] | None = None
        self.outputs = 0
        self.at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._pieces.append(data)
        seen = self._tail + data
        self._tail = seen[1 - len(OUTPUT) :]
        found = seen.count(OUTPUT)
        if found:
            self.outputs, self.at = self.outputs + found, now
        if self._news is not None and self.outputs >= self._wanted and not self._news.done():
            self._news.set_result(None)
        if not self._ready.done() and BEGUN in b"".join(self._pieces):
            self._ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        for waiting in (self._ready, self._news):
            if waiting is not None and not waiting.done():
                waiting.set_exception(Refused(f"the stream ended: {b''.join(self._pieces)[-500:]!r}"))

    async def ready(self) -> None:
        """Wait until the server follows the conversation for this client."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._ready

    async def heard(self, outputs: int) -> float:
        """Wait for this many answers; return the time of the last one."""
        if self.outputs < outputs:
            self._wanted = outputs
            self._news = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._news
        return self.at

    def close(self) -> None:
        self._ready.cancel()
        if self._transport is not None:
            self._transport.abort()

    def events(self) -> list[dict[str, Any]]:
        """All events so far, in the order in which they came."""
        _, _, body = b"".join(self._pieces).partition(b"\r\n\r\n")
        return list(parse(b"".join(unchunked(body))))


def unchunked(body: bytes) -> Iterator[bytes]:
    """The chunks of a body that have arrived so far."""
    start = 0
    while (line := body.find(b"\r\n", start)) > 0:
        size = int(body[start:line], 16)
        yield body[line + 2 : line + 2 + size]
        start = line + 2 + size + 2


def parse(text: bytes) -> Iterator[dict[str, Any]]:
    for frame in text.split(b"\n\n"):
        for line in frame.split(b"\n"):
            if line.startswith(b"data: "):
                yield orjson.loads(line[6:])


@asynccontextmanager
async def following(server: Server, conversations: Iterable[str]) -> AsyncIterator[list[Listener]]:
    """A client for each conversation, connected before the `with` begins."""
    listeners = [Listener(server.get(f"/stream/{conversation}")) for conversation in conversations]
    left = iter(listeners)

    async def dial() -> None:
        for listener in left:
            await asyncio.get_running_loop().create_connection(partial(_itself, listener), HOST, server.port)
            await listener.ready()

    try:
        await asyncio.gather(*(dial() for _ in range(DIALS)))
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def _itself(listener: Listener) -> Listener:
    return listener
