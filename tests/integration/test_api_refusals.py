"""What the routes of `/api` refuse, and how they say it, on every engine. Nobody serves the agents here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from magent2.bus.delivery import enlisting
from magent2.bus.flow import arun
from magent2.bus.interface import Engine
from magent2.bus.operations import Trim
from magent2.gateway.app import create_app
from magent2.gateway.limits import Limits
from magent2.gateway.many import SESSIONS_MAX
from tests.support.api import api, create, say
from tests.support.audit import whole_log
from tests.support.engines import ENGINES, new_engines
from tests.support.gateway import calling_app, message

SESSION_ROUTES = [
    ("GET", "/api/sdk/session/{}", None),
    ("GET", "/api/sdk/session/{}/events", None),
    ("GET", "/api/sdk/session/{}/stream", None),
    ("GET", "/api/sdk/session/{}/transcript", None),
    ("GET", "/api/sdk/session/{}/usage", None),
    ("PATCH", "/api/sdk/session/{}", {"title": "x"}),
    ("DELETE", "/api/sdk/session/{}", None),
    ("POST", "/api/sdk/session/{}/stop", {}),
    ("POST", "/api/sdk/session/{}/retry", {"message_id": "m"}),
    ("POST", "/api/sdk/session/message", {"session_id": "{}", "user_input": "hello"}),
    ("POST", "/api/sdk/session/set_active_agent", {"session_id": "{}", "agent_name": "sales"}),
    ("POST", "/api/orchestrate", {"session_id": "{}"}),
    ("POST", "/api/tools/execute", {"session_id": "{}", "tool": "weather"}),
]
BODY_ROUTES = [
    "/api/sdk/session/create",
    "/api/sdk/session/message",
    "/api/sdk/session/set_active_agent",
    "/api/sdk/session/s1/stop",
    "/api/sdk/session/s1/retry",
    "/api/orchestrate",
    "/api/tools/execute",
]


@pytest.fixture(params=ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture
async def client(bus: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    async with api(bus) as client:
        yield client


async def ask(client: httpx2.AsyncClient, method: str, path: str, body: Any, session_id: str) -> httpx2.Response:
    sent = None if body is None else {name: value.replace("{}", session_id) for name, value in body.items()}
    return await client.request(method, path.format(session_id), json=sent)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize(("method", "path", "body"), SESSION_ROUTES)
async def test_an_unknown_session_is_404_and_a_deleted_one_410(
    client: httpx2.AsyncClient, method: str, path: str, body: Any
) -> None:
    await create(client, "gone")
    await client.delete("/api/sdk/session/gone")

    assert refusal(await ask(client, method, path, body, "never")) == (404, "unknown_session")
    assert refusal(await ask(client, method, path, body, "gone")) == (410, "conversation_deleted")


@pytest.mark.parametrize("path", BODY_ROUTES)
async def test_a_body_must_be_json_of_the_right_shape(client: httpx2.AsyncClient, path: str) -> None:
    await create(client)

    no_json = await client.post(path, content=b"{", headers={"content-type": "application/json"})
    a_form = await client.post(path, data={"session_id": "s1"})
    a_list = await client.post(path, json=[1])

    assert refusal(no_json) == (400, "bad_json")
    assert refusal(a_form) == (415, "not_json")
    assert refusal(a_list) == (422, "bad_envelope")


async def test_a_body_that_is_too_large_is_refused(bus: Engine) -> None:
    async with api(bus, Limits(body_max_bytes=100)) as client:
        assert refusal(await say(client, "x" * 200)) == (413, "too_large")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"scenario_id": "nowhere"}, "unknown_scenario"),
        ({"agent_name": "nobody"}, "unknown_agent"),
        ({"session_id": " outer "}, "bad_address"),
        ({"session_id": ""}, "bad_address"),
        ({"overlay": 7}, "bad_envelope"),
        ({"instructions": "x" * 70_000}, "bad_envelope"),
    ],
)
async def test_a_session_that_cannot_be(client: httpx2.AsyncClient, fields: dict[str, Any], code: str) -> None:
    answer = await client.post("/api/sdk/session/create", json={"session_id": "s1", **fields})

    assert refusal(answer) == (422, code)
    assert (await client.get("/api/sdk/session/s1")).status_code == 404


async def test_a_session_cannot_have_the_name_of_an_agent(bus: Engine, client: httpx2.AsyncClient) -> None:
    await arun(bus, enlisting("Ada"))

    assert refusal(await client.post("/api/sdk/session/create", json={"session_id": "Ada"})) == (409, "name_taken")


async def test_a_conversation_that_began_with_mail_becomes_a_session(client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("hello", "s1"))

    before = (await client.get("/api/sdk/session/s1")).json()
    made = await create(client, agent_name="sales")
    after = (await client.get("/api/sdk/session/s1")).json()

    assert (before["active_agent_id"], before["scenario_id"]) == ("Ada", None)
    assert made["agent_name"] == "sales"
    assert (after["active_agent_id"], after["scenario_id"]) == ("sales", "default")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"user_input": "  \n"}, (422, "blank")),
        ({"user_input": ""}, (422, "blank")),
        ({"user_input": "x" * 11}, (422, "too_long")),
        ({"user_input": None}, (422, "bad_envelope")),
        ({"client_message_id": ""}, (422, "bad_envelope")),
        ({"client_message_id": "x" * 201}, (422, "bad_envelope")),
        ({"session_id": ""}, (422, "bad_address")),
    ],
)
async def test_a_message_that_cannot_be(bus: Engine, fields: dict[str, Any], expected: tuple[int, str]) -> None:
    async with calling_app(create_app(bus, limits=Limits(text_max_chars=10))) as client:
        await create(client)

        answer = await client.post(
            "/api/sdk/session/message", json={"session_id": "s1", "user_input": "hello", **fields}
        )

    assert refusal(answer) == expected
    assert whole_log(bus, "chat:s1") == []


@pytest.mark.parametrize("path", ["events", "transcript", "stream"])
async def test_cursors_that_point_at_nothing(bus: Engine, client: httpx2.AsyncClient, path: str) -> None:
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


async def test_stopping_needs_somebody_to_stop(client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("hm", "s1", recipient="chat:s1"))

    assert refusal(await client.post("/api/sdk/session/s1/stop", json={})) == (409, "no_active_agent")
    assert refusal(await client.post("/api/sdk/session/s1/stop", json={"mode": "soon"})) == (422, "bad_envelope")


async def test_only_what_was_asked_can_be_retried(client: httpx2.AsyncClient) -> None:
    await create(client)

    answer = await client.post("/api/sdk/session/s1/retry", json={"message_id": "never"})

    assert refusal(answer) == (404, "unknown_message")


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("product_search", {"query": "x"}, (403, "tool_not_allowed")),
        ("no_such_tool", {}, (403, "tool_not_allowed")),
        ("files.read", {}, (403, "tool_not_allowed")),
        ("WebSearchTool", {}, (403, "builtin_tool")),
        ("FunctionTool", {}, (403, "builtin_tool")),
        ("weather", {}, (422, "bad_arguments")),
        ("weather", {"city": 7}, (422, "bad_arguments")),
        ("weather", {"city": "Oslo", "more": 1}, (422, "bad_arguments")),
        ("weather", [], (422, "bad_envelope")),
        ("", {}, (422, "bad_envelope")),
    ],
)
async def test_a_tool_that_may_not_be_run(
    bus: Engine, client: httpx2.AsyncClient, tool: str, args: Any, expected: tuple[int, str]
) -> None:
    await create(client)

    answer = await client.post("/api/tools/execute", json={"session_id": "s1", "tool": tool, "args": args})

    assert refusal(answer) == expected
    assert whole_log(bus, "chat:general") == []


async def test_an_agent_that_the_roster_does_not_have_may_use_nothing(client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("hello", "s1"))

    answer = await client.post(
        "/api/tools/execute", json={"session_id": "s1", "tool": "weather", "args": {"city": "x"}}
    )

    assert refusal(answer) == (403, "tool_not_allowed")


async def test_routing_within_the_scenario_of_the_session(client: httpx2.AsyncClient) -> None:
    await create(client)

    unknown = await client.post("/api/orchestrate", json={"scenario_id": "nowhere"})
    other = await client.post("/api/orchestrate", json={"scenario_id": "nowhere", "session_id": "s1"})
    target = await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "nobody"})

    assert refusal(unknown) == (422, "unknown_scenario")
    assert refusal(other) == (409, "other_scenario")
    assert refusal(target) == (422, "unknown_agent")


async def test_a_stream_of_many_has_limits(client: httpx2.AsyncClient) -> None:
    many = await client.get("/api/stream", params={"session": [f"s{n}" for n in range(SESSIONS_MAX + 1)]})
    bad = await client.get("/api/stream", params={"session": [f"s1:{2**60}"]})
    bad_header = await client.get("/api/stream", params={"session": ["s1"]}, headers={"Last-Event-ID": f"s1:{2**60}"})
    no_name = await client.get("/api/stream", params={"session": [":5"]})

    assert refusal(many) == (422, "too_many_sessions")
    assert refusal(bad) == (422, "bad_cursor")
    assert refusal(bad_header) == (400, "bad_cursor")
    assert refusal(no_name) == (422, "bad_address")


async def test_a_title_has_a_limit(client: httpx2.AsyncClient) -> None:
    await create(client)

    assert refusal(await client.patch("/api/sdk/session/s1", json={"title": "x" * 201})) == (422, "bad_envelope")
    assert (await client.patch("/api/sdk/session/s1", json={"title": "x" * 200})).status_code == 200
