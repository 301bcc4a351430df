"""All processes restart during a conversation: the history is kept, and old cursors still work."""

from __future__ import annotations

from typing import Any

from magent2.bus.connect import connect
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.roster.registry import Registry
from tests.support.api.sessions import (
    answer_to,
    api,
    api_on_socket,
    create,
    events,
    everything,
    frames,
    say,
    team_at_work,
    until_served,
)
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import roster, team_on


def inputs(request: dict[str, Any]) -> list[str]:
    """What a model was shown, as texts."""
    return [str(item.get("content", item)) for item in request["input"]]


async def test_the_next_message_continues_with_the_whole_history(log_url: str) -> None:
    with ModelServer([Reply("I am Ada."), Reply("I said that I am Ada.")]) as server:
        bus = connect(log_url)
        catalogue = Catalogue(Registry.of(roster()))
        async with team_at_work(bus, runner=team_on(server.url)), api(bus, catalogue=catalogue) as client:
            await create(client, instructions="Be a pirate.", overlay="Be kind.")
            await answer_to(client, "who are you?", client_message_id="m1")
            cursor = (await client.get("/api/sdk/session/s1")).json()["last_seq"]
        await bus.aclose()

        bus = connect(log_url)
        async with team_at_work(bus, runner=team_on(server.url)), api(bus, catalogue=catalogue) as client:
            again = await answer_to(client, "who are you?", client_message_id="m1")
            answer = await answer_to(client, "what did you say?", client_message_id="m2")
            rest = await events(client, since=cursor)
        await bus.aclose()

    first, second = server.requests
    assert again["final_output"] == "I am Ada."
    assert "Be a pirate." in second["instructions"]
    assert "Be kind." in second["instructions"]
    assert len(inputs(first)) == 1
    assert "who are you?" in inputs(second)[0]
    assert "I am Ada." in inputs(second)[1]
    assert [event["seq"] for event in rest] == list(range(cursor + 1, cursor + 1 + len(rest)))
    assert rest[0]["message_id"] == answer["reply_to"]


async def test_a_message_that_was_waiting_is_answered_after_the_restart(log_url: str) -> None:
    bus = connect(log_url)
    async with api(bus, GatewayLimits(wait_max_s=0.01)) as client:
        await create(client)
        assert (await say(client, "hello", client_message_id="m1")).status_code == 202
    await bus.aclose()

    bus = connect(log_url)
    async with team_at_work(bus), api(bus) as client:
        assert (await answer_to(client, "hello", client_message_id="m1"))["final_output"] == "hello"
    await bus.aclose()


async def test_a_follower_goes_on_with_its_old_cursor(log_url: str) -> None:
    bus = connect(log_url)
    async with team_at_work(bus), api_on_socket(bus) as client:
        await create(client)
        await answer_to(client, "hello")
        seen = await events(client)
    await bus.aclose()

    bus = connect(log_url)
    async with team_at_work(bus), api_on_socket(bus) as client:
        cursor = f"s1:{seen[-1]['seq']}"
        async with client.stream(
            "GET", "/api/stream", params={"session": "s1:0"}, headers={"Last-Event-ID": cursor}
        ) as stream:
            await answer_to(client, "and again")
            async for number, _, data in frames(stream):
                if number is not None:
                    seen.append(data)
                    if data["type"] == "run" and data["final"]:
                        break
        expected = await events(client)
    await bus.aclose()

    assert seen == expected


async def test_the_decision_of_a_supervisor_is_applied(log_url: str) -> None:
    """On a real model server: the schema is sent, the choice followed, and the session's log shows only the handoff."""
    route = Reply(calls=[Call("route", {"agent": "shop", "reason": "wants to buy"})])
    with ModelServer([route, Reply("no idea"), route]) as server:
        bus = connect(log_url)
        catalogue = Catalogue(Registry.of(roster()), kind="compatible")
        async with team_at_work(bus, runner=team_on(server.url)), api(bus, catalogue=catalogue) as client:
            await create(client)
            await until_served(client)
            asked = {"session_id": "s1", "last_user_text": "I would like a lamp"}
            chosen = (await client.post("/api/orchestrate", json=asked)).json()
            second = (await client.post("/api/orchestrate", json={**asked, "last_user_text": "weather?"})).json()
            found = await events(client)
            listed = (await client.get("/api/sdk/sessions")).json()["sessions"]
            await client.delete("/api/sdk/session/s1")
            alone = (await client.post("/api/orchestrate", json={"last_user_text": "a red lamp"})).json()
        leftovers = await everything(bus)
        await bus.aclose()

    (tool,) = server.requests[0]["tools"]
    assert tool["parameters"]["properties"]["agent"]["enum"] == ["desk", "shop"]
    assert (chosen["chosen_root"], chosen["by"], chosen["changed"]) == ("shop", "supervisor", True)
    assert (second["chosen_root"], second["fallback"]) == ("desk", "no_call")
    assert "I would like a lamp" in str(server.requests[1]["input"])
    assert [(event["type"], event["agent_id"]) for event in found[1:]] == [("handoff", "shop"), ("handoff", "desk")]
    assert [one["session_id"] for one in listed] == ["s1"]
    assert (alone["chosen_root"], alone["by"]) == ("shop", "supervisor")
    assert "lamp" not in leftovers
