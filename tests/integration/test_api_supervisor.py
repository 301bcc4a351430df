"""`/api/orchestrate` with a supervisor on a real model server: its requests, and the effect of its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.catalogue import Catalogue
from magent2.roster.registry import Registry
from magent2.sessions.store import routing_id
from tests.support.api.sessions import answer_to, api, create, events, team_at_work, until_served
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import roster, team_on
from tests.support.waiting import DEADLINE_S

ASKED = {"session_id": "s1", "last_user_text": "what is the price of this?"}


@asynccontextmanager
async def routed_by(server: ModelServer, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A gateway whose team asks this model; a session with the desk is there."""
    bus = MemoryBus()
    catalogue = Catalogue(Registry.of(roster()), kind="compatible")
    async with team_at_work(bus, runner=team_on(server.url, **options)), api(bus, catalogue=catalogue) as client:
        await create(client)
        await until_served(client)
        yield client
    await bus.aclose()


async def test_the_schema_is_sent_and_the_choice_obeyed_in_the_next_message() -> None:
    route = Reply(calls=[Call("route", {"agent": "shop", "reason": "wants to buy"})])
    with ModelServer([route, Reply("It costs nothing.")]) as server:
        async with routed_by(server) as client:
            chosen = (await client.post("/api/orchestrate", json={**ASKED, "last_user_text": "a lamp"})).json()
            answer = await answer_to(client, "and now?")
    asked, answered = server.requests

    (tool,) = asked["tools"]
    assert (tool["name"], asked["tool_choice"]) == ("route", {"type": "function", "name": "route"})
    assert tool["parameters"]["properties"]["agent"]["enum"] == ["desk", "shop"]
    assert tool["parameters"]["required"] == ["agent", "reason"]
    assert (chosen["chosen_root"], chosen["reason"], chosen["by"]) == ("shop", "wants to buy", "supervisor")
    assert answered["instructions"] == "You are the shop."
    assert answer["final_output"] == "It costs nothing."


async def test_the_call_of_a_decision_is_counted_for_the_supervisor() -> None:
    route = Reply(calls=[Call("route", {"agent": "shop", "reason": "wants to buy"})])
    with ModelServer([route]) as server:
        async with routed_by(server) as client:
            await client.post("/api/orchestrate", json={**ASKED, "last_user_text": "a lamp"})
            usage = (await client.get("/api/usage", params={"by": "agent,conversation"})).json()

    (group,) = usage["groups"]
    assert (group["agent"], group["calls"], group["tokens"] > 0) == ("chief", 1, True)
    assert group["conversation"] == routing_id("s1")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(calls=[Call("route", {"agent": "bakery", "reason": "bread"})]), "unknown_target"),
        (Reply(calls=[Call("route", {"agent": "chief", "reason": "me"})]), "unknown_target"),
        (Reply("The shop, I think."), "no_call"),
        (Reply(calls=[Call("route", {"who": "shop"})]), "bad_call"),
        (Reply("hm hm hm", pause_s=5.0), "timed_out"),
        (Reply(status=500), "model_failed"),
    ],
    ids=["unknown", "itself", "no call", "bad call", "timeout", "failure"],
)
async def test_a_supervisor_that_does_not_decide_falls_back_to_keywords_and_the_message_is_answered(
    reply: Reply, why: str
) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        """By the content of a request, not by its number: one that times out may never arrive."""
        return reply if "route" in str(request.get("tool_choice")) else Reply("Two crowns.")

    with ModelServer(answer) as server:
        # Only the model that is too slow may meet the limit: the others must have time to answer.
        async with routed_by(server, route_max_s=0.3 if why == "timed_out" else DEADLINE_S) as client:
            routed = await client.post("/api/orchestrate", json=ASKED)
            shown = await events(client)
            said = await answer_to(client, "what is the price?")

    chosen = routed.json()
    assert routed.status_code == 200
    assert (chosen["chosen_root"], chosen["changed"]) == ("shop", True)
    assert (chosen["by"], chosen["fallback"]) == ("keywords", why)
    assert [event["agent_id"] for event in shown if event["type"] == "handoff"] == ["shop"]
    assert said["final_output"] == "Two crowns."
