"""A minimal HTTP/1.1 load client, so that the server dominates the measurement; the same for both sides."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from bench.support.report import Stopwatch

HOST = "127.0.0.1"
ANSWER_TIMEOUT_S = 120.0  # for all that is under way; longer means that something is stuck
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Server:
    """Address and process of a server under load."""

    port: int
    pid: int
    token: str | None = None

    def post(self, path: str, body: bytes) -> bytes:
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return self._request("POST", path, head) + body

    def get(self, path: str, **headers: object) -> bytes:
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return self._request("GET", path, named)

    def _request(self, method: str, path: str, headers: str) -> bytes:
        token = f"authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"{method} {path} HTTP/1.1\r\nhost: {HOST}:{self.port}\r\n{token}{headers}\r\n".encode()


class Refused(RuntimeError):
    """A server answered something else than 200."""


class LoadConnection(asyncio.Protocol):
    """One connection that stays open; a request goes out only after the answer to the one before is in."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def start(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self.transport.write(request)
        elif not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        answer = self._buffer + data if self._buffer else data
        if not is_whole(answer):
            self._buffer = answer
            return
        self._buffer = b""
        if is_ok(answer):
            self.start()
        else:
            self._fail(Refused(answer.decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(Refused("the server hung up"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def is_whole(answer: bytes) -> bool:
    """Whether an answer is complete, by its length or its last chunk."""
    head = answer.find(_HEAD_END)
    if head < 0:
        return False
    length = _LENGTH.search(answer, 0, head)
    if length is None:
        return answer.endswith(_LAST_CHUNK)
    return len(answer) >= head + len(_HEAD_END) + int(length[1])


def is_ok(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200 ")


async def opened(server: Server, make: Callable[[], LoadConnection], count: int) -> list[LoadConnection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(make, HOST, server.port))[1] for _ in range(count)]


async def all_answered_s(server: Server, requests: Iterable[bytes], connections: int) -> float:
    """Seconds until all requests are answered with 200, over this many connections opened in advance."""
    left = iter(requests)
    lines = await opened(server, lambda: LoadConnection(left), connections)
    try:
        with Stopwatch() as watch:
            for line in lines:
                line.start()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.gather(*(line.done for line in lines))
    finally:
        for line in lines:
            line.transport.abort()
    return watch.seconds


class RequestConnection(asyncio.Protocol):
    """One connection for one request at a time, each with its answer."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._mark = b""

    @classmethod
    async def dial(cls, server: Server) -> RequestConnection:
        _, caller = await asyncio.get_running_loop().create_connection(cls, HOST, server.port)
        return caller

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    async def ask(self, request: bytes) -> bytes:
        """The whole answer; anything else than 200 is an error."""
        answer = await self._exchange(request, b"")
        if not is_ok(answer):
            raise Refused(answer.decode(errors="replace"))
        return answer

    async def ask_until(self, request: bytes, mark: bytes) -> None:
        """Send a request and wait until the mark arrives; `rest` then waits for the rest."""
        await self._exchange(request, mark)

    async def rest(self) -> bytes:
        return await self._wait(b"")

    def close(self) -> None:
        self._transport.abort()

    async def _exchange(self, request: bytes, mark: bytes) -> bytes:
        self._buffer = b""
        self._transport.write(request)
        return await self._wait(mark)

    async def _wait(self, mark: bytes) -> bytes:
        self._mark = mark
        self._answer = asyncio.get_running_loop().create_future()
        self._look()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._look()

    def _look(self) -> None:
        if self._answer is None or self._answer.done():
            return
        if is_whole(self._buffer) or (self._mark and self._mark in self._buffer):
            self._answer.set_result(self._buffer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Refused("the server hung up"))


async def answers(server: Server, request: bytes) -> bool:
    """Whether the server is up and says 200."""
    with suppress(OSError, Refused):
        caller = await RequestConnection.dial(server)
        try:
            await caller.ask(request)
            return True
        finally:
            caller.close()
    return False
