"""Edge cases of the session API beyond the answers of each route, on every engine, without a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Trim
from magent2.mail.registration import register_agent
from tests.support.api.sessions import api, create
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.gateway import message


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture
async def client(bus: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    async with api(bus) as client:
        yield client


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


async def test_a_conversation_that_began_with_mail_becomes_a_session(bus: Engine, client: httpx2.AsyncClient) -> None:
    await register_agent(Log(bus), "Ada")
    await client.post("/send", json=message("hello", "s1"))

    before = (await client.get("/api/sdk/session/s1")).json()
    made = await create(client, agent_name="sales")
    after = (await client.get("/api/sdk/session/s1")).json()

    assert (before["active_agent_id"], before["scenario_id"]) == ("Ada", None)
    assert made["agent_name"] == "sales"
    assert (after["active_agent_id"], after["scenario_id"]) == ("sales", "default")


async def test_a_model_of_a_provider_that_the_team_does_not_use_is_refused(client: httpx2.AsyncClient) -> None:
    wanted = {"session_id": "s1", "model": "anthropic/claude"}

    assert refusal(await client.post("/api/sdk/session/create", json=wanted)) == (422, "invalid")
    assert (await client.get("/api/sdk/session/s1")).status_code == 404


@pytest.mark.parametrize("path", ["events", "transcript", "stream"])
async def test_an_invalid_cursor_is_refused(bus: Engine, client: httpx2.AsyncClient, path: str) -> None:
    await create(client)
    for number in range(5):
        await client.patch("/api/sdk/session/s1", json={"title": str(number)})
    bus.call(Trim("stream:s1", keep=2))

    async def since(value: str | int) -> httpx2.Response:
        return await client.get(f"/api/sdk/session/s1/{path}", params={"since": value, "max_events": 1})

    assert refusal(await since("x")) == (422, "bad_cursor")
    assert refusal(await since(2**53 + 1)) == (422, "bad_cursor")
    if path != "stream":  # which says `gap` and goes on
        assert refusal(await since(1)) == (410, "cursor_gone")
        assert (await since(1)).json()["floor"] == 4
        assert refusal(await since(99)) == (422, "bad_cursor")
        assert refusal(await client.get(f"/api/sdk/session/s1/{path}", params={"limit": 0})) == (422, "bad_parameter")
    else:
        gap = await since(1)
        assert "event: gap" in gap.text
        assert '"floor":4' in gap.text


async def test_an_agent_that_the_roster_does_not_have_may_use_nothing(bus: Engine, client: httpx2.AsyncClient) -> None:
    await register_agent(Log(bus), "Ada")
    await client.post("/send", json=message("hello", "s1"))

    answer = await client.post(
        "/api/tools/execute", json={"session_id": "s1", "tool": "weather", "args": {"city": "x"}}
    )

    assert refusal(answer) == (403, "tool_not_allowed")


async def test_a_title_has_a_limit(client: httpx2.AsyncClient) -> None:
    await create(client)

    assert refusal(await client.patch("/api/sdk/session/s1", json={"title": "x" * 201})) == (422, "bad_envelope")
    assert (await client.patch("/api/sdk/session/s1", json={"title": "x" * 200})).status_code == 200
