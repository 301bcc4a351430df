"""A real MCP server's tools, from the model's request to the server's process and back."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.roster.spec import McpServer, Roster
from magent2.runner.team.runner import TeamRunner
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CrashingBus, message_contents
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.ports import quiet_port
from tests.support.team import DESK, ask_tool, mail, replace_tools, roster, team_on, work, work_until_crash
from tests.support.worker_fixture import history, outputs, stream, until

START_DEADLINE_S = 60.0  # it imports a good deal first
FETCH = Call("shelf__fetch", {"title": "Emma"})


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.fixture
def shelf(marks: Path, mcp_command: tuple[str, ...]) -> McpServer:
    return McpServer("shelf", command=mcp_command, env={"MCP_MARKS": str(marks)})


def library(shelf: McpServer, *tools: str, mcp: tuple[str, ...] = ()) -> Roster:
    return roster(replace_tools(DESK, *tools, mcp=mcp), mcp={"shelf": shelf})


@asynccontextmanager
async def team(server: ModelServer, who: Roster) -> AsyncIterator[TeamRunner]:
    runner = team_on(server.url, who)
    yield runner
    await runner.aclose()


def names_in(request: dict[str, Any]) -> set[str]:
    return {tool["name"] for tool in request["tools"]}


async def test_a_model_calls_a_tool_of_a_server(bus: MemoryBus, shelf: McpServer, marks: Path) -> None:
    mail(bus, "get me Emma")
    with ModelServer([Reply(calls=[FETCH]), Reply("Here.")]) as server:
        async with team(server, library(shelf, "weather", mcp=("shelf",))) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED
    first, second = server.requests

    assert names_in(first) == {"weather", "shelf__fetch", "shelf__greet", "shelf__burn"}
    sent = next(tool for tool in first["tools"] if tool["name"] == "shelf__fetch")
    assert sent["description"] == "Fetch a book from the shelf."
    assert sent["parameters"]["required"] == ["title"]
    assert "here is Emma" in str(second["input"][-1]["output"])
    assert marks.read_text() == "started\nfetch Emma\n"
    steps = [(event["name"], event["status"]) for event in stream(bus) if event["event"] == "tool_step"]
    assert steps == [("shelf__fetch", "start"), ("shelf__fetch", "success")]


async def test_only_what_the_agent_may_use_is_offered_and_run(bus: MemoryBus, shelf: McpServer, marks: Path) -> None:
    mail(bus, "burn it")
    burn = Call("shelf__burn", {"title": "Emma"})
    with ModelServer([Reply(calls=[burn]), Reply("I may not.")]) as server:
        async with team(server, library(shelf, "shelf.fetch", mcp=("shelf",))) as runner:
            await work(bus, runner)
            ask_tool(bus, "shelf.burn", {"title": "Emma"})
            await work(bus, runner)
            ask_tool(bus, "shelf.fetch", {"title": "Emma"})
            await work(bus, runner)

    assert names_in(server.requests[0]) == {"shelf__fetch"}
    assert outputs(bus) == [
        "I may not.",
        "Refused: agent 'desk' may not use tool 'shelf.burn'",
        "here is Emma",
    ]
    assert "burn" not in marks.read_text()


async def test_an_error_of_the_tool_reaches_the_model_in_words(bus: MemoryBus, shelf: McpServer) -> None:
    mail(bus, "burn it")
    burn = Call("shelf__burn", {"title": "Emma"})
    with ModelServer([Reply(calls=[burn]), Reply("It does not.")]) as server:
        async with team(server, library(shelf, mcp=("shelf",))) as runner:
            await work(bus, runner)

    assert "shelf.burn failed: " in server.requests[1]["input"][-1]["output"]
    assert "Emma does not burn" in server.requests[1]["input"][-1]["output"]
    (error,) = (event for event in stream(bus) if event.get("status") == "error")
    assert "Emma does not burn" in error["error"]


async def test_a_server_that_dies_in_a_call_breaks_no_turn(bus: MemoryBus, shelf: McpServer, marks: Path) -> None:
    mail(bus, "burn everything")
    burn = Call("shelf__burn", {"title": "everything"}, id="b1")
    replies = [Reply(calls=[burn]), Reply(calls=[replace(FETCH, id="f1")]), Reply("Saved.")]
    with ModelServer(replies) as server:
        async with team(server, library(shelf, mcp=("shelf",))) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    assert marks.read_text() == "started\nburn everything\nstarted\nfetch Emma\n"
    assert outputs(bus) == ["Saved."]


async def test_an_unavailable_mcp_server_is_left_out(
    bus: MemoryBus, shelf: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    mail(bus, "hello")
    broken = replace(shelf, command=("no-such-program-here",))
    with ModelServer([Reply("Hi.")]) as server, caplog.at_level(logging.ERROR):
        async with team(server, library(broken, "weather", mcp=("shelf",))) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    assert names_in(server.requests[0]) == {"weather"}
    assert "cannot connect to an MCP server" in caplog.text


async def test_a_recorded_call_is_not_made_again_and_counts_without_its_server(
    bus: MemoryBus, shelf: McpServer, marks: Path
) -> None:
    mail(bus, "get me Emma")
    broken = replace(shelf, command=("no-such-program-here",))
    with ModelServer([Reply(calls=[FETCH]), Reply("unread"), Reply("Here.")]) as server:
        async with team(server, library(shelf, mcp=("shelf",))) as first:
            assert await work_until_crash(CrashingBus(bus, on="tool", after=True), first)
        async with team(server, library(broken, mcp=("shelf",))) as second:
            assert await work(bus, second) is Outcome.ANSWERED

    assert marks.read_text().count("fetch") == 1
    assert "here is Emma" in str(server.requests[-1]["input"][-1]["output"])


async def test_an_mcp_server_is_reached_over_http(bus: MemoryBus) -> None:
    port = quiet_port()  # the server binds it seconds later
    code = f"from tests.support.mcp_server import server; server.run('streamable-http', port={port})"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.DEVNULL, cwd=Path(__file__).parents[2]
    )
    try:
        await until(lambda: _listens(port), START_DEADLINE_S)
        mail(bus, "get me Emma")
        address = McpServer("shelf", url=f"http://127.0.0.1:{port}/mcp")
        with ModelServer([Reply(calls=[FETCH]), Reply("Here.")]) as server:
            async with team(server, library(address, mcp=("shelf",))) as runner:
                assert await work(bus, runner) is Outcome.ANSWERED
    finally:
        process.terminate()
        await process.wait()

    assert "here is Emma" in str(server.requests[1]["input"][-1]["output"])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- in a Python block


async def run_blocks(bus: MemoryBus, who: Roster, *codes: str) -> list[str]:
    """What a model is told of blocks with these codes."""
    mail(bus, "go")
    calls = [Call("run_python", {"code": code}, f"c{number}") for number, code in enumerate(codes)]
    with ModelServer([Reply(calls=calls), Reply("Done.")]) as server:
        async with team(server, who) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED
    told = {item["call_id"]: str(item["output"]) for item in server.requests[1]["input"] if "output" in item}
    return [told[call.id] for call in calls]


async def test_a_block_calls_the_tools_of_a_server_and_what_it_sends_leaves(
    bus: MemoryBus, shelf: McpServer, marks: Path
) -> None:
    who = library(shelf, "run_python", "chat_send", mcp=("shelf",))
    code = (
        'for title in ("Emma", "Persuasion"):\n    chat_send("agent:Bea", shelf__fetch(title))\nprint(shelf__greet())\n'
    )

    assert await run_blocks(bus, who, code) == ["hello\n\n[Messages: 2 sent]"]

    assert marks.read_text() == "started\nfetch Emma\nfetch Persuasion\n"
    assert message_contents(bus, "chat:Bea") == ["here is Emma", "here is Persuasion"]


async def test_a_server_gets_a_key_of_its_own_for_each_call(bus: MemoryBus, shelf: McpServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    who = library(replace(shelf, env={**shelf.env, "MCP_KEYS": str(keys)}), "run_python", mcp=("shelf",))

    await run_blocks(bus, who, "shelf__fetch('Emma')\nshelf__fetch('Emma')")

    (start,) = (record["run"] for record in history(bus) if record["kind"] == "start")
    assert keys.read_text().splitlines() == [f"{start}/0/c0/1", f"{start}/0/c0/2"]


async def test_a_block_is_checked_against_the_schemas_and_the_allowlist_before_it_runs(
    bus: MemoryBus, shelf: McpServer, marks: Path
) -> None:
    faults = {
        "shelf__fetch(3)": "error[invalid-argument-type]",
        "shelf__fetch()": "error[missing-argument]",
        "shelf__fetch('Emma').keys()": "error[unresolved-attribute]",
        "shelf__burn('Emma')": "`shelf__burn` used when not defined",
    }
    codes = [f"shelf__fetch('first')\n{code}" for code in faults]

    texts = await run_blocks(bus, library(shelf, "run_python", "shelf.fetch"), *codes)

    for text, words in zip(texts, faults.values(), strict=True):
        assert text.startswith("nothing was run; fix this first:")
        assert words in text
    assert "fetch" not in marks.read_text()


async def test_in_a_block_an_error_of_the_server_and_a_call_that_needs_approval_are_exceptions(
    bus: MemoryBus, shelf: McpServer, marks: Path
) -> None:
    agent = replace(replace_tools(DESK, "run_python", mcp=("shelf",)), approval=("shelf.fetch",))
    caught = "try:\n    shelf__burn('Emma')\nexcept Exception as error:\n    print('caught', error)\n"

    burnt, fetched = await run_blocks(bus, roster(agent, mcp={"shelf": shelf}), caught, "shelf__fetch('Emma')")

    assert burnt.startswith("caught ")
    assert "Emma does not burn" in burnt
    assert "PermissionError: shelf__fetch needs a person's approval; call it by itself" in fetched
    assert "fetch" not in marks.read_text()


async def test_a_model_is_told_of_them_and_a_block_that_is_run_by_name_has_them_too(
    bus: MemoryBus, shelf: McpServer
) -> None:
    mail(bus, "hello")
    with ModelServer([Reply("Hi.")]) as server:
        async with team(server, library(shelf, "run_python", mcp=("shelf",))) as runner:
            await work(bus, runner)
            ask_tool(bus, "run_python", {"code": "print(shelf__fetch('Emma'))"})
            await work(bus, runner)

    (python,) = (tool for tool in server.requests[0]["tools"] if tool["name"] == "run_python")
    assert "called server__tool are functions too" in python["description"]
    assert outputs(bus) == ["Hi.", "here is Emma"]


async def test_a_server_that_cannot_start_is_an_event_in_the_conversation(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    missing = McpServer("shelf", command=("/nowhere/no-such-program",))
    mail(bus, "get me Emma")
    with ModelServer([Reply("I cannot.")]) as server:
        async with team(server, library(missing, "weather", mcp=("shelf",))) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    (event,) = (event for event in stream(bus) if event["event"] == "mcp_server")
    assert (event["server"], event["status"], event["agent"]) == ("shelf", "unavailable", "desk")
    assert event["reason"] == "its program cannot be started"
    (line,) = (vars(record)["error"] for record in caplog.records if "MCP server" in record.message)
    assert "no-such-program" in line
    assert "\n" not in line
    assert "TaskGroup" not in line
