"""The team's runner: pinned specifications, takeovers, tools that no longer exist, and the demo and echo kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.models.envelope import MessageEnvelope, OutputEvent
from magent2.roster.agents_file import default_roster
from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_team
from magent2.runner.team.graph import GRAPHS_MAX
from magent2.runner.team.runner import TeamRunner
from magent2.tools.builtins import BuiltinTools
from magent2.tools.default_tools import standard_tools
from magent2.tools.registry import tool
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CrashingBus
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.runners import GatedRunner
from tests.support.team import (
    CHIEF,
    DESK,
    SHOP,
    active_agent,
    ask_route,
    mail,
    replace_tools,
    roster,
    set_session,
    team_on,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import history, outputs, stream


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


# --- pinned


async def test_a_run_that_is_taken_over_keeps_its_pinned_spec(bus: MemoryBus) -> None:
    set_session(bus, {"scenario_id": "house", "agents": {}, "overlay": "Old overlay."})
    mail(bus, "weather?")
    now = [roster()]
    replies = [Reply(calls=[Call("weather", {"city": "Oslo"})]), Reply("never read"), Reply("Cold.")]
    with ModelServer(replies) as server:
        first, second = (team_on(server.url, lambda: now[0]) for _ in range(2))
        assert await work_until_crash(CrashingBus(bus, on="end"), first)
        now[0] = roster(CHIEF, replace(DESK, instructions="New.", tools=()), SHOP)
        set_session(bus, {"scenario_id": "house", "agents": {}, "overlay": "New overlay."})

        assert await work(bus, second) is Outcome.ANSWERED
        await first.aclose()
        await second.aclose()

    last = server.requests[-1]
    assert len(server.requests) == 3
    assert last["instructions"] == "You are the desk.\n\nOld overlay."
    assert "weather" in {tool["name"] for tool in last["tools"]}
    assert outputs(bus) == ["Cold."]


async def test_the_start_of_a_run_holds_its_spec(bus: MemoryBus) -> None:
    mail(bus, "hello")
    runner = TeamRunner(roster(), kind="echo")
    await work(bus, runner)

    spec = history(bus)[0]["spec"]
    assert spec["scenario_id"] == "house"
    assert set(spec["agents"]) == {"desk", "shop"}
    assert spec["agents"]["desk"]["tools"] == list(DESK.tools)


async def test_the_result_of_a_removed_tool_is_still_used(bus: MemoryBus) -> None:
    @tool
    def dig() -> str:
        """Dig."""
        return "a bone"

    tools = standard_tools()
    tools.register(dig)
    who = roster(replace_tools(DESK, "dig"))
    mail(bus, "dig!")
    with ModelServer([Reply(calls=[Call("dig")]), Reply("x"), Reply("A bone.")]) as server:
        first, second = team_on(server.url, who, tools=tools), team_on(server.url, who)
        assert await work_until_crash(CrashingBus(bus, on="tool", after=True), first)

        assert await work(bus, second) is Outcome.ANSWERED
        await first.aclose()
        await second.aclose()

    shown = [item for item in server.requests[-1]["input"] if item.get("type") == "function_call_output"]
    assert [item["output"] for item in shown] == ["a bone"]


async def test_a_handoff_is_on_the_head_once_it_is_recorded(bus: MemoryBus) -> None:
    mail(bus, "sell me something")
    with ModelServer([Reply(calls=[Call("transfer_to_shop")]), Reply("Gladly."), Reply("Gladly.")]) as server:
        first, second = team_on(server.url), team_on(server.url)
        assert await work_until_crash(CrashingBus(bus, on="end"), first)
        await work(bus, second)
        await first.aclose()
        await second.aclose()

    assert active_agent(bus) == "shop"
    assert len([event for event in stream(bus) if event["event"] == "handoff"]) == 1
    assert [event["agent"] for event in stream(bus) if event["event"] == "output"] == ["shop"]


async def test_a_run_that_another_runner_started_gets_the_current_spec(bus: MemoryBus) -> None:
    mail(bus, "hello")
    assert await work_until_crash(CrashingBus(bus, on="start", after=True), GatedRunner())
    assert history(bus)[0]["spec"] == {}

    assert await work(bus, TeamRunner(roster(), kind="echo")) is Outcome.ANSWERED

    assert outputs(bus) == ["hello"]


# --- models that are none


async def test_without_a_model_the_keywords_decide_for_the_supervisor(bus: MemoryBus) -> None:
    ask_route(bus, "what is the price?", current="desk")
    await work(bus, TeamRunner(roster(), kind="demo"), "chief")

    (text,) = outputs(bus, "routing")
    choice = json.loads(text)
    assert (choice["agent"], choice["changed"], choice["fallback"]) == ("shop", True, "no_model")


@pytest.mark.parametrize(
    ("agent", "text", "name", "part"),
    [
        ("general", "What's the weather in Oslo?", "weather", "not a forecast"),
        ("general", "echo context here I am", "echo_context", "here I am"),
        ("sales", "search for red shoes", "product_search", "Red running shoes"),
    ],
)
async def test_the_default_team_can_be_seen_offline(
    bus: MemoryBus, agent: str, text: str, name: str, part: str
) -> None:
    runner = select_team(default_roster(), "demo", RunnerConfig(), builtins=BuiltinTools())
    mail(bus, text, agent)
    await work(bus, runner, agent)

    assert [event["name"] for event in stream(bus) if event["event"] == "tool_step"] == [name, name]
    assert part in outputs(bus)[0]


async def test_the_demo_team_hands_over_offline(bus: MemoryBus) -> None:
    runner = select_team(default_roster(), "demo", RunnerConfig(), builtins=BuiltinTools())
    mail(bus, "talk to sales", "general")
    await work(bus, runner, "general")
    mail(bus, "search for a lamp", recipient="chat:one")
    await work(bus, runner, "sales")

    assert active_agent(bus) == "sales"
    assert outputs(bus)[0] == "sales here. What can I do for you?"
    assert "Reading lamp" in outputs(bus)[1]


def test_which_models_a_team_is_on() -> None:
    def kind(**config: str) -> str:
        return select_team(roster(), config=RunnerConfig(**config), builtins=BuiltinTools()).kind  # type: ignore[arg-type]

    assert kind() == "echo"
    assert kind(api_key="any") == "openai"  # pragma: allowlist secret
    assert kind(api_key="any", base_url="http://127.0.0.1:1/v1") == "compatible"  # pragma: allowlist secret
    with pytest.raises(SettingsError, match="needs OPENAI_API_KEY"):
        select_team(roster(), "large", RunnerConfig(), builtins=BuiltinTools())


def test_contract_v1_is_kept() -> None:
    runner = select_team(default_roster(), "demo", RunnerConfig(), builtins=BuiltinTools())
    asked = MessageEnvelope(conversation_id="c", sender="u", recipient="agent:sales", content="search for a lamp")
    *_, output = runner.stream_run(asked)
    *_, root = runner.stream_run(asked.model_copy(update={"recipient": "chat:c", "content": "weather in Rome"}))
    *_, echo = TeamRunner(roster(), kind="echo").stream_run(asked)

    assert isinstance(output, OutputEvent)
    assert "Reading lamp" in output.text
    assert isinstance(root, OutputEvent)
    assert "not a forecast" in root.text
    assert isinstance(echo, OutputEvent)
    assert echo.text == "search for a lamp"


# --- the roster's own tools and limits


def test_a_tool_that_cannot_be_loaded_stops_the_start_but_not_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = roster(tools={"mine": "no_such_module_here:x"})
    with pytest.raises(SettingsError, match="tool 'mine'"):
        TeamRunner(bad, kind="echo")
    now = [roster()]
    runner = TeamRunner(lambda: now[0], kind="echo")

    now[0] = bad

    assert runner.agents() == ("chief", "desk", "shop", "stranger")
    assert "cannot be loaded" in caplog.text


async def test_the_file_limits_what_the_environment_leaves_open(bus: MemoryBus) -> None:
    now = [roster(limits={"max_turns": 1})]
    mail(bus, "weather?")
    with ModelServer([Reply(calls=[Call("weather", {"city": "Oslo"})])] * 2) as server:
        runner = team_on(server.url, lambda: now[0])
        assert await work(bus, runner) is Outcome.BURIED
        await runner.aclose()

    assert len(server.requests) == 1


async def test_a_team_is_built_once_and_few_are_kept(bus: MemoryBus) -> None:
    runner = select_team(roster(), "demo", RunnerConfig(), builtins=BuiltinTools())
    kept = []
    for number in (0, 0, *range(1, GRAPHS_MAX + 5)):
        set_session(bus, {"scenario_id": "house", "overlay": f"Number {number}."})
        mail(bus, "hello")
        await work(bus, runner)
        kept.append(len(runner._graphs._cache))

    assert kept[:3] == [1, 1, 2]
    assert kept[-1] == GRAPHS_MAX
