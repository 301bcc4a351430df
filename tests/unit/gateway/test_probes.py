from __future__ import annotations

import re
import socket

import httpx2
from fastapi import FastAPI

from magent2.bus.memory import MemoryBus
from magent2.gateway.app import create_app
from magent2.gateway.server import listen
from tests.support.gateway import app_client, message
from tests.support.routes import TABLE


async def test_the_process_answers_also_when_the_bus_does_not(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    ready = await client.get("/ready")
    await bus.aclose()
    not_ready = await client.get("/ready")

    assert ready.json() == {"status": "ready", "engine": "memory"}
    assert (not_ready.status_code, not_ready.json()["code"]) == (503, "not_ready")
    assert (await client.get("/health")).json() == {"status": "ok"}


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


async def test_a_mistake_of_ours_is_a_problem_too_and_tells_nothing(bus: MemoryBus) -> None:
    app = create_app(bus)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("the password is swordfish")

    async with app_client(app) as client:
        answer = await client.get("/broken")

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

    documented = {path.replace(":path}", "}") for _, path in TABLE} - PLAIN_FILES
    assert set(paths) == documented
    assert all("summary" in operation for path in paths.values() for operation in path.values())


def test_what_is_accepted_answers_without_the_delay_of_small_packets() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
