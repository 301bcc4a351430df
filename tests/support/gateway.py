"""A gateway under test: in process, or on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
from fastapi import FastAPI

from magent2.bus.interface import Bus
from magent2.gateway.access.auth import Access
from magent2.gateway.app import create_app
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.server import Gateway, listen
from tests.support.worker_fixture import until

HEARTBEAT = ": "


@asynccontextmanager
async def asgi_client(
    bus: Bus, access: Access | None = None, limits: GatewayLimits | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway without a socket. Streams are not incremental: their content arrives when they end."""
    async with app_client(create_app(bus, access=access, limits=limits)) as client:
        yield client


@asynccontextmanager
async def app_client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
        yield client


async def streams_open(app: FastAPI, count: int) -> None:
    """Wait until this many streams are open and have read all existing events."""
    streams = app.state.services.streams
    await until(lambda: streams.open == count and all(reader.is_idle for reader in streams.readers()))


@dataclass(slots=True)
class ServedGateway:
    """A gateway on a local socket."""

    gateway: Gateway
    port: int
    client: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def streams_open(self) -> int:
        opened: int = self.gateway.app.state.services.streams.open
        return opened


@asynccontextmanager
async def serve_gateway(
    bus: Bus, access: Access | None = None, limits: GatewayLimits | None = None
) -> AsyncIterator[ServedGateway]:
    """A gateway on a free port, drained at the end."""
    gateway = Gateway(bus, access=access, limits=limits)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.create_task(gateway.serve([listener]))
    await until(lambda: gateway.started)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield ServedGateway(gateway, port, client)
    finally:
        gateway.drain()
        await task


def message(text: str = "hello", conversation: str = "one", **fields: Any) -> dict[str, Any]:
    given = {"conversation_id": conversation, "sender": "user:ann", "recipient": "agent:Ada", "content": text}
    return {**given, **fields}


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: int | None
    kind: str
    data: dict[str, Any]


def parse_frames(text: str) -> list[Event]:
    """Parse the events of a stream; comments and marks are skipped."""
    return [event for block in text.split("\n\n") if (event := _parse(block)) is not None]


def _parse(block: str) -> Event | None:
    fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
    if "data" not in fields:
        return None
    return Event(int(fields["id"]) if "id" in fields else None, fields["event"], orjson.loads(fields["data"]))


def last_id(text: str) -> int | None:
    """The cursor of a client after reading these frames."""
    ids = [line[4:] for line in text.split("\n") if line.startswith("id: ")]
    return int(ids[-1]) if ids else None
