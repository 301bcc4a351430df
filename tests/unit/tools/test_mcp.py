"""A real MCP server, as a program of its own: connected when wanted, left out when it fails, closed at the end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents.tool_context import ToolContext
from mcp import MCPError

from magent2.errors import ArgumentsError, UnknownTool
from magent2.roster.spec import McpServer
from magent2.tools import mcp
from magent2.tools.interface import CallScope, RunFacts, call_scope, current_scope
from magent2.tools.mcp import McpFailed, McpServers, McpToolError, model_name
from magent2.tools.registry import grants_of
from tests.support.waiting import until

START_DEADLINE_S = 60.0  # it imports a good deal first


def test_an_agents_lists_say_what_it_may_use() -> None:
    assert grants_of(["weather", "files.read", "files.list"], ["mail"]) == {
        "mail": None,
        "files": frozenset({"read", "list"}),
    }
    assert grants_of(["files.read"], ["files"]) == {"files": frozenset({"read"})}


def test_a_model_can_take_the_names() -> None:
    assert model_name("files", "read.all") == "files__read_all"
    assert len(model_name("files", "x" * 100)) == 64


@pytest.fixture(autouse=True)
def _slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the program imports for longer than a turn waits for it."""
    monkeypatch.setattr(mcp, "CONNECT_MAX_S", START_DEADLINE_S)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.fixture
def shelf(marks: Path, mcp_command: tuple[str, ...]) -> McpServer:
    return McpServer("shelf", command=mcp_command, env={"MCP_MARKS": str(marks), "MCP_GREETING": "hi"})


@pytest.fixture
async def servers(shelf: McpServer) -> AsyncIterator[McpServers]:
    servers = McpServers({"shelf": shelf})
    yield servers
    await servers.aclose()


async def names(servers: McpServers, *granted: str) -> list[str]:
    grants = {"shelf": frozenset(granted) if granted else None}
    return [tool.name for tool in await servers.tools(grants)]


async def test_it_is_started_once_when_it_is_wanted(servers: McpServers, marks: Path) -> None:
    assert not marks.exists()

    assert await names(servers) == ["shelf__fetch", "shelf__greet", "shelf__burn"]
    await names(servers)

    assert marks.read_text() == "started\n"


async def test_a_connection_belongs_to_no_call_because_all_calls_share_it(
    servers: McpServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes: list[object] = []

    def make_server(facts: mcp.ServerFacts) -> Any:
        scopes.append(current_scope())
        return working(facts)

    working = mcp.make_server
    monkeypatch.setattr(mcp, "make_server", make_server)
    with call_scope(CallScope(cast(RunFacts, SimpleNamespace(principal="user:mallory")), "key")):
        assert await names(servers, "fetch") == ["shelf__fetch"]

    assert scopes == [None]


async def test_only_what_is_granted_is_offered(servers: McpServers, shelf: McpServer) -> None:
    assert await names(servers, "fetch") == ["shelf__fetch"]

    servers.follow({"shelf": replace(shelf, tools=("greet",))})
    assert await names(servers) == ["shelf__greet"]
    assert await names(servers, "fetch") == []


async def test_a_tool_is_described_as_the_server_does(servers: McpServers) -> None:
    fetch, *_ = await servers.tools({"shelf": None})

    assert fetch.description == "Fetch a book from the shelf."
    assert fetch.params_json_schema["required"] == ["title"]


async def test_a_call_reaches_the_server_and_its_environment(servers: McpServers) -> None:
    assert await servers.call("shelf", "fetch", {"title": "Emma"}) == "here is Emma"
    assert await servers.call("shelf", "greet", {}) == "hi"


async def test_a_call_that_cannot_be_right_does_not_reach_it(servers: McpServers, marks: Path) -> None:
    with pytest.raises(ArgumentsError, match="'title' is a required property"):
        await servers.call("shelf", "fetch", {})
    with pytest.raises(UnknownTool, match="no tool 'sell'; its tools: fetch"):
        await servers.call("shelf", "sell", {})

    assert "fetch" not in marks.read_text()


async def test_an_error_of_the_tool_is_an_error(servers: McpServers) -> None:
    with pytest.raises(McpToolError, match="Emma does not burn"):
        await servers.call("shelf", "burn", {"title": "Emma"})

    assert await servers.call("shelf", "greet", {}) == "hi"


async def test_a_server_that_dies_is_started_again(servers: McpServers, marks: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)closed|burn|shelf"):
        await servers.call("shelf", "burn", {"title": "everything"})

    assert await servers.call("shelf", "greet", {}) == "hi"
    assert marks.read_text().count("started") == 2


# --- one connection for the calls of all runs


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    folder = tmp_path / "gates"
    folder.mkdir()
    return folder


@pytest.fixture
async def shared(shelf: McpServer, gates: Path) -> AsyncIterator[McpServers]:
    """The same server, whose `fetch` waits until the test lets it go on."""
    servers = McpServers({"shelf": replace(shelf, env={**shelf.env, "MCP_GATES": str(gates)})})
    yield servers
    await servers.aclose()


def open_connections() -> int:
    return sum(task.get_name() == "mcp-shelf" for task in asyncio.all_tasks())


async def begin_fetch(servers: McpServers, marks: Path, title: str) -> asyncio.Task[str]:
    call = asyncio.create_task(servers.call("shelf", "fetch", {"title": title}))
    await until(lambda: call.done() or (marks.exists() and f"fetch {title}" in marks.read_text()), START_DEADLINE_S)
    return call


async def test_a_call_without_an_answer_does_not_end_the_calls_of_other_runs(
    shared: McpServers, marks: Path, gates: Path
) -> None:
    running = await begin_fetch(shared, marks, "Emma")

    with pytest.raises(MCPError, match="burn slowly"):
        await shared.call("shelf", "burn", {"title": "slowly"})
    assert await shared.call("shelf", "greet", {}) == "hi"
    assert marks.read_text().count("started") == 2, "a new call used the broken connection"

    (gates / "Emma").touch()
    assert await running == "here is Emma"
    await until(lambda: open_connections() == 1)
    assert await shared.call("shelf", "greet", {}) == "hi"
    assert marks.read_text().count("started") == 2


@pytest.mark.parametrize("title", ["Emma", "twice"], ids=["a result that is an error", "an error of the protocol"])
async def test_an_error_of_a_call_leaves_the_connection_as_it_is(
    shared: McpServers, marks: Path, gates: Path, title: str
) -> None:
    running = await begin_fetch(shared, marks, "Persuasion")

    with pytest.raises((McpFailed, McpToolError), match=r"does not burn|answered with error -32602"):
        await shared.call("shelf", "burn", {"title": title})
    assert await shared.call("shelf", "greet", {}) == "hi"

    (gates / "Persuasion").touch()
    assert await running == "here is Persuasion"
    assert marks.read_text().count("started") == 1


async def test_a_model_that_leaves_out_an_argument_is_told_so_and_closes_nothing(
    shared: McpServers, marks: Path
) -> None:
    functions = {tool.name: tool for tool in await shared.tools({"shelf": None})}

    said = await functions["shelf__burn"].on_invoke_tool(tool_context("shelf__burn"), "{}")

    assert "shelf.burn needs 'title'" in said
    assert await shared.call("shelf", "greet", {}) == "hi"
    assert marks.read_text().count("started") == 1


async def test_a_turn_that_got_its_tools_before_the_connection_broke_calls_the_new_one(
    servers: McpServers, marks: Path
) -> None:
    functions = {tool.name: tool for tool in await servers.tools({"shelf": None})}
    with pytest.raises(MCPError):
        await servers.call("shelf", "burn", {"title": "everything"})

    said = await functions["shelf__greet"].on_invoke_tool(tool_context("shelf__greet"), "{}")

    assert "hi" in str(said)
    assert marks.read_text().count("started") == 2


async def test_another_configuration_does_not_end_running_calls(
    shared: McpServers, shelf: McpServer, marks: Path, gates: Path
) -> None:
    running = await begin_fetch(shared, marks, "Emma")

    shared.follow({"shelf": replace(shelf, env={"MCP_MARKS": str(marks), "MCP_GREETING": "good day"})})
    assert await shared.call("shelf", "greet", {}) == "good day"

    (gates / "Emma").touch()
    assert await running == "here is Emma"
    await until(lambda: open_connections() == 1)


async def test_a_run_that_is_stopped_while_it_connects_leaves_no_server_behind(shared: McpServers, marks: Path) -> None:
    call = asyncio.create_task(shared.call("shelf", "greet", {}))
    await until(lambda: open_connections() == 1)
    call.cancel()
    await asyncio.wait([call])

    await until(lambda: open_connections() == 0, START_DEADLINE_S)
    assert await shared.call("shelf", "greet", {}) == "hi"
    assert open_connections() == 1


def tool_context(name: str) -> ToolContext[None]:
    return ToolContext(None, tool_name=name, tool_call_id="c1", tool_arguments="{}")


@pytest.mark.parametrize(
    "broken",
    [
        McpServer("shelf", command=("no-such-program-here",)),
        McpServer("shelf", command=(sys.executable, "-c", "raise SystemExit(1)")),
        McpServer("shelf", url="http://127.0.0.1:9/mcp"),
        McpServer("shelf"),
    ],
    ids=["no program", "ends at once", "no address", "nothing"],
)
async def test_a_server_that_fails_has_no_tools_and_is_left_alone_for_a_while(
    broken: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    servers = McpServers({"shelf": broken})
    with caplog.at_level(logging.ERROR, logger=mcp.__name__):
        assert await names(servers) == []
        assert await names(servers) == []
        with pytest.raises(McpFailed, match="cannot be used now"):
            await servers.call("shelf", "fetch", {})
        await servers.aclose()  # the line is written after the server has ended, which nobody waits for

    assert [record.getMessage() for record in caplog.records if record.name == mcp.__name__] == [
        "cannot connect to an MCP server; its tools are missing"
    ]


async def test_after_a_while_it_is_tried_again(
    servers: McpServers, shelf: McpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "RETRY_S", 0.0)
    broken = replace(shelf, command=("no-such-program-here",))
    servers.follow({"shelf": broken})
    assert await names(servers) == []

    servers.follow({"shelf": shelf})
    assert await names(servers, "greet") == ["shelf__greet"]


async def test_a_silent_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "CONNECT_MAX_S", 0.2)
    servers = McpServers({"shelf": McpServer("shelf", command=(sys.executable, "-c", "import sys; sys.stdin.read()"))})

    assert await names(servers) == []
    await servers.aclose()


async def test_the_end_of_a_server_that_could_not_be_connected_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = asyncio.Event()
    cleanup = mcp._Stdio.cleanup

    async def hang(server: mcp._Stdio) -> None:
        await may_end.wait()
        await cleanup(server)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mcp, "CONNECT_MAX_S", 0.2)
    monkeypatch.setattr(mcp._Stdio, "cleanup", hang)
    servers = McpServers({"shelf": McpServer("shelf", command=("no-such-program-here",))})

    async with asyncio.timeout(START_DEADLINE_S):
        assert await names(servers) == []

    may_end.set()
    await servers.aclose()


async def test_a_server_without_configuration_has_no_tools(servers: McpServers) -> None:
    assert await servers.tools({"attic": None}) == []
