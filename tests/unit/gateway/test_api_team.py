"""`/api/agents`, `/api/scenarios`, `/api/tools`, routing without a session: what a gateway tells of its team."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import Refused
from magent2.gateway.catalogue import Catalogue
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, McpServer, Roster, Scenario
from magent2.runner.team.spec import TeamMember
from magent2.runner.team.tool_run import check_allowed
from magent2.tools.builtins import BUILTINS, BuiltinTools
from magent2.tools.default_tools import known_tools
from magent2.tools.registry import may_run
from tests.support.api.sessions import api, create
from tests.support.team import CHIEF, DESK, SHOP, roster
from tests.unit.tools.test_builtins import HERE, IMPLEMENTED, NEEDED


async def test_agents_are_shown_with_their_lists(client: httpx2.AsyncClient) -> None:
    agents = (await client.get("/api/agents")).json()["agents"]
    general = next(agent for agent in agents if agent["name"] == "general")

    assert [agent["name"] for agent in agents] == ["supervisor", "general", "sales", "support"]
    assert general == {
        "name": "general",
        "role": general["role"],
        "model": None,
        "voice": "alloy",
        "tools": ["WebSearchTool", "echo_context", "weather", "chat_send", "run_python", "refund"],
        "mcp": [],
        "mcp_tools": {},
        "handoffs": ["sales", "support"],
        "subagents": [],
        "scenarios": ["default"],
        "output_schema": None,
        "alive": False,
    }


async def test_agents_are_shown_with_their_subagents_and_the_tools_of_their_mcp_servers(bus: MemoryBus) -> None:
    files, notes = McpServer("files", ("serve-files",), tools=("read", "list")), McpServer("notes", ("serve-notes",))
    desk = AgentSpec("desk", tools=("notes.find", "weather"), mcp=("files",), subagents=("shop",))
    shop = AgentSpec("shop", tools=("files.read", "files.write"), mcp=("notes",))
    team = Roster({"a": Scenario("a", {"desk": desk, "shop": shop}, "desk")}, mcp={"files": files, "notes": notes})

    async with api(bus, catalogue=Catalogue(Registry.of(replace(team, default="a")))) as client:
        agents = {agent["name"]: agent for agent in (await client.get("/api/agents")).json()["agents"]}

    assert agents["desk"]["subagents"] == ["shop"]
    assert agents["desk"]["mcp_tools"] == {"notes": ["find"], "files": ["list", "read"]}
    assert agents["shop"]["subagents"] == []
    # The file names the tools of one server, and of the other it allows all: only a worker knows their names.
    assert agents["shop"]["mcp_tools"] == {"files": ["read"], "notes": None}


async def test_an_agent_is_shown_with_the_schema_of_its_answers(bus: MemoryBus) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    team = roster(AgentSpec("desk", output_schema=schema))

    async with api(bus, catalogue=Catalogue(Registry.of(team))) as client:
        agents = {agent["name"]: agent for agent in (await client.get("/api/agents")).json()["agents"]}

    assert agents["desk"]["output_schema"] == schema


async def test_scenarios_are_shown(bus: MemoryBus) -> None:
    async with api(bus, catalogue=Catalogue(Registry.of(roster()))) as client:
        found = (await client.get("/api/scenarios")).json()
        away = (await client.get("/api/agents", params={"scenario_id": "away"})).json()["agents"]
        nowhere = await client.get("/api/agents", params={"scenario_id": "nowhere"})

    assert found["default"] == "house"
    assert found["scenarios"][0] == {
        "id": "house", "title": "", "root": "desk", "supervisor": "chief", "agents": ["chief", "desk", "shop"],
    }  # fmt: skip
    assert [agent["name"] for agent in away] == ["stranger"]
    assert (nowhere.status_code, nowhere.json()["code"]) == (422, "unknown_scenario")


async def test_tools_are_listed_with_their_schemas(client: httpx2.AsyncClient) -> None:
    tools = {tool["name"]: tool for tool in (await client.get("/api/tools/list")).json()["tools"]}

    assert tools["weather"]["params_schema"]["required"] == ["city"]
    assert (tools["weather"]["kind"], tools["weather"]["agents"]) == ("custom", ["general"])
    assert (tools["WebSearchTool"]["kind"], tools["WebSearchTool"]["params_schema"]) == ("builtin", None)
    assert len([tool for tool in tools.values() if tool["kind"] == "builtin"]) == 8


async def test_enabled_and_available_are_told_apart(bus: MemoryBus) -> None:
    builtins = BuiltinTools(enabled=frozenset({"WebSearchTool", "FileSearchTool"}))
    async with api(bus, catalogue=Catalogue(builtins=builtins, kind="openai")) as client:
        status = (await client.get("/api/tools/config/status")).json()

    found = {one["name"]: (one["enabled"], one["available"], one["missing"]) for one in status["builtins"]}
    assert status["model_kind"] == "openai"
    assert found["WebSearchTool"] == (True, True, [])
    assert found["FileSearchTool"] == (True, False, ["FILE_SEARCH_VECTOR_STORES"])
    assert found["LocalShellTool"][:2] == (False, False)


@pytest.mark.parametrize("name", BUILTINS)
async def test_the_status_of_each_built_in_tool_with_and_without_what_it_needs(bus: MemoryBus, name: str) -> None:
    """As a gateway shows it whose settings were read from the environment."""
    needed = {IMPLEMENTED[name][1]: HERE} if name in IMPLEMENTED else NEEDED.get(name, {})
    shown = {}
    for kind, values in (("with", needed), ("without", {}), ("off", {**needed, "BUILTIN_TOOLS_ENABLED": "none"})):
        builtins = BuiltinTools.read({"BUILTIN_TOOLS_ENABLED": name, **values})
        async with api(bus, catalogue=Catalogue(builtins=builtins, kind="openai")) as client:
            status = (await client.get("/api/tools/config/status")).json()["builtins"]
        shown[kind] = next(one for one in status if one["name"] == name)

    assert (shown["with"]["enabled"], shown["with"]["available"], shown["with"]["missing"]) == (True, True, [])
    assert shown["without"]["available"] is (not needed)
    assert {text.partition("=")[0] for text in shown["without"]["missing"]} == set(needed)
    assert shown["off"]["enabled"] is (name == "FunctionTool")
    assert shown["with"]["reason"] is None
    for one in shown.values():
        assert (one["reason"] is None) == (one["enabled"] and one["available"])


async def test_a_built_in_tool_that_is_switched_off_is_not_given(bus: MemoryBus) -> None:
    builtins = BuiltinTools(enabled=frozenset())
    async with api(bus, catalogue=Catalogue(builtins=builtins)) as client:
        assert (await create(client))["tools"] == ["echo_context", "weather", "chat_send", "run_python", "refund"]


async def test_create_lists_only_the_tools_that_the_model_gets(bus: MemoryBus) -> None:
    """The model of the session counts: a tool that runs at OpenAI is not given to a model elsewhere."""
    for kind in ("demo", "compatible", "echo"):
        async with api(bus, catalogue=Catalogue(kind=kind)) as client:
            assert "WebSearchTool" not in (await create(client, f"on-{kind}"))["tools"]
    team = default_roster()
    agents = team.scenarios["default"].agents
    agents = {**agents, "sales": replace(agents["sales"], model="litellm/x/z")}  # a provider that the team uses
    team = replace(team, scenarios={"default": replace(team.scenarios["default"], agents=agents)})
    async with api(bus, catalogue=Catalogue(Registry.of(team), kind="openai")) as client:
        assert "WebSearchTool" in (await create(client, "own"))["tools"]
        assert "WebSearchTool" not in (await create(client, "other", model="litellm/x/y"))["tools"]


LISTED = AgentSpec("a", tools=("weather", "files.read"), mcp=("notes",))
ALL_OF_FILES = replace(LISTED, tools=("weather",), mcp=("files",))


@pytest.mark.parametrize("agent", [LISTED, ALL_OF_FILES, AgentSpec("b"), replace(LISTED, mcp=("files",))])
@pytest.mark.parametrize(
    "tool",
    ["weather", "Weather", "files.read", "files.write", "notes.any", "other.any", "files", "notes", "", ".", "a.b.c",
     "WebSearchTool", "files.", ".read"],
)  # fmt: skip
def test_gateway_and_worker_agree_on_what_is_allowed(agent: AgentSpec, tool: str) -> None:
    member = TeamMember(agent.name, tools=agent.tools, mcp=agent.mcp)
    try:
        check_allowed(member, tool)
        allowed = True
    except Refused:
        allowed = False

    assert may_run(agent.tools, agent.mcp, tool) == allowed


async def test_routing_without_a_session_changes_nothing(bus: MemoryBus) -> None:
    async with api(bus, catalogue=Catalogue(Registry.of(roster(DESK, SHOP)))) as client:
        chosen = (await client.post("/api/orchestrate", json={"last_user_text": "what is the price?"})).json()
        stays = (await client.post("/api/orchestrate", json={})).json()
        listed = (await client.get("/api/sdk/sessions")).json()["sessions"]

    assert chosen == {
        "chosen_root": "shop",
        "reason": "shop: price",
        "changed": True,
        "by": "keywords",
        "fallback": None,
        "scores": {"desk": 0.0, "shop": 2.0},
        "evidence": {"shop": ["price"]},
    }
    assert (stays["chosen_root"], stays["changed"], stays["by"]) == ("desk", False, "current")
    assert listed == []


async def test_a_supervisor_without_a_worker_is_not_waited_for(bus: MemoryBus) -> None:
    async with api(bus, catalogue=Catalogue(Registry.of(roster(CHIEF, DESK, SHOP)))) as client:
        chosen = (await client.post("/api/orchestrate", json={"last_user_text": "what is the price?"})).json()

    assert (chosen["chosen_root"], chosen["fallback"]) == ("shop", "no_worker")


FILE = """
[[scenario]]
id = "house"
root = "desk"
[[scenario.agent]]
name = "desk"
tools = [{tools}]
{more}
"""


async def test_a_file_that_has_changed_is_shown_as_it_is_now(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magent2.gateway.catalogue.RELOAD_CHECK_S", 0.0)
    monkeypatch.setattr("sys.path", list(sys.path))  # the folder of the file is added to it
    path = tmp_path / "team.toml"
    path.write_text(FILE.format(tools='"weather"', more=""))
    catalogue = Catalogue(Registry.of_file(path, known_tools()), folder=tmp_path)
    async with api(bus, catalogue=catalogue) as client:
        before = await create(client)
        path.write_text(FILE.format(tools='"weather", "shout"', more='[tools]\nshout = "api_shouting:shout"'))
        (tmp_path / "api_shouting.py").write_text("def shout(text: str) -> str:\n    '''Shout.'''\n    return text\n")
        after = await create(client)
        tools = {tool["name"]: tool for tool in (await client.get("/api/tools/list")).json()["tools"]}

    assert (before["tools"], after["tools"]) == (["weather"], ["weather", "shout"])
    assert tools["shout"]["params_schema"]["required"] == ["text"]


async def test_a_tool_that_cannot_be_loaded_here_is_listed_without_its_schema(bus: MemoryBus, tmp_path: Path) -> None:
    path = tmp_path / "team.toml"
    path.write_text(FILE.format(tools='"shout"', more='[tools]\nshout = "api_nowhere:shout"'))
    async with api(bus, catalogue=Catalogue(Registry.of_file(path, known_tools()))) as client:
        tools = {tool["name"]: tool for tool in (await client.get("/api/tools/list")).json()["tools"]}

    assert (tools["shout"]["params_schema"], tools["shout"]["agents"]) == (None, ["desk"])
