"""Sessions over HTTP, with a running team, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.gateway.limits import GatewayLimits
from magent2.sessions.history import sum_usage
from tests.support.api.sessions import answer_to, api, create, events, say, team_at_work, types
from tests.support.audit import whole_log
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.waiting import DEADLINE_S, LOOK_AGAIN_S
from tests.support.worker_fixture import history

FIELDS = {
    "session_id", "seq", "type", "message_id", "token_seq", "role", "agent_id", "text", "final", "reason", "data",
    "timestamp_ms",
}  # fmt: skip


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture
async def client(bus: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway beside the default team on the demo model."""
    async with team_at_work(bus), api(bus) as client:
        yield client


def runs(bus: Engine, session_id: str = "s1") -> list[str]:
    return [record["run"] for record in history(bus, session_id) if record["kind"] == "start"]


# --- create


async def test_a_session_is_created_with_what_its_agent_may_use(client: httpx2.AsyncClient) -> None:
    assert await create(client, agent_name="sales", model="small", overlay="Be kind.", scenario_id="default") == {
        "session_id": "s1",
        "agent_name": "sales",
        "model": "small",
        "tools": ["product_search", "echo_context"],
        "overlay": "Be kind.",
    }


async def test_without_an_id_or_an_agent_the_scenario_says_who_begins(client: httpx2.AsyncClient) -> None:
    made = (await client.post("/api/sdk/session/create", json={})).json()

    assert made["agent_name"] == "general"
    assert (await client.get(f"/api/sdk/session/{made['session_id']}")).json()["active_agent_id"] == "general"


async def test_a_change_is_one_event_and_no_change_none(client: httpx2.AsyncClient) -> None:
    await create(client, agent_name="general", instructions="Be brief.")

    await create(client, agent_name="general", instructions="Be brief.")
    await create(client, agent_name="general", overlay="Be kind.")
    await create(client, agent_name="sales")

    assert [(event["type"], event["reason"], event["data"]["changed"]) for event in await events(client)] == [
        ("session", "created", ["scenario_id", "general.instructions"]),
        ("session", "updated", ["overlay"]),
        ("session", "updated", ["active_agent"]),
    ]


async def test_session_instructions_are_recorded_with_the_next_run(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client, agent_name="general", instructions="Be brief.", overlay="Be kind.")
    await answer_to(client, "hello")

    (start,) = [record for record in history(bus, "s1") if record["kind"] == "start"]
    assert start["spec"]["agents"]["general"]["instructions"] == "Be brief."
    assert start["spec"]["overlay"] == "Be kind."


# --- message


async def test_a_message_is_answered_with_its_events(client: httpx2.AsyncClient) -> None:
    await create(client)

    answer = await answer_to(client, "weather in Oslo")

    assert set(answer) == {
        "final_output", "message_id", "reply_to", "session_id", "seq", "events", "usage", "tool_calls",
    }  # fmt: skip
    assert "Oslo" in answer["final_output"]
    assert all(set(event) == FIELDS for event in answer["events"])
    assert types(answer["events"]) == ["message", "run", "tool_call", "tool_result", "token", "message", "run"]
    assert answer["usage"]["total_tokens"] > 0
    (call,) = answer["tool_calls"]
    assert (call["name"], call["args"], call["status"]) == ("weather", {"city": "Oslo"}, "success")


async def test_question_and_answer_have_ids_of_their_own(client: httpx2.AsyncClient) -> None:
    await create(client)

    answer = await answer_to(client, "hello there", client_message_id="m1")

    asked, said = [event for event in answer["events"] if event["type"] == "message"]
    tokens = [event for event in answer["events"] if event["type"] == "token"]
    assert (asked["role"], asked["data"]["client_message_id"]) == ("user", "m1")
    assert (said["role"], said["final"], said["text"]) == ("assistant", True, "hello there")
    assert answer["message_id"] == said["message_id"] != asked["message_id"] == said["data"]["reply_to"]
    assert {token["message_id"] for token in tokens} == {said["message_id"]}
    assert "".join(token["text"] for token in tokens) == said["text"]
    assert [token["token_seq"] for token in tokens] == list(range(len(tokens)))


async def test_ten_posts_of_one_key_are_one_run(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client)

    answers = await asyncio.gather(*(answer_to(client, "hello", client_message_id="m1") for _ in range(10)))

    assert len(runs(bus)) == 1
    assert len({answer["message_id"] for answer in answers}) == 1
    assert {answer["final_output"] for answer in answers} == {"hello"}


async def test_a_repeat_is_answered_as_the_first_time(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client)
    first = await answer_to(client, "hello", client_message_id="m1")
    await answer_to(client, "something else", client_message_id="m2")
    await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "sales"})

    again = await answer_to(client, "hello", client_message_id="m1")
    without_waiting = await say(client, "hello", client_message_id="m1", wait=False)

    assert again == first == without_waiting.json()
    assert len(runs(bus)) == 2


async def test_the_same_key_with_another_text_is_a_conflict(client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "hello", client_message_id="m1")

    other = await say(client, "goodbye", client_message_id="m1")

    assert (other.status_code, other.json()["code"]) == (409, "id_conflict")


async def test_the_same_key_in_another_session_is_another_message(client: httpx2.AsyncClient) -> None:
    await create(client)
    await create(client, "s2")

    assert (await answer_to(client, "one", client_message_id="m1"))["final_output"] == "one"
    assert (await answer_to(client, "two", "s2", client_message_id="m1"))["final_output"] == "two"


async def test_a_message_without_waiting_returns_the_seq_to_follow(client: httpx2.AsyncClient) -> None:
    await create(client)

    answer = await say(client, "hello", wait=False)

    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["seq"]) == ("accepted", 2)


async def test_a_request_waits_no_longer_than_the_limit(bus: Engine) -> None:
    async with api(bus, GatewayLimits(wait_max_s=0.05)) as client:
        await create(client)

        first = await say(client, "hello", client_message_id="m1")
        again = await say(client, "hello", client_message_id="m1", wait=False)

    assert (first.status_code, first.json()["status"]) == (202, "in_progress")
    assert "no worker serves 'general'" in first.json()["notice"]
    assert again.json() == first.json()


async def test_a_run_continues_without_a_waiting_client_and_is_replayed(bus: Engine) -> None:
    async with api(bus, GatewayLimits(wait_max_s=0.05)) as client:
        await create(client)
        assert (await say(client, "hello", client_message_id="m1")).status_code == 202

    async with team_at_work(bus), api(bus) as client:
        assert (await answer_to(client, "hello", client_message_id="m1"))["final_output"] == "hello"
    assert len(runs(bus)) == 1


# --- folds


async def test_the_usage_of_a_session_is_that_of_all_its_runs_and_of_an_answer_that_of_its_run(
    client: httpx2.AsyncClient,
) -> None:
    await create(client)
    answers = [await answer_to(client, text) for text in ("hello", "a longer question")]
    total = sum_usage(answers[0]["usage"], answers[1]["usage"])

    async def get(path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await client.get(f"/api/sdk/session{path}")).json()
        return found

    record = await get("/s1?format=record")
    (listed,) = (await get("s?format=record"))["conversations"]
    assert [(await get("/s1"))["usage"], (await get("/s1/usage"))["usage"], record["usage"]] == [total] * 3
    assert [found["last_run_usage"] for found in (record, listed)] == [answers[1]["usage"]] * 2
    assert listed["usage"] is None


async def test_a_session_is_shown_as_it_stands(client: httpx2.AsyncClient) -> None:
    await create(client, overlay="Be kind.")
    answer = await answer_to(client, "hello")

    shown = (await client.get("/api/sdk/session/s1")).json()
    usage = (await client.get("/api/sdk/session/s1/usage")).json()

    assert shown.pop("last_active_ms") > 0
    assert shown == {
        "session_id": "s1",
        "active_agent_id": "general",
        "scenario_id": "default",
        "title": "hello",
        "state": "idle",
        "last_seq": len(await events(client)),
        "last_run": {"status": "finished", "agent_id": "general", "message_id": answer["reply_to"]},
        "owner": "user:local",
        "overlay": "Be kind.",
        "usage": answer["usage"],
    }
    assert usage == {
        "session_id": "s1",
        "usage": answer["usage"],
        "runs": 1,
        "by_agent": {"general": answer["usage"]},
    }


async def test_the_transcript_is_what_was_said(client: httpx2.AsyncClient) -> None:
    await create(client)
    first = await answer_to(client, "hello")
    await answer_to(client, "weather in Oslo")

    whole = (await client.get("/api/sdk/session/s1/transcript")).json()
    page = (await client.get("/api/sdk/session/s1/transcript", params={"limit": 3})).json()
    rest = (await client.get("/api/sdk/session/s1/transcript", params={"since": page["next_since"]})).json()

    assert [line["role"] for line in whole["messages"]] == ["user", "assistant", "user", "assistant"]
    assert whole["messages"][1]["reply_to"] == first["reply_to"]
    assert (len(page["messages"]), page["has_more"], whole["has_more"]) == (3, True, False)
    assert page["messages"] + rest["messages"] == whole["messages"]


async def test_the_next_message_knows_the_ones_before(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "hello")
    await answer_to(client, "talk to sales")

    shown = (await client.get("/api/sdk/session/s1")).json()
    await answer_to(client, "search for lamps")

    assert shown["active_agent_id"] == "sales"
    handoff = next(event for event in await events(client) if event["type"] == "handoff")
    assert (handoff["agent_id"], handoff["data"]["source"]) == ("sales", "general")
    starts = [record for record in history(bus, "s1") if record["kind"] == "start"]
    assert [start["agent"] for start in starts] == ["general", "general", "sales"]


async def test_a_session_is_deleted_for_good(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "a secret")

    assert (await client.delete("/api/sdk/session/s1")).status_code == 204

    for path in ("", "/events", "/transcript", "/usage", "/stream"):
        assert (await client.get(f"/api/sdk/session/s1{path}")).status_code == 410, path
    assert (await client.post("/api/sdk/session/create", json={"session_id": "s1"})).status_code == 410
    assert (await say(client, "hello")).status_code == 410
    for topic in ("stream:s1", "chat:s1", "history:s1", "chat:general"):
        assert not any("secret" in str(record.payload) for record in whole_log(bus, topic))


async def test_a_session_without_a_title_is_called_by_its_first_message(client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "how deep is the sea?")
    await answer_to(client, "and the lake?")

    (listed,) = (await client.get("/api/sdk/sessions", params={"q": "SEA"})).json()["sessions"]
    whole = (await client.get("/api/sdk/session/s1", params={"format": "record"})).json()

    assert (listed["title"], listed["last_text"], whole["title"]) == (
        "how deep is the sea?",
        "and the lake?",
        "how deep is the sea?",
    )


async def test_a_list_says_which_sessions_wait_for_a_person(client: httpx2.AsyncClient) -> None:
    await create(client)
    await say(client, "refund order 7", wait=False)

    async with asyncio.timeout(DEADLINE_S):
        while (waiting := await _listed(client))["approvals"] == 0:
            await asyncio.sleep(LOOK_AGAIN_S)
    (call,) = (await client.get("/api/sdk/session/s1/approvals")).json()["approvals"]
    await client.post(f"/api/sdk/session/s1/approvals/{call['call_id']}", json={"decision": "approve"})

    async with asyncio.timeout(DEADLINE_S):
        while (decided := await _listed(client))["run_status"] != "finished":
            await asyncio.sleep(LOOK_AGAIN_S)
    assert (waiting["approvals"], decided["approvals"]) == (1, 0)


async def _listed(client: httpx2.AsyncClient) -> dict[str, Any]:
    (found,) = (await client.get("/api/sdk/sessions")).json()["sessions"]
    return dict(found)


async def test_titles_and_search(client: httpx2.AsyncClient) -> None:
    for name in ("one", "two", "three"):
        await create(client, name)
        await answer_to(client, f"about {name}", name)

    named = await client.patch("/api/sdk/session/two", json={"title": "Lamps"})
    again = await client.patch("/api/sdk/session/two", json={"title": "Lamps"})
    by_title = (await client.get("/api/sdk/sessions", params={"q": "LAMP"})).json()
    by_text = (await client.get("/api/sdk/sessions", params={"q": "about"})).json()
    first = (await client.get("/api/sdk/sessions", params={"q": "about", "limit": 1})).json()
    second = (await client.get("/api/sdk/sessions", params={"q": "about", "before": first["next"], "limit": 9})).json()

    assert (named.json()["title"], again.json()["last_seq"]) == ("Lamps", named.json()["last_seq"])
    assert [one["session_id"] for one in by_title["sessions"]] == ["two"]
    assert {one["session_id"] for one in by_text["sessions"]} == {"one", "two", "three"}
    assert [one["session_id"] for one in (*first["sessions"], *second["sessions"])] == [
        one["session_id"] for one in by_text["sessions"]
    ]
