from __future__ import annotations

import asyncio
import re
import socket
from typing import TypeVar

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import WRITE_PROBE, Append, Operation
from magent2.errors import StorageFull
from magent2.gateway.app import create_app
from magent2.gateway.routes.administration import READY_MAX_S
from magent2.gateway.server import listen
from tests.simulation.virtual_loop import VirtualLoop, run_on_virtual_loop
from tests.support.gateway import app_client, asgi_client, message
from tests.support.keys import ACCESS, ADMIN
from tests.support.routes import TABLE
from tests.support.waiting import until

R = TypeVar("R")


async def test_the_process_answers_also_when_the_bus_does_not(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    ready = await client.get("/ready")
    await bus.aclose()
    not_ready = await client.get("/ready")

    assert ready.json() == {"status": "ready", "engine": "memory"}
    assert (not_ready.status_code, not_ready.json()["code"]) == (503, "not_ready")
    assert (await client.get("/health")).json() == {"status": "ok"}


class CountingBus(MemoryBus):
    """Counts the write probes, and answers each when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self.answered = asyncio.Event()

    async def acall(self, operation: Operation[R]) -> R:
        if operation is WRITE_PROBE:
            self.probes += 1
            await self.answered.wait()
        return await super().acall(operation)


async def test_all_probes_share_one_write_and_a_probe_that_is_given_up_does_not_end_it() -> None:
    bus = CountingBus()
    async with asgi_client(bus) as client:
        probes = [asyncio.create_task(client.get("/ready")) for _ in range(5)]
        await until(lambda: bus.probes)
        probes[0].cancel()
        await asyncio.wait(probes[:1])
        bus.answered.set()
        answers = await asyncio.gather(*probes[1:])
        again = await client.get("/ready")
    await bus.aclose()

    assert [answer.status_code for answer in (*answers, again)] == [200] * 5
    assert bus.probes == 1


async def test_a_refused_message_makes_a_gateway_not_ready_though_the_store_takes_small_writes(
    bus: MemoryBus, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await client.get("/ready")).status_code == 200
    acall = bus.acall

    async def refuse_appends(operation: Operation[R]) -> R:
        if isinstance(operation, Append):
            raise StorageFull("no space left")
        return await acall(operation)

    monkeypatch.setattr(bus, "acall", refuse_appends)
    refused = await client.post("/send", json=message("hello"))
    not_ready = await client.get("/ready")

    assert (refused.status_code, not_ready.status_code) == (507, 503)
    assert not_ready.json()["detail"] == "the bus takes no writes: no space left"  # callers are administrators


class HangingBus(MemoryBus):
    """A bus that never answers."""

    async def acall(self, operation: Operation[R]) -> R:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_bus_that_hangs_is_not_ready_within_two_seconds() -> None:
    async def probe() -> tuple[httpx2.Response, float]:
        bus = HangingBus()
        async with asgi_client(bus) as client:
            started = asyncio.get_running_loop().time()
            answer = await client.get("/ready")
            taken_s = asyncio.get_running_loop().time() - started
        bus.close()
        return answer, taken_s

    answer, taken_s = run_on_virtual_loop(VirtualLoop(1), probe())  # on its time, the machine is never busy

    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert taken_s == READY_MAX_S < 2.0


async def test_ready_tells_anonymous_callers_nothing_of_the_store(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    acall = bus.acall

    async def refuse_writes(operation: Operation[R]) -> R:
        if operation is WRITE_PROBE:
            raise StorageFull("/var/lib/magent2/log.db is full")
        return await acall(operation)

    async with asgi_client(bus, ACCESS) as client:
        anonymous, admin = await client.get("/ready"), await client.get("/ready", headers=ADMIN)
    monkeypatch.setattr(bus, "acall", refuse_writes)
    async with asgi_client(bus, ACCESS) as client:
        refused, explained = await client.get("/ready"), await client.get("/ready", headers=ADMIN)

    assert anonymous.json() == {"status": "ready"}
    assert admin.json() == {"status": "ready", "engine": "memory"}
    assert (refused.status_code, "log.db" in refused.text) == (503, False)
    assert "log.db is full" in explained.json()["detail"]


@pytest.mark.parametrize("name", ["host", "authorization", "origin"])
async def test_a_header_that_decides_on_access_may_not_be_repeated(bus: MemoryBus, name: str) -> None:
    async with asgi_client(bus, ACCESS) as client:
        answer = await client.get("/api/me", headers=[*ADMIN.items(), (name, "a"), (name, "b")])

    assert (answer.status_code, answer.json()["code"]) == (400, "repeated_header")


async def test_an_unexpected_error_of_the_write_probe_is_not_ready_and_tells_nothing(
    bus: MemoryBus, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    acall = bus.acall

    async def break_writes(operation: Operation[R]) -> R:
        if operation is WRITE_PROBE:
            raise RuntimeError("the password is swordfish")
        return await acall(operation)

    monkeypatch.setattr(bus, "acall", break_writes)
    not_ready = await client.get("/ready")

    assert (not_ready.status_code, not_ready.json()["code"]) == (503, "not_ready")
    assert "swordfish" not in not_ready.text


async def test_a_gateway_that_goes_home_is_not_ready(app: FastAPI, client: httpx2.AsyncClient) -> None:
    app.state.services.streams.drain()

    assert (await client.get("/ready")).json()["code"] == "draining"
    assert (await client.get("/stream/one")).json()["code"] == "draining"


async def test_metrics_count_by_route_and_never_name_what_a_client_sent(client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("a secret", "private-conversation", id="m1"))
    await client.post("/send", json=message("a secret", "private-conversation", id="m1"))
    await client.get("/api/sdk/session/private-conversation")
    await client.get("/nowhere/private-conversation")
    await client.request("INVENTED", "/send")

    text = (await client.get("/metrics")).text

    assert 'magent2_requests_total{method="POST",route="/send",status="200"} 2.0' in text
    assert 'magent2_sends_total{outcome="accepted"} 1.0' in text
    assert 'magent2_sends_total{outcome="repeated"} 1.0' in text
    assert 'method="other"' in text
    assert not re.search("private|secret|m1|INVENTED", text)


async def test_what_is_not_there_is_a_problem_document(client: httpx2.AsyncClient) -> None:
    nowhere, wrong = await client.get("/nowhere"), await client.get("/send")

    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "POST")
    assert nowhere.headers["content-type"] == wrong.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/sdk/session/one", "DELETE, GET, PATCH"),
        ("/api/connectors", "GET, POST"),
        ("/health", "GET, HEAD"),
        ("/page/page.js", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_answered_with_all_that_it_has(
    client: httpx2.AsyncClient, path: str, allowed: str
) -> None:
    answer = await client.request("PUT", path)

    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


async def test_a_mistake_of_ours_is_a_problem_too_and_tells_nothing(bus: MemoryBus) -> None:
    app = create_app(bus)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("the password is swordfish")

    async with app_client(app) as client:
        answer = await client.get("/broken")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "swordfish" not in answer.text


@pytest.mark.parametrize("path", ["/send", "/api/me"])
async def test_a_mistake_before_a_route_is_a_problem_too(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    app = create_app(bus, access=ACCESS)

    async def fail(*_: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(app.state.services.streams.keys, "find", fail)
    async with app_client(app) as client:
        answer = await client.post(path, headers={"authorization": "Bearer unknown"})

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "swordfish" not in answer.text


async def test_the_page_has_nothing_inline_and_loads_only_its_own_files(client: httpx2.AsyncClient) -> None:
    page = await client.get("/")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(r"<script>|style=|\son\w+=", page.text)
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert (await client.get(path)).status_code == 200, path
    assert (await client.get("/page/other.js")).status_code == 404


PLAIN_FILES = {"/", "/page/{name}", "/openapi.json"}


async def test_no_route_is_left_out_of_the_openapi_document(client: httpx2.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]

    documented = {path for _, path in TABLE} - PLAIN_FILES
    assert set(paths) == documented
    assert all("summary" in operation for path in paths.values() for operation in path.values())


def test_what_is_accepted_answers_without_the_delay_of_small_packets() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
