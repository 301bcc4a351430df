"""What the house refuses on every route alike: each route is asked, and the OpenAPI document must know the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Delete, Erase, Operation
from magent2.errors import BusUnavailable, StorageFull
from magent2.gateway.access.auth import Access
from magent2.gateway.app import create_app
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits, RequestRate
from magent2.mail.registration import register_agent
from tests.support.gateway import app_client, message
from tests.support.keys import ACCESS, ADMIN, TOKEN, KeyHolder, create_key_holder
from tests.support.routes import TABLE, Request
from tests.support.v1_bus import V1Bus
from tests.support.worker_fixture import until

R = TypeVar("R")

# One of each kind that is counted apart.
SPENDING = (("POST", "/send"), ("DELETE", "/api/sdk/session/no"), ("GET", "/api/sdk/sessions"), ("GET", "/stream/no"))

TALK = "one"
QUICK = GatewayLimits(wait_max_s=0.01, route_max_s=0.01)
CLOSED = sorted(key for key, row in TABLE.items() if row.right != "open")
WITH_BODY = [key for key in CLOSED if TABLE[key].body is not None]
STREAMS = {
    ("GET", "/stream/{conversation_id}"),
    ("GET", "/api/sdk/session/{session_id}/stream"),
    ("GET", "/api/stream"),
    ("POST", "/v1/chat/completions"),
}
# These ask the bus for nothing, or go on without it.
NEED_NO_BUS = {
    ("GET", "/api/me"), ("GET", "/api/agents"), ("GET", "/api/scenarios"), ("GET", "/api/tools/list"),
    ("GET", "/api/tools/config/status"),
    ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/v1/models/{model}"),
}  # fmt: skip
# Those that append something when there is nothing in their way.
WRITE = {
    ("POST", "/send"), ("POST", "/api/sdk/session/create"),
    ("POST", "/api/sdk/session/message"), ("POST", "/api/sdk/session/set_active_agent"),
    ("PATCH", "/api/sdk/session/{session_id}"), ("DELETE", "/api/sdk/session/{session_id}"),
    ("POST", "/api/sdk/session/{session_id}/stop"),
    ("POST", "/api/files"), ("POST", "/v1/responses"), ("POST", "/v1/chat/completions"),
}  # fmt: skip


class Failing(MemoryBus):
    """A bus that is away, or has no room, once it is told so."""

    error: Exception | None = None
    only: tuple[type[Operation[Any]], ...] = ()

    async def acall(self, operation: Operation[R]) -> R:
        if self.error is not None and (not self.only or isinstance(operation, self.only)):
            raise self.error
        return await super().acall(operation)


@asynccontextmanager
async def house(
    bus: Any, access: Access | None = None, limits: GatewayLimits = QUICK
) -> AsyncIterator[tuple[FastAPI, httpx2.AsyncClient]]:
    app = create_app(bus, access=access, limits=limits)
    if isinstance(bus, MemoryBus):
        await register_agent(Log(bus), "Ada")
    async with app_client(app) as client:
        body = message("hi", TALK)
        assert (await client.post("/send", json=body, headers={**ADMIN, "host": "localhost"})).status_code == 200
        yield app, client
    app.state.services.streams.close()


@pytest.fixture
def failing() -> Iterator[Failing]:
    bus = Failing()
    yield bus
    bus.error = None
    bus.close()


async def ask(client: httpx2.AsyncClient, key: tuple[str, str], **headers: str) -> httpx2.Response:
    request = Request.of(key, TALK)
    return await client.request(
        request.method, request.path, params=request.params, json=request.body, headers={**ADMIN, **headers}
    )


def promised(app: FastAPI, key: tuple[str, str]) -> set[int]:
    operations = app.openapi()["paths"][key[1]]
    return {int(status) for status in operations[key[0].lower()]["responses"]}


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    """Status and code of an error: a problem document, under `/v1` an error in OpenAI's shape."""
    if answer.request.url.path.startswith("/v1/"):
        assert answer.headers["content-type"] == "application/json", answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        return answer.status_code, answer.json()["error"]["code"]
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


async def test_a_host_or_a_page_from_elsewhere_is_refused_on_every_route(bus: MemoryBus) -> None:
    async with house(bus, Access.by_token(TOKEN, loopback=True)) as (app, client):
        for key in CLOSED:
            assert code_of(await ask(client, key, host="evil.example")) == (421, "foreign_host"), key
            assert code_of(await ask(client, key, host="localhost", origin="http://evil.example")) == (
                403,
                "foreign_origin",
            ), key
            assert {403, 421} <= promised(app, key), key


async def test_every_route_tells_a_limited_caller_when_to_retry(bus: MemoryBus) -> None:
    ann: KeyHolder = await create_key_holder(bus, "user:ann")
    spent = GatewayLimits(rates=dict.fromkeys(DEFAULT_RATES, RequestRate(per_s=0.001, burst=1)))
    async with house(bus, ACCESS, spent) as (app, client):
        streams = app.state.services.streams
        for method, path in SPENDING:
            spending = asyncio.create_task(client.request(method, path, headers=ann.headers, json={}))
            await until(lambda task=spending: task.done() or streams.open)  # type: ignore[misc]
            streams.drain()
            await spending
        for key in CLOSED:
            if TABLE[key].right == "admin":
                continue
            answer = await ask(client, key, **ann.headers)
            assert code_of(answer) == (429, "rate_limited"), key
            assert int(answer.headers["retry-after"]) >= 1
            assert 429 in promised(app, key)


async def test_a_bus_that_is_away_is_503_on_every_route_that_needs_it(failing: Failing) -> None:
    async with house(failing, ACCESS) as (app, client):
        failing.error = BusUnavailable("away")
        for key in CLOSED:
            answer = await asyncio.wait_for(ask(client, key), 10)
            if key in NEED_NO_BUS:
                assert answer.status_code == 200, key
            else:
                assert code_of(answer) == (503, "bus_unavailable"), key
                assert 503 in promised(app, key), key


async def test_a_disk_that_is_full_is_507_on_every_route_that_writes(failing: Failing) -> None:
    async with house(failing, ACCESS) as (app, client):
        failing.error, failing.only = StorageFull("full"), (Append, Delete, Erase)
        for key in sorted(WRITE):
            assert code_of(await ask(client, key)) == (507, "storage_full"), key
            assert 507 in promised(app, key), key


async def test_a_body_that_does_not_come_is_408_on_every_route_that_takes_one(bus: MemoryBus) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with house(bus, limits=GatewayLimits(body_max_s=0.02)) as (app, client):
        for key in WITH_BODY:
            request = Request.of(key, TALK)
            headers = {"content-type": "application/json"}
            answer = await client.request(
                request.method, request.path, params=request.params, content=slowly(), headers=headers
            )
            assert code_of(answer) == (408, "body_too_slow"), key
            assert 408 in promised(app, key), key


async def test_on_a_bus_that_has_only_v1_every_route_answers_as_the_document_says() -> None:
    async with house(V1Bus()) as (app, client):
        for key in sorted(CLOSED, key=lambda key: key[0] == "DELETE"):
            if key in STREAMS:
                continue
            answer = await ask(client, key)
            assert answer.status_code in promised(app, key), (key, answer.text)
            assert answer.status_code < 500 or code_of(answer) == (501, "needs_engine"), key
