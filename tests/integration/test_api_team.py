"""Tools, routing, stopping and retrying over HTTP, with a running team, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.mail.delivery import SendOptions
from magent2.models.envelope import MessageEnvelope
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import Roster
from magent2.runner.demo.model import DemoModel
from magent2.runner.team.runner import TeamRunner
from magent2.sessions.store import SessionStore, routing_id
from magent2.tools.default_tools import STANDARD
from magent2.tools.registry import ToolRegistry, tool
from tests.support.api.sessions import answer_to, api, create, events, say, team_at_work, types, until_served
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.worker_fixture import history, stream, until


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture
async def client(bus: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    async with team_at_work(bus), api(bus) as client:
        yield client


async def execute(client: httpx2.AsyncClient, tool: str, key: str | None = None, **args: object) -> httpx2.Response:
    keyed = {} if key is None else {"client_message_id": key}
    return await client.post("/api/tools/execute", json={"session_id": "s1", "tool": tool, "args": args, **keyed})


# --- tools


async def test_a_tool_is_run_by_name_and_leaves_its_events(bus: Engine, client: httpx2.AsyncClient) -> None:
    await create(client)

    answer = await execute(client, "weather", city="Oslo")

    done = answer.json()
    assert (answer.status_code, done["status"], done["agent_id"]) == (200, "success", "general")
    assert "Oslo" in done["result"]
    assert types(done["events"]) == ["run", "tool_call", "tool_result", "output", "run"]
    assert types(await events(client)) == ["session", *types(done["events"])]
    (start,) = [record for record in history(bus, "s1") if record["kind"] == "start"]
    assert start["spec"]["kind"] == "tool"


async def test_a_manual_tool_run_is_not_part_of_the_history(client: httpx2.AsyncClient) -> None:
    await create(client)
    await execute(client, "weather", city="Oslo")

    transcript = (await client.get("/api/sdk/session/s1/transcript")).json()
    shown = (await client.get("/api/sdk/session/s1")).json()

    assert transcript["messages"] == []
    assert shown["title"] is None


async def test_the_allowlist_of_the_active_agent_counts(client: httpx2.AsyncClient) -> None:
    await create(client)

    refused = await execute(client, "product_search", query="lamps")
    await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "sales"})
    allowed = await execute(client, "product_search", query="lamps")

    assert (refused.status_code, refused.json()["code"]) == (403, "tool_not_allowed")
    assert allowed.status_code == 200


async def test_a_tool_is_run_once_per_key_and_a_repeat_gets_its_result(client: httpx2.AsyncClient) -> None:
    await create(client)

    answers = await asyncio.gather(*(execute(client, "weather", "k1", city="Oslo") for _ in range(10)))
    later = await execute(client, "weather", "k1", city="Oslo")

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.text for answer in answers} == {later.text}
    assert types(await events(client)).count("tool_call") == 1


async def test_another_call_under_the_same_key_is_a_conflict(client: httpx2.AsyncClient) -> None:
    await create(client)
    await execute(client, "weather", "k1", city="Oslo")
    await answer_to(client, "hello", client_message_id="k2")

    refusals = [
        await execute(client, "weather", "k1", city="Rome"),
        await execute(client, "echo_context", "k1"),
        await execute(client, "weather", "k2", city="Oslo"),
        await say(client, "hello", client_message_id="k1"),
    ]

    assert [(answer.status_code, answer.json()["code"]) for answer in refusals] == [(409, "id_conflict")] * 4


async def test_a_repeat_gets_the_result_of_the_agent_that_was_active_then(client: httpx2.AsyncClient) -> None:
    await create(client)
    first = await execute(client, "weather", "k1", city="Oslo")
    await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "sales"})

    again = await execute(client, "weather", "k1", city="Oslo")

    assert (again.status_code, again.json()) == (200, first.json())


async def test_a_repeated_call_without_a_result_is_in_progress(bus: Engine) -> None:
    async with api(bus, GatewayLimits(wait_max_s=0.01)) as client:
        await create(client)
        told = [await execute(client, "weather", "k1", city="Oslo") for _ in range(2)]
    async with team_at_work(bus), api(bus) as client:
        done = await execute(client, "weather", "k1", city="Oslo")
        shown = types(await events(client))

    assert [(answer.status_code, answer.json()["status"]) for answer in told] == [(202, "in_progress")] * 2
    assert told[0].json() == told[1].json()
    assert (done.status_code, done.json()["message_id"]) == (200, told[0].json()["message_id"])
    assert shown.count("tool_call") == 1


# --- routing


async def orchestrate(client: httpx2.AsyncClient, **fields: object) -> httpx2.Response:
    return await client.post("/api/orchestrate", json={"scenario_id": "default", **fields})


async def test_routing_hands_over_once_and_says_why(client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "my printer is broken and gives an error")

    first = (await orchestrate(client, session_id="s1")).json()
    second = (await orchestrate(client, session_id="s1")).json()

    assert (first["chosen_root"], first["changed"], second["changed"]) == ("support", True, False)
    assert set(first["evidence"]["support"]) == {"broken", "error"}
    assert first["scores"]["support"] > first["scores"]["sales"]
    (handoff,) = [event for event in await events(client) if event["type"] == "handoff"]
    assert (handoff["agent_id"], handoff["reason"]) == ("support", first["reason"])


async def test_the_next_message_goes_to_the_agent_that_was_chosen(client: httpx2.AsyncClient) -> None:
    await create(client)
    await orchestrate(client, session_id="s1", last_user_text="how much is it, is there a discount?")

    answer = await answer_to(client, "hello")

    assert {event["agent_id"] for event in answer["events"] if event["role"] == "assistant"} == {"sales"}


async def test_many_switches_at_once_leave_a_chain_of_handoffs(client: httpx2.AsyncClient) -> None:
    await create(client)
    names = ["sales", "support", "general"] * 4

    await asyncio.gather(
        *(
            client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": name})
            for name in names
        )
    )

    handoffs = [event for event in await events(client) if event["type"] == "handoff"]
    sources = [event["data"]["source"] for event in handoffs]
    targets = [event["agent_id"] for event in handoffs]
    assert sources == ["general", *targets[:-1]]
    assert (await client.get("/api/sdk/session/s1")).json()["active_agent_id"] == targets[-1]


async def test_a_supervisor_without_a_model_leaves_it_to_the_keywords(bus: Engine) -> None:
    """A gateway that does not know what its workers have asks them; they decide in a history of its own."""
    async with team_at_work(bus), api(bus, catalogue=Catalogue()) as client:
        await create(client)
        await until_served(client)
        chosen = (await orchestrate(client, session_id="s1", last_user_text="it is broken")).json()
        listed = (await client.get("/api/sdk/sessions")).json()["sessions"]

    assert (chosen["chosen_root"], chosen["by"], chosen["fallback"]) == ("support", "keywords", "no_model")
    assert [one["session_id"] for one in listed] == ["s1"]
    assert types(await _events_of(bus)) == ["session", "handoff"]


async def test_starting_the_routing_conversation_of_another_user_reveals_nothing(bus: Engine) -> None:
    trap = routing_id("s1")
    mail = MessageEnvelope(conversation_id=trap, sender="user:eve", recipient="agent:nobody", content="mine")
    await SessionStore(bus).post(mail, SendOptions(principal="user:eve"))
    async with team_at_work(bus), api(bus, catalogue=Catalogue()) as client:
        await create(client)
        await until_served(client)
        chosen = (await orchestrate(client, session_id="s1", last_user_text="it is broken")).json()

    assert chosen["chosen_root"] == "support"
    assert "it is broken" not in str([record.payload for record in bus.read(f"chat:{trap}")])
    assert "it is broken" not in str([record.payload for record in bus.read(f"stream:{trap}")])


async def _events_of(bus: Engine) -> list[dict[str, Any]]:
    async with api(bus) as client:
        return await events(client)


# --- stop and retry


def slow_team() -> tuple[Roster, TeamRunner, asyncio.Event, asyncio.Event]:
    """The default team, with a tool that waits until it is let go."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return "waited"

    roster = default_roster()
    general = replace(roster.agent(None, "general"), tools=("wait",))
    registry = ToolRegistry([*STANDARD, wait])
    changed = roster.with_agent(general)
    return changed, TeamRunner(changed, registry, kind="demo", model=DemoModel()), begun, go


async def test_stop_now_ends_a_run_inside_a_tool(bus: Engine) -> None:
    roster, runner, begun, _ = slow_team()
    async with team_at_work(bus, runner=runner), api(bus, catalogue=Catalogue(Registry.of(roster))) as client:
        await create(client)
        asking = asyncio.create_task(say(client, "use wait {}"))
        await asyncio.wait_for(begun.wait(), 10)
        stopping = await client.post("/api/sdk/session/s1/stop")
        answer = await asking

    told = stopping.json()
    assert told.pop("receipt_id") in str(stream(bus, "s1"))
    assert told == {"status": "accepted", "session_id": "s1", "agent_id": "general", "mode": "now"}
    assert (answer.status_code, answer.json()["code"]) == (409, "run_stopped")


async def test_stop_after_turn_lets_the_turn_end_and_asks_no_more(bus: Engine) -> None:
    roster, runner, begun, go = slow_team()
    catalogue = Catalogue(Registry.of(roster))
    async with team_at_work(bus, runner=runner) as service, api(bus, catalogue=catalogue) as client:
        await create(client)
        asking = asyncio.create_task(say(client, "use wait {}"))
        await asyncio.wait_for(begun.wait(), 10)
        assert (await client.post("/api/sdk/session/s1/stop", json={"mode": "after_turn"})).status_code == 202
        await until(
            lambda: service.lane_loop.by_lane["general", "s1"]._mail.new_commands
        )  # a command is heard when it is heard
        go.set()
        answer = await asking
        found = await events(client)

    kinds = [record["kind"] for record in history(bus, "s1")]
    assert (answer.status_code, answer.json()["code"]) == (409, "run_stopped")
    assert kinds == ["settings", "start", "answer", "tool", "end"]
    assert types(found)[-3:] == ["tool_result", "message_received", "run"]


async def test_a_stopped_message_is_asked_again_once(bus: Engine) -> None:
    roster, runner, begun, go = slow_team()
    async with team_at_work(bus, runner=runner), api(bus, catalogue=Catalogue(Registry.of(roster))) as client:
        await create(client)
        asking = asyncio.create_task(say(client, "use wait {}", client_message_id="m1"))
        await asyncio.wait_for(begun.wait(), 10)
        await client.post("/api/sdk/session/s1/stop", json={})
        stopped = (await asking).json()
        go.set()

        retries = [
            await client.post("/api/sdk/session/s1/retry", json={"message_id": stopped["reply_to"]}) for _ in range(2)
        ]
        async with asyncio.timeout(10):
            while (await client.get("/api/sdk/session/s1/usage")).json()["runs"] < 2:
                await asyncio.sleep(0.02)
        again = await client.post("/api/sdk/session/s1/retry", json={"message_id": retries[0].json()["message_id"]})

    assert [retry.status_code for retry in retries] == [202, 202]
    assert retries[0].json() == retries[1].json()
    assert len([record for record in history(bus, "s1") if record["kind"] == "start"]) == 2
    assert (again.status_code, again.json()["code"]) == (409, "not_retryable")


async def test_a_failed_message_is_revived(bus: Engine) -> None:
    """A run whose tool cannot be had fails; once it can, the same message is answered."""
    roster = default_roster()
    async with team_at_work(bus, runner=TeamRunner(roster, kind="compatible", model="no-such")), api(bus) as client:
        await create(client)
        failed = await say(client, "hello", client_message_id="m1")
    async with api(bus) as client:  # without a worker, which could start the run between the two retries
        revived, again = [
            await client.post("/api/sdk/session/s1/retry", json={"message_id": failed.json()["reply_to"]})
            for _ in range(2)
        ]
    async with team_at_work(bus), api(bus) as client:
        answer = await answer_to(client, "hello", client_message_id="m1")

    assert (failed.status_code, failed.json()["code"]) == (502, "run_failed")
    assert (revived.status_code, revived.json()["message_id"]) == (202, failed.json()["reply_to"])
    assert answer["final_output"] == "hello"
    assert again.json() == revived.json()
    assert len([record for record in history(bus, "s1") if record["kind"] == "start"]) == 1
