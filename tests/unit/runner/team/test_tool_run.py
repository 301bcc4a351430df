"""Runs of kind `tool`: without a model, restricted to the agent's tools, journalled."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.roster.spec import Roster
from magent2.runner.team.runner import TeamRunner
from magent2.tools.default_tools import standard_tools
from magent2.tools.registry import tool
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CrashingBus, message_contents
from tests.support.team import DESK, ask_tool, mail, replace_tools, roster, work, work_until_crash
from tests.support.worker_fixture import dead_letters, history, outputs, stream


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
async def runner() -> AsyncIterator[TeamRunner]:
    runner = TeamRunner(roster(), kind="echo")
    yield runner
    await runner.aclose()


def steps(bus: MemoryBus) -> list[tuple[str, str]]:
    return [(event["name"], event["status"]) for event in stream(bus) if event["event"] == "tool_step"]


async def test_a_tool_is_run_and_its_result_is_the_output(bus: MemoryBus, runner: TeamRunner) -> None:
    ask_tool(bus, "weather", {"city": "Oslo"})

    assert await work(bus, runner) is Outcome.ANSWERED

    assert steps(bus) == [("weather", "start"), ("weather", "success")]
    (text,) = outputs(bus)
    assert json.loads(text)["city"] == "Oslo"
    assert [record["kind"] for record in history(bus)] == ["start", "tool", "end"]
    assert stream(bus)[1]["args"] == {"city": "Oslo"}


async def test_a_tool_knows_its_run(bus: MemoryBus, runner: TeamRunner) -> None:
    ask_tool(bus, "echo_context", {"text": "hi"})
    await work(bus, runner)

    said = json.loads(outputs(bus)[0])
    assert (said["conversation_id"], said["agent"], said["text"]) == ("one", "desk", "hi")


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("product_search", {"query": "lamp"}, "Refused: agent 'desk' may not use tool 'product_search'"),
        ("chat_send", {"recipient": "agent:shop", "content": "x"}, "may not use tool 'chat_send'"),
        ("shelf.fetch", {}, "may not use tool 'shelf.fetch'"),
        ("nonsense", {}, "may not use"),
        ("", {}, "may not use"),
        ("WebSearchTool", {}, "WebSearchTool runs at the model's provider"),
        ("weather", {"town": "Oslo"}, "ArgumentsError: the arguments do not fit tool 'weather'"),
        ("weather", "Oslo", "the arguments must be an object, not str"),
    ],
)
async def test_tools_that_are_not_allowed_do_not_run(
    bus: MemoryBus, runner: TeamRunner, name: str, args: Any, why: str
) -> None:
    ask_tool(bus, name, args)

    assert await work(bus, runner) is Outcome.ANSWERED

    assert [status for _, status in steps(bus)] == ["start", "error"]
    assert why in outputs(bus)[0]
    assert message_contents(bus, "chat:shop") == []
    assert dead_letters(bus, "desk") == []


async def test_metadata_alone_runs_no_tool(bus: MemoryBus, runner: TeamRunner) -> None:
    """Any sender can write metadata. Only the gateway sets the header."""
    mail(bus, "hello", metadata={"tool": "weather", "args": {"city": "Oslo"}})
    await work(bus, runner)

    assert steps(bus) == []
    assert outputs(bus) == ["hello"]


# --- with tools of one's own


def with_tools(*names: str) -> Roster:
    return roster(replace_tools(DESK, *names))


async def test_the_error_of_a_tool_is_the_output_and_is_not_retried(bus: MemoryBus) -> None:
    @tool
    def fall() -> str:
        """Fall over."""
        raise LookupError("no floor")

    tools = standard_tools()
    tools.register(fall)
    ask_tool(bus, "fall", {})

    assert await work(bus, TeamRunner(with_tools("fall"), tools, kind="echo")) is Outcome.ANSWERED

    (text,) = outputs(bus)
    assert text.startswith("LookupError: fall failed; the operator's log has the cause (failure id ")
    assert steps(bus) == [("fall", "start"), ("fall", "error")]


@pytest.mark.parametrize("after", [False, True])
async def test_a_recorded_result_is_not_run_again(bus: MemoryBus, after: bool) -> None:
    called: list[str] = []

    @tool
    async def count() -> str:
        """Count."""
        called.append("x")
        return f"call {len(called)}"

    tools = standard_tools()
    tools.register(count)
    runner = TeamRunner(with_tools("count"), tools, kind="echo")
    ask_tool(bus, "count", {})
    assert await work_until_crash(CrashingBus(bus, on="tool", after=after), runner)

    assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["call 1"] if after else ["call 2"]
    assert len(called) == (1 if after else 2)


async def test_what_a_tool_sends_goes_with_its_result(bus: MemoryBus) -> None:
    runner = TeamRunner(with_tools("chat_send"), kind="echo")
    ask_tool(bus, "chat_send", {"recipient": "agent:shop", "content": "news"})
    assert await work_until_crash(CrashingBus(bus, on="tool"), runner)
    assert message_contents(bus, "chat:shop") == []

    await work(bus, runner)

    assert message_contents(bus, "chat:shop") == ["news"]
    assert json.loads(outputs(bus)[0])["ok"] is True


async def test_a_refused_send_is_an_error(bus: MemoryBus) -> None:
    runner = TeamRunner(with_tools("chat_send"), kind="echo")
    ask_tool(bus, "chat_send", {"recipient": "nobody", "content": "news"})
    await work(bus, runner)

    assert steps(bus) == [("chat_send", "start"), ("chat_send", "error")]
    assert json.loads(outputs(bus)[0])["ok"] is False
