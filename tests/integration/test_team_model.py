"""The requests of team runs, as a real model server receives them over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Read
from magent2.runner.team.runner import TeamRunner
from magent2.sessions.history import AgentSettings
from magent2.tools.builtins import BuiltinTools
from magent2.tools.default_tools import standard_tools
from magent2.worker.lane_run import Outcome
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import CHIEF, DESK, SHOP, active_agent, ask_route, mail, roster, set_session, team_on, work
from tests.support.worker_fixture import outputs, stream
from tests.unit.tools.test_builtins import HERE


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@asynccontextmanager
async def team(server: ModelServer, **options: Any) -> AsyncIterator[TeamRunner]:
    runner = team_on(server.url, **options)
    yield runner
    await runner.aclose()


def tools_in(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool.get("name", tool["type"]): tool for tool in request["tools"]}


def said(request: dict[str, Any]) -> list[str]:
    """What was said, by whom, and what was called, in the order that the model sees it."""
    found = []
    for item in request["input"]:
        if item.get("type") == "function_call":
            found.append(f"call: {item['name']}")
        elif item.get("type") == "function_call_output":
            found.append("result")
        else:
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            found.append(f"{item['role']}: {text}")
    return found


# --- instructions, models, tools


async def test_instructions_model_and_schemas_are_those_of_the_agent(bus: MemoryBus) -> None:
    mail(bus, "hello")
    with ModelServer([Reply("Hi.")]) as server:
        async with team(server) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED
    (request,) = server.requests

    assert request["model"] == "any-model"
    assert request["instructions"] == "You are the desk."
    assert said(request) == ["user: hello"]
    sent = tools_in(request)
    assert set(sent) == {"weather", "echo_context", "transfer_to_shop"}
    for name in ("weather", "echo_context"):
        spec = standard_tools().get(name)
        assert sent[name]["parameters"] == spec.params_schema
        assert sent[name]["description"] == spec.description
    assert "Sells things." in sent["transfer_to_shop"]["description"]


async def test_a_session_has_its_own_instructions_model_and_overlay(bus: MemoryBus) -> None:
    changes: dict[str, AgentSettings] = {"desk": {"instructions": "You are a pirate.", "model": "pirate-model"}}
    set_session(bus, {"scenario_id": "house", "agents": changes, "overlay": "Answer in Norwegian."})
    mail(bus, "hello")
    with ModelServer([Reply(calls=[Call("transfer_to_shop")]), Reply("Hei.")]) as server:
        async with team(server) as runner:
            await work(bus, runner)
    first, second = server.requests

    assert (first["model"], first["instructions"]) == ("pirate-model", "You are a pirate.\n\nAnswer in Norwegian.")
    assert (second["model"], second["instructions"]) == ("shop-model", "You are the shop.\n\nAnswer in Norwegian.")
    assert set(tools_in(second)) == {"product_search", "chat_send", "transfer_to_desk"}


async def test_a_setting_counts_from_the_next_message(bus: MemoryBus) -> None:
    with ModelServer([Reply("1"), Reply("2"), Reply("3")]) as server:
        async with team(server) as runner:
            for overlay in ("Be brief.", "Be long.", ""):
                set_session(bus, {"scenario_id": "house", "agents": {}, "overlay": overlay})
                mail(bus, "hello")
                await work(bus, runner)

    assert [request["instructions"].partition("\n\n")[2] for request in server.requests] == [
        "Be brief.",
        "Be long.",
        "",
    ]


async def test_an_agent_of_another_scenario_keeps_its_own_settings(bus: MemoryBus) -> None:
    set_session(bus, {"scenario_id": "house", "agents": {}, "overlay": "Answer in Norwegian."})
    mail(bus, "hello", "desk")
    mail(bus, "and you?", "stranger")
    with ModelServer([Reply("Hi."), Reply("Ho.")]) as server:
        async with team(server) as runner:
            await work(bus, runner, "desk")
            await work(bus, runner, "stranger")

    assert server.requests[1]["instructions"] == "You are from elsewhere."
    assert said(server.requests[1]) == ["user: and you?"]


# --- built-in tools


async def test_a_hosted_tool_is_sent_where_it_can_be_taken_with_a_limit(bus: MemoryBus) -> None:
    mail(bus, "hello")
    with ModelServer([Reply("Hi.")]) as server:
        async with team(server, kind="openai", builtins=BuiltinTools(calls_max=3)) as runner:
            await work(bus, runner)
    (request,) = server.requests

    assert tools_in(request)["web_search"] == {
        "type": "web_search",
        "search_context_size": "low",
        "user_location": None,
        "filters": None,
    }
    assert request["max_tool_calls"] == 3


async def test_a_hosted_tool_is_given_only_to_agents_that_name_it(bus: MemoryBus) -> None:
    mail(bus, "I want to buy")
    with ModelServer([Reply(calls=[Call("transfer_to_shop")]), Reply("What?")]) as server:
        async with team(server, kind="openai") as runner:
            await work(bus, runner)
    desk, shop = server.requests

    assert "web_search" in tools_in(desk)
    assert "web_search" not in tools_in(shop)
    assert "max_tool_calls" not in shop


async def test_a_model_of_another_provider_gets_none_and_still_answers(bus: MemoryBus) -> None:
    mail(bus, "hello")
    with ModelServer([Reply("Hi.")]) as server:
        async with team(server, kind="compatible") as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    assert "web_search" not in tools_in(server.requests[0])
    assert "max_tool_calls" not in server.requests[0]


async def test_a_shell_of_the_operator_is_run_for_the_model(bus: MemoryBus) -> None:
    builtins = BuiltinTools(frozenset({"LocalShellTool"}), {"LOCAL_SHELL_TOOL": HERE})
    desk = replace(DESK, tools=("LocalShellTool", "ComputerTool"))
    mail(bus, "list the files")
    with ModelServer([Reply(calls=[Call("local_shell", {"command": ["ls", "-l"]})]), Reply("None.")]) as server:
        async with team(server, who=roster(desk, SHOP), builtins=builtins) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    assert "local_shell" in tools_in(server.requests[0])
    assert "computer" not in tools_in(server.requests[0])
    assert server.requests[1]["input"][-1]["output"] == "ran ls -l"


# --- history


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"reason": "It is about\\n a price."}', "It is about a price."),
        ("{}", None),  # a response that was recorded by an earlier release, or a model that ignores the schema
        ('{"reason": 7}', None),
        ("not JSON", None),
        ('{"reason": "\\ud800' + "x" * 400 + '"}', "?" + "x" * 298 + "…"),
    ],
)
async def test_a_handoff_has_the_reason_that_the_model_gives(
    bus: MemoryBus, arguments: str, reason: str | None
) -> None:
    mail(bus, "what does it cost?")
    with ModelServer([Reply(calls=[Call("transfer_to_shop", arguments)]), Reply("Five.")]) as server:
        runner = team_on(server.url)
        assert await work(bus, runner) is Outcome.ANSWERED
        await runner.aclose()

    transfer = next(tool for tool in server.requests[0]["tools"] if tool["name"] == "transfer_to_shop")
    assert transfer["parameters"]["required"] == ["reason"]
    (event,) = (event for event in stream(bus) if event["event"] == "handoff")
    assert event.get("reason") == reason
    assert outputs(bus) == ["Five."]


async def test_a_handoff_moves_the_conversation_and_the_next_agent_knows_all_of_it(bus: MemoryBus) -> None:
    replies = [Reply(calls=[Call("transfer_to_shop", id="h1")]), Reply("What do you need?"), Reply("Lamps, yes.")]
    mail(bus, "I want to buy")
    with ModelServer(replies) as server:
        async with team(server) as runner:
            await work(bus, runner, "desk")
            assert active_agent(bus) == "shop"
            mail(bus, "a lamp", recipient="chat:one")
            await work(bus, runner, "shop")

    handoffs = [(event["source"], event["target"]) for event in stream(bus) if event["event"] == "handoff"]
    assert handoffs == [("desk", "shop")]
    assert said(server.requests[2]) == [
        "user: I want to buy",
        "call: transfer_to_shop",
        "result",
        "assistant: What do you need?",
        "user: a lamp",
    ]
    assert server.requests[2]["instructions"] == "You are the shop."


async def test_tools_and_their_results_are_remembered_across_agents_and_runs(bus: MemoryBus) -> None:
    replies = [Reply(calls=[Call("weather", {"city": "Oslo"}, id="w1")]), Reply("Cold."), Reply("Coats, then.")]
    with ModelServer(replies) as server:
        async with team(server) as runner:
            mail(bus, "weather?", "desk")
            await work(bus, runner, "desk")
            mail(bus, "what do you sell?", "shop")
            await work(bus, runner, "shop")

    result = next(item for item in server.requests[1]["input"] if item.get("type") == "function_call_output")
    assert "offline" in result["output"]
    assert said(server.requests[2]) == [
        "user: weather?",
        "call: weather",
        "result",
        "assistant: Cold.",
        "user: what do you sell?",
    ]


async def test_what_a_tool_returns_as_an_object_reaches_the_model_as_json(bus: MemoryBus) -> None:
    mail(bus, "weather?")
    with ModelServer([Reply(calls=[Call("weather", {"city": "Oslo"})]), Reply("Cold.")]) as server:
        async with team(server) as runner:
            await work(bus, runner)

    result = next(item for item in server.requests[1]["input"] if item.get("type") == "function_call_output")
    assert json.loads(result["output"])["city"] == "Oslo"


async def test_arguments_that_do_not_fit_are_explained_to_the_model(bus: MemoryBus) -> None:
    mail(bus, "weather?")
    with ModelServer([Reply(calls=[Call("weather", {"town": "Oslo"})]), Reply("Sorry.")]) as server:
        async with team(server) as runner:
            await work(bus, runner)

    result = next(item for item in server.requests[1]["input"] if item.get("type") == "function_call_output")
    assert "the arguments do not fit tool 'weather'" in result["output"]
    assert outputs(bus) == ["Sorry."]
    assert [event["status"] for event in stream(bus) if event["event"] == "tool_step"] == ["start", "error"]


async def test_what_a_tool_sends_goes_out_with_its_result(bus: MemoryBus) -> None:
    call = Call("chat_send", {"recipient": "agent:desk", "content": "a buyer"})
    mail(bus, "tell the desk", "shop")
    with ModelServer([Reply(calls=[call]), Reply("Done."), Reply("Thanks.")]) as server:
        async with team(server) as runner:
            await work(bus, runner, "shop")
            await work(bus, runner, "desk")

    assert said(server.requests[2])[-1] == "user: [agent:shop]: a buyer"


# --- the supervisor


async def test_a_supervisor_is_made_to_route_and_is_obeyed(bus: MemoryBus) -> None:
    ask_route(bus, "where is my parcel", current="desk")
    call = Call("route", {"agent": "shop", "reason": "orders"})
    with ModelServer([Reply(calls=[call])]) as server:
        async with team(server) as runner:
            assert await work(bus, runner, "chief") is Outcome.ANSWERED
    (request,) = server.requests

    assert request["tool_choice"] == {"type": "function", "name": "route"}
    assert list(tools_in(request)) == ["route"]
    assert tools_in(request)["route"]["parameters"]["properties"]["agent"]["enum"] == ["desk", "shop"]
    assert "desk has the conversation now" in tools_in(request)["route"]["description"]
    assert request["instructions"] == "You route."
    assert said(request) == ["user: where is my parcel"]
    (text,) = outputs(bus, "routing")
    choice = json.loads(text)
    assert (choice["agent"], choice["reason"], choice["changed"], choice["by"]) == (
        "shop",
        "orders",
        True,
        "supervisor",
    )
    assert outputs(bus, "one") == []


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply("The shop, I think."), "no_call"),
        (Reply(calls=[Call("route", {"agent": "bakery", "reason": "bread"})]), "unknown_target"),
        (Reply(calls=[Call("route", {"who": "shop"})]), "bad_call"),
        (Reply(status=500), "model_failed"),
        (Reply(status=401), "model_failed"),
    ],
)
async def test_a_supervisor_that_does_not_decide_leaves_it_to_the_keywords(
    bus: MemoryBus, reply: Reply, why: str
) -> None:
    ask_route(bus, "what is the price of this", current="desk")
    with ModelServer([reply]) as server:
        async with team(server) as runner:
            assert await work(bus, runner, "chief") is Outcome.ANSWERED

    (text,) = outputs(bus, "routing")
    choice = json.loads(text)
    assert (choice["agent"], choice["changed"], choice["by"], choice["fallback"]) == ("shop", True, "keywords", why)


async def test_a_supervisor_that_takes_too_long_leaves_it_to_the_keywords(bus: MemoryBus) -> None:
    ask_route(bus, "what is the price of this")
    with ModelServer([Reply("hm hm", pause_s=20.0)]) as server:
        async with team(server, route_max_s=0.2) as runner:
            await work(bus, runner, "chief")

    (text,) = outputs(bus, "routing")
    assert json.loads(text)["fallback"] == "timed_out"


async def test_a_supervisor_remembers_its_own_decisions_and_no_other_messages(bus: MemoryBus) -> None:
    replies = [Reply(calls=[Call("route", {"agent": "shop", "reason": "r"}, id=f"r{n}")]) for n in range(2)]
    with ModelServer([Reply("Hi."), *replies]) as server:
        async with team(server) as runner:
            mail(bus, "hello", "desk")
            await work(bus, runner, "desk")
            for text in ("first", "second"):
                ask_route(bus, text)
                await work(bus, runner, "chief")

    assert said(server.requests[2]) == ["user: first", "call: route", "result", "user: second"]


async def test_the_roster_is_asked_anew_for_each_run(bus: MemoryBus) -> None:
    now = [roster()]
    with ModelServer([Reply("1"), Reply("2")]) as server:
        async with team(server, who=lambda: now[0]) as runner:
            mail(bus, "hello")
            await work(bus, runner)
            now[0] = roster(CHIEF, replace(DESK, instructions="You are new here.", tools=("weather",)), SHOP)
            mail(bus, "hello")
            await work(bus, runner)

    assert [request["instructions"] for request in server.requests] == ["You are the desk.", "You are new here."]
    assert "echo_context" not in tools_in(server.requests[1])


# --- options of one message


async def test_the_options_of_a_message_reach_the_model_in_its_own_run_only(bus: MemoryBus) -> None:
    items = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, user("three")]
    settings = {"temperature": 0.5, "top_p": 0.25, "max_tokens": 99, "reasoning_effort": "low", "verbosity": "high"}
    options = {"instructions": "Be brief.", "input": items, "model_settings": settings}
    mail(bus, "shown to people", metadata={"run_options": options})
    mail(bus, "and then?")
    with ModelServer([Reply("ok"), Reply("ok")]) as server:
        async with team(server) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED
            assert await work(bus, runner) is Outcome.ANSWERED

    first, second = server.requests
    assert first["instructions"] == "You are the desk.\n\nBe brief."
    assert said(first) == ["user: one", "assistant: two", "user: three"]
    assert (first["temperature"], first["top_p"], first["max_output_tokens"]) == (0.5, 0.25, 99)
    assert (first["reasoning"], first["text"]["verbosity"]) == ({"effort": "low"}, "high")
    assert second["instructions"] == "You are the desk."
    assert said(second) == [*said(first), "assistant: ok", "user: and then?"]
    assert not {"temperature", "top_p", "max_output_tokens", "reasoning"} & second.keys()


async def test_options_that_cannot_be_used_make_the_mail_a_dead_letter(bus: MemoryBus) -> None:
    mail(bus, "hello", metadata={"run_options": {"colour": "red"}})
    with ModelServer([]) as server:
        async with team(server) as runner:
            assert await work(bus, runner) is Outcome.BURIED

    (letter,) = bus.call(Read("dead:desk")).records
    assert "run_options.colour" in letter.payload["reason"]
    assert server.requests == []


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}
