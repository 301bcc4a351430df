"""Agents of the operator's own SDK code: what is served, what is refused, and what an agents file adds to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import RosterError, SettingsError
from magent2.roster.agents_file import load_agents_file
from magent2.roster.spec import Roster
from magent2.runner.select import describe_agents, roster_of_code
from magent2.worker.lane_run import Outcome
from magent2.worker.team_choice import choose_agents
from magent2.worker.team_selection import choose_team
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import active_agent, mail, set_session, team_on, work
from tests.support.worker_fixture import dead_letters, outputs, stream

MODULE = '''
from agents import Agent, Model, ModelSettings, WebSearchTool, function_tool, handoff
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message
from agents.tool import LocalShellTool


@function_tool
def look(order: str) -> str:
    """Look an order up."""
    return f"{order} is here"


back = Agent(name="back", handoff_description="Pays back.", instructions="You pay back.", tools=[look])
ghost = Agent(name="ghost", instructions="You are not in the list.")
front = Agent(name="front", instructions="You help.", model="own-model", tools=[look], handoffs=[handoff(back), ghost])
back.handoffs = [front]
team = [front, back]
offline = Agent(name="offline", model=ScriptedModel([[assistant_message("without a key")]]))
searching = Agent(name="searching", tools=[WebSearchTool(), look])

number = 7
empty = []
mixed = [front, look]
twice = [front, Agent(name="front")]
nameless = Agent(name="  ")
stateful = Agent(name="stateful", model_settings=ModelSettings(extra_args={"conversation_id": "conv_1"}))
shell = Agent(name="shell", tools=[LocalShellTool(executor=lambda request: "")])
mcp = Agent(name="mcp", mcp_servers=[MCPServerStdio(params={"command": "true"})])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no luck')")
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("shop", "broken", "bill_models"):
        sys.modules.pop(name, None)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def test_every_agent_of_a_list_is_described(folder: Path) -> None:
    roster = roster_of_code(["shop:team"], folder)
    front, back = roster.scenario().agents.values()

    assert (roster.scenario().root, roster.agent_names()) == ("front", ("front", "back"))
    assert (front.model, front.tools, front.handoffs) == ("own-model", ("look",), ("back",))
    assert (back.role, back.agent) == ("Pays back.", "shop:team")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["shop:nobody"], "'shop:nobody' cannot be loaded (AttributeError"),
        (["missing:team"], "'missing:team' cannot be loaded (ModuleNotFoundError"),
        (["broken:team"], "'broken:team' cannot be loaded (RuntimeError: no luck)"),
        (["shop:number"], "'shop:number' is a int; name an Agent of the Agents SDK, or a list of them"),
        (["shop:empty"], "'shop:empty' is empty; list at least one agent"),
        (["shop:mixed"], "'shop:mixed' has a FunctionTool; name an Agent"),
        (["shop:twice"], "'shop:twice' has two agents called 'front'; a name is a mailbox, rename one"),
        (["shop:team", "shop:front"], "'shop:team' and 'shop:front' both have an agent called 'front'"),
        (["shop:nameless"], "'  ' is not a valid name for an agent"),
        (["shop:stateful"], "agent 'stateful': conversation_id keeps the conversation at the provider; leave it out"),
        (["shop:shell"], "LocalShellTool of agent 'shell' would act a second time after a crash"),
        (["shop:mcp"], "agent 'mcp' has mcp_servers, which only a program can connect; name them in [mcp]"),
        (["shop"], "--agents 'shop' is not an import path; write 'module:attribute'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(folder: Path, paths: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        choose_agents(sdk_agents=paths, environ={})

    assert message in str(refused.value)


def test_paths_may_be_in_the_environment_with_commas_between_them(folder: Path) -> None:
    choice = choose_agents(environ={"MAGENT2_AGENTS": "shop:team, shop:offline"})

    assert choice.served_names == ("front", "back", "offline")
    assert choose_agents(["back"], sdk_agents=["shop:team"], environ={}).served_names == ("back",)


def test_paths_and_a_file_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="an agents file and --agents are both given; name the agents in the file"):
        choose_agents(file=folder / "magent2.toml", sdk_agents=["shop:team"], environ={})


@pytest.mark.parametrize("variable", ["AGENT_INSTRUCTIONS", "AGENT_TOOLS"])
def test_the_environment_cannot_replace_what_the_code_has(folder: Path, variable: str) -> None:
    with pytest.raises(RosterError, match=f"{variable} cannot be used: agent 'front' is defined by 'shop:team'"):
        choose_agents(sdk_agents=["shop:team"], environ={variable: "weather"})


# --- in an agents file


def load(folder: Path, agents: str, *, imported: bool = True) -> Roster:
    file = folder / "magent2.toml"
    file.write_text(f'[[scenario]]\nid = "s"\nroot = "desk"\n[[scenario.agent]]\nname = "desk"\n{agents}')
    return load_agents_file(file, ["weather"], {}, describe_agents if imported else None).roster


def test_a_file_may_have_sdk_agents_beside_described_ones(folder: Path) -> None:
    added = 'agent = "shop:front"\nhandoffs = ["desk"]\napproval = ["look"]\nrole = "First."'
    roster = load(folder, f'handoffs = ["front"]\n[[scenario.agent]]\n{added}\n[[scenario.agent]]\nagent = "shop:back"')
    front = roster.agent("s", "front")

    assert roster.agent_names() == ("desk", "front", "back")
    assert (front.handoffs, front.approval, front.role) == (("back", "desk"), ("look",), "First.")


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('agent = "shop:nobody"', "scenario.s.agent.nobody.agent: 'shop:nobody' cannot be loaded (AttributeError"),
        ('agent = "shop:team"', "scenario.s.agent.team.agent: 'shop:team' has no agent 'team'; known: front, back"),
        ('name = "fron"\nagent = "shop:team"', "'shop:team' has no agent 'fron'; did you mean 'front'?"),
        ('agent = "shop front"', "'shop front' is not an import path; write 'module:attribute'"),
        ('agent = "shop:front"\ntools = ["weather"]', "front.tools: belongs to the code of 'shop:front'; set it there"),
        ('agent = "shop:front"\ninstructions = "Hi"', "front.instructions: belongs to the code of 'shop:front'"),
        ('agent = "shop:front"\nmodel = "m"', "front.model: belongs to the code of 'shop:front'"),
        ('agent = "shop:front"\nsubagents = ["desk"]', "front.subagents: belongs to the code of 'shop:front'"),
        ('agent = "shop:front"\napproval = ["loko"]', "the agent has no tool 'loko'; did you mean 'look'?"),
    ],
)
def test_faults_of_an_sdk_agent_are_named(folder: Path, table: str, fault: str) -> None:
    with pytest.raises(RosterError) as refused:
        load(folder, f"[[scenario.agent]]\n{table}")

    assert fault in str(refused.value)


def test_a_file_can_be_read_without_its_modules(folder: Path) -> None:
    roster = load(folder, '[[scenario.agent]]\nagent = "missing:helper"\napproval = ["x"]', imported=False)

    assert roster.agent_names() == ("desk", "helper")


# --- runs


async def test_a_session_changes_an_sdk_agent_and_a_handoff_makes_the_next_one_active(
    bus: MemoryBus, folder: Path
) -> None:
    set_session(bus, {"scenario_id": "default", "agents": {}, "overlay": "Be brief."})
    mail(bus, "pay back", "front")
    with ModelServer([Reply(calls=[Call("transfer_to_back", {})]), Reply("Paid.")]) as server:
        runner = team_on(server.url, roster_of_code(["shop:team"], folder), folder=folder)
        assert await work(bus, runner, "front") is Outcome.ANSWERED
        await runner.aclose()

    first, last = server.requests
    assert (first["model"], first["instructions"]) == ("own-model", "You help.\n\nBe brief.")
    assert (last["model"], last["instructions"]) == ("any-model", "You pay back.\n\nBe brief.")
    assert (outputs(bus), active_agent(bus)) == (["Paid."], "back")


async def test_a_handoff_to_an_agent_that_is_not_served_stays_within_the_run(bus: MemoryBus, folder: Path) -> None:
    mail(bus, "boo", "front")
    with ModelServer([Reply(calls=[Call("transfer_to_ghost", {})]), Reply("Boo.")]) as server:
        runner = team_on(server.url, roster_of_code(["shop:team"], folder), folder=folder)
        assert await work(bus, runner, "front") is Outcome.ANSWERED
        await runner.aclose()

    assert server.requests[1]["instructions"] == "You are not in the list."
    assert (outputs(bus), active_agent(bus)) == (["Boo."], "front")


async def test_the_file_asks_for_approval_of_a_tool_of_the_code(bus: MemoryBus, folder: Path) -> None:
    roster = load(folder, '[[scenario.agent]]\nagent = "shop:front"\napproval = ["look"]')
    mail(bus, "look", "front")
    with ModelServer([Reply(calls=[Call("look", {"order": "A-1"})])]) as server:
        runner = team_on(server.url, roster, folder=folder)
        assert await work(bus, runner, "front") is Outcome.PAUSED
        await runner.aclose()

    assert [event["name"] for event in stream(bus) if event["event"] == "approval"] == ["look"]


async def test_a_tool_whose_provider_cannot_ask_is_left_out_where_approval_is_needed(
    bus: MemoryBus, folder: Path
) -> None:
    roster = load(folder, '[[scenario.agent]]\nagent = "shop:searching"\napproval = ["web_search"]')
    mail(bus, "search", "searching")
    with ModelServer([Reply("No.")]) as server:
        runner = team_on(server.url, roster, folder=folder)
        assert await work(bus, runner, "searching") is Outcome.ANSWERED
        await runner.aclose()

    assert [tool["type"] for tool in server.requests[0]["tools"]] == ["function"]


async def test_a_model_that_is_an_object_needs_no_key(bus: MemoryBus, folder: Path) -> None:
    team = choose_team(sdk_agents=["shop:offline"], environ={})
    mail(bus, "hello", "offline")

    assert await work(bus, team.runner, "offline") is Outcome.ANSWERED
    await team.runner.aclose()
    assert (team.runner.kind, outputs(bus)) == ("echo", ["without a key"])


async def test_an_agent_that_the_code_no_longer_has_is_an_error_that_says_so(bus: MemoryBus, folder: Path) -> None:
    roster = roster_of_code(["shop:team"], folder)
    runner = team_on("http://127.0.0.1:9/v1", roster, folder=folder)
    sys.modules["shop"].team = sys.modules["shop"].team[1:]  # type: ignore[attr-defined]  # as another release of it
    mail(bus, "hello", "front")

    assert await work(bus, runner, "front") is Outcome.BURIED
    await runner.aclose()
    (letter,) = dead_letters(bus, "front")
    assert "'shop:team' has no agent 'front'; its agents are 'back'" in letter["reason"]


# --- the schema of an agent's answers

MODELS = """
from pydantic import BaseModel

class Bill(BaseModel):
    total: float

def function() -> None: ...
"""


@pytest.mark.parametrize(
    "written", ['{ type = "object", required = ["total"] }', '"schemas/bill.json"', '"bill_models:Bill"']
)
def test_an_output_schema_is_a_table_a_file_or_a_pydantic_model(folder: Path, written: str) -> None:
    (folder / "bill_models.py").write_text(MODELS)
    (folder / "schemas").mkdir()
    (folder / "schemas" / "bill.json").write_text('{"type": "object", "required": ["total"]}')

    schema = load(folder, f"output_schema = {written}").agent("s", "desk").output_schema

    assert isinstance(schema, dict)
    assert (schema["type"], schema["required"]) == ("object", ["total"])


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('"missing.json"', "scenario.s.agent.desk.output_schema: missing.json cannot be read"),
        ('"shop.py"', "output_schema: shop.py is not JSON"),
        ('"list.json"', "output_schema: list.json must hold a JSON object, not list"),
        ('"bill_models:Bill2"', "output_schema: 'bill_models:Bill2' cannot be loaded (AttributeError"),
        ('"bill_models:function"', "output_schema: 'bill_models:function' is a function; name a pydantic model"),
        ('{ type = "thing" }', "output_schema: it is not a JSON Schema: 'thing'"),
        ('{ "$ref" = "http://127.0.0.1:9/x" }', "output_schema: $ref 'http://127.0.0.1:9/x' does not name a schema"),
        ('"shop:front"\nagent = "shop:front"', "output_schema: 'shop:front' is a Agent; name a pydantic model"),
    ],
)
def test_faults_of_an_output_schema_are_named(folder: Path, written: str, fault: str) -> None:
    (folder / "bill_models.py").write_text(MODELS)
    (folder / "list.json").write_text("[]")

    with pytest.raises(RosterError) as refused:
        load(folder, f"output_schema = {written}")

    assert fault in str(refused.value)
