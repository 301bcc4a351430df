"""A worker with a team behind a gateway, and helpers for clients of the session API."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson
import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Dump
from magent2.gateway.app import create_app
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.server import Gateway, listen
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import Roster
from magent2.runner.select import select_team
from magent2.runner.team.runner import TeamRunner
from magent2.worker.service import WorkerService
from tests.support.gateway import app_client
from tests.support.waiting import DEADLINE_S, LOOK_AGAIN_S
from tests.support.worker_fixture import LEASE_S, until

LIMITS = GatewayLimits(wait_max_s=DEADLINE_S)
ANSWER_DEADLINE_S = 6 * DEADLINE_S
CLIENT_TIMEOUT_S = 2 * DEADLINE_S  # longer than the gateway waits: otherwise it could not answer 202 in time


@asynccontextmanager
async def team_at_work(
    bus: Engine, roster: Roster | None = None, runner: TeamRunner | None = None
) -> AsyncIterator[WorkerService]:
    """Serve every agent of a roster on this bus, with the demo model unless another runner is given."""
    team = runner or select_team(roster or default_roster(), "demo")
    service = WorkerService(bus, dict.fromkeys(team.agents(), team), lease_s=LEASE_S)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        draining = asyncio.create_task(service.drain(0.0))
        await asyncio.wait([task], timeout=DEADLINE_S)
        draining.cancel()
        await team.aclose()
        if not task.done():
            task.cancel()
            pytest.fail("the worker did not drain in time")
        task.result()


@asynccontextmanager
async def api(
    bus: Engine, limits: GatewayLimits | None = None, catalogue: Catalogue | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway without a socket."""
    async with app_client(create_app(bus, limits=limits or LIMITS, catalogue=catalogue)) as client:
        yield client


@asynccontextmanager
async def gateway_on_socket(
    bus: Engine, limits: GatewayLimits | None = None
) -> AsyncIterator[tuple[Gateway, httpx2.AsyncClient]]:
    """A gateway on a free port and a client of it. Unlike without a socket, streams are incremental."""
    gateway = Gateway(bus, limits=limits or LIMITS, catalogue=Catalogue(Registry.of(default_roster()), kind="demo"))
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.create_task(gateway.serve([listener]))
    await until(lambda: gateway.started)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=CLIENT_TIMEOUT_S) as client:
            yield gateway, client
    finally:
        gateway.drain()
        await task


@asynccontextmanager
async def api_on_socket(bus: Engine, limits: GatewayLimits | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    async with gateway_on_socket(bus, limits) as (_, client):
        yield client


async def create(client: httpx2.AsyncClient, session_id: str = "s1", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/api/sdk/session/create", json={"session_id": session_id, **fields})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def say(client: httpx2.AsyncClient, text: str, session_id: str = "s1", **fields: Any) -> httpx2.Response:
    return await client.post("/api/sdk/session/message", json={"session_id": session_id, "user_input": text, **fields})


async def answer_to(client: httpx2.AsyncClient, text: str, session_id: str = "s1", **fields: Any) -> dict[str, Any]:
    """Send a message and return its answer.

    The gateway answers 202 after a time in which a busy machine may not finish the run. The same message id asks again.
    """
    fields.setdefault("client_message_id", f"test-{uuid.uuid4().hex}")
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    answer = await say(client, text, session_id, **fields)
    while answer.status_code == 202 and time.monotonic() < deadline:
        answer = await say(client, text, session_id, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def events(client: httpx2.AsyncClient, session_id: str = "s1", since: int = 0) -> list[dict[str, Any]]:
    """All events after a seq, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = (await client.get(f"/api/sdk/session/{session_id}/events", params={"since": since, "limit": 200})).json()
        found += page["events"]
        since = page["next_since"]
        if not page["has_more"]:
            return found


def types(found: list[dict[str, Any]]) -> list[str]:
    """The types of events; consecutive tokens count once."""
    return [
        event["type"] for n, event in enumerate(found) if event["type"] != "token" or found[n - 1]["type"] != "token"
    ]


async def frames(answer: httpx2.Response) -> AsyncIterator[tuple[str | None, str, dict[str, Any]]]:
    """Yield (id, event, data) of a stream; comments and marks are skipped."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield fields.get("id"), fields["event"], orjson.loads(fields["data"])
        fields = {}


async def until_served(client: httpx2.AsyncClient) -> None:
    """Wait until the gateway knows that every agent has a worker."""
    async with asyncio.timeout(DEADLINE_S):
        while not all(one["alive"] for one in (await client.get("/api/agents")).json()["agents"]):
            await asyncio.sleep(LOOK_AGAIN_S)


async def everything(bus: Engine) -> str:
    """The whole content of a log, as text to search."""
    rows: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        found, cursor = await bus.acall(Dump(cursor))
        rows += found
    return str(rows)
