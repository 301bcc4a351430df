"""A small HTTP/1.1 client: whole JSON answers and server-sent events. Each request has a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson

HOST = "127.0.0.1"
READ_BYTES = 65_536


class Disconnected(RuntimeError):
    """The server closed the connection before its answer was complete, or does not listen."""


class Refused(RuntimeError):
    """The server answered with a status of 300 or more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    event: str
    data: str
    id: str = ""

    def json(self) -> Any:
        return orjson.loads(self.data)


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Sends requests to one port."""

    port: int
    token: str | None = None

    async def json(self, method: str, path: str, body: object = None) -> Any:
        """The answer, parsed. Raises Disconnected or Refused."""
        content = b"".join([piece async for piece in self._pieces(method, path, _json(body))])
        return orjson.loads(content) if content else None

    async def events(
        self, method: str, path: str, body: object = None, form: dict[str, str] | None = None
    ) -> AsyncGenerator[Frame, None]:
        """The events of a stream until the server ends it. Raises Disconnected or Refused."""
        buffer = b""
        content = _form(form) if form is not None else _json(body)
        async with aclosing(self._pieces(method, path, content)) as pieces:
            async for piece in pieces:
                *frames, buffer = (buffer + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                for frame in frames:
                    parsed = _frame(frame.decode())
                    if parsed is not None:
                        yield parsed

    async def _pieces(self, method: str, path: str, content: tuple[str, bytes]) -> AsyncGenerator[bytes, None]:
        kind, body = content
        lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}:{self.port}", "connection: close"]
        lines += [f"authorization: Bearer {self.token}"] if self.token else []
        lines += [f"content-type: {kind}", f"content-length: {len(body)}"] if body else []
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError as error:
            raise Disconnected(f"nothing listens on port {self.port}") from error
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            pieces = _chunks(reader) if "transfer-encoding: chunked" in head else _rest(head, reader)
            if int(head.split(" ", 2)[1]) >= 300:
                said = b"".join([piece async for piece in pieces])
                raise Refused(f"{method} {path}: {head.partition(chr(13))[0]} {said[:500].decode(errors='replace')}")
            async for piece in pieces:
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Disconnected(f"{method} {path}: the connection was closed") from error
        finally:
            writer.close()


def _json(body: object) -> tuple[str, bytes]:
    return "application/json", b"" if body is None else orjson.dumps(body)


def _form(fields: dict[str, str]) -> tuple[str, bytes]:
    return "application/x-www-form-urlencoded", urlencode(fields).encode()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


async def _rest(head: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    _, found, length = head.partition("\r\ncontent-length:")
    if found:
        yield await reader.readexactly(int(length.split("\r\n", 1)[0]))
        return
    while piece := await reader.read(READ_BYTES):
        yield piece


def _frame(text: str) -> Frame | None:
    """None for a comment."""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return None
    return Frame(fields.get("event", "message"), fields["data"], fields.get("id", ""))
