"""A real MCP server, as a program of its own: connected when wanted, left out when it fails, closed at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from magent2.errors import ArgumentsError, UnknownTool
from magent2.roster.spec import McpServer
from magent2.tools import mcp
from magent2.tools.mcp import McpFailed, McpServers, model_name
from magent2.tools.registry import grants_of

PROGRAM = str(Path(__file__).parents[2] / "support" / "mcp_server.py")


def test_an_agents_lists_say_what_it_may_use() -> None:
    assert grants_of(["weather", "files.read", "files.list"], ["mail"]) == {
        "mail": None,
        "files": frozenset({"read", "list"}),
    }
    assert grants_of(["files.read"], ["files"]) == {"files": frozenset({"read"})}


def test_a_model_can_take_the_names() -> None:
    assert model_name("files", "read.all") == "files__read_all"
    assert len(model_name("files", "x" * 100)) == 64


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.fixture
def shelf(marks: Path) -> McpServer:
    return McpServer("shelf", command=(sys.executable, PROGRAM), env={"MCP_MARKS": str(marks), "MCP_GREETING": "hi"})


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
    with pytest.raises(McpFailed, match="Emma does not burn"):
        await servers.call("shelf", "burn", {"title": "Emma"})

    assert await servers.call("shelf", "greet", {}) == "hi"


async def test_a_server_that_dies_is_started_again(servers: McpServers, marks: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)closed|burn|shelf"):
        await servers.call("shelf", "burn", {"title": "everything"})

    assert await servers.call("shelf", "greet", {}) == "hi"
    assert marks.read_text().count("started") == 2


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

    assert [record.getMessage() for record in caplog.records if record.name == mcp.__name__] == [
        "cannot connect to an MCP server; its tools are missing"
    ]
    with pytest.raises(McpFailed, match="cannot be used now"):
        await servers.call("shelf", "fetch", {})
    await servers.aclose()


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


async def test_a_server_without_configuration_has_no_tools(servers: McpServers) -> None:
    assert await servers.tools({"attic": None}) == []
