"""Agents files: what they may contain, and how each fault is reported."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.errors import RosterError
from magent2.roster.agents_file import FILE_MAX_BYTES, AgentsFile, ScenarioTable, load_agents_file
from magent2.roster.limits import LIMIT_NAMES
from magent2.roster.retention import RETENTION_NAMES
from magent2.roster.spec import AgentSpec, McpServer, Scenario
from magent2.runner.config import RunnerConfig
from magent2.tools.default_tools import known_tools
from tests.unit.roster.agents_files import AGENT, PAIR, TOOLS, faults_of, read_roster, write_agents_file

WHOLE = """
default = "desk"

[limits]
max_turns = 7
heartbeat_s = 2.5

[tools]
count = "tools:count"

[mcp.files]
command = ["serve", "--root", "."]
env = { TOKEN = "x-${SECRET}" }
tools = ["read_file"]

[mcp.search]
url = "https://example.org/mcp"
headers = { Authorization = "Bearer ${SECRET}" }

[[scenario]]
id = "desk"
title = "Front desk"
root = "ann"
supervisor = "router"

[[scenario.agent]]
name = "ann"
role = "Greets."
instructions_file = "ann.md"
model = "m"
voice = "alloy"
tools = ["weather", "count", "files.read_file"]
handoffs = ["bob"]
keywords = { hello = 1, "good morning" = 0.5 }
mcp = ["search"]

[[scenario.agent]]
name = "bob"

[[scenario.agent]]
name = "router"

[[scenario]]
id = "night"
shared = ["bob"]
"""


def test_every_key_of_the_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "ann.md").write_text("Be kind.\n")

    loaded = load_agents_file(write_agents_file(tmp_path, WHOLE), TOOLS, {"SECRET": "s"})

    roster = loaded.roster
    ann = roster.agent("desk", "ann")
    assert (ann.role, ann.instructions, ann.model, ann.voice) == ("Greets.", "Be kind.", "m", "alloy")
    assert (ann.tools, ann.handoffs, ann.mcp) == (("weather", "count", "files.read_file"), ("bob",), ("search",))
    assert ann.keywords == {"hello": 1, "good morning": 0.5}
    assert (roster.scenario().title, roster.scenario().supervisor, roster.default) == ("Front desk", "router", "desk")
    assert roster.tools == {"count": "tools:count"}
    assert roster.limits == {"max_turns": 7, "heartbeat_s": 2.5}
    assert loaded.files == (tmp_path / "magent2.toml", tmp_path / "ann.md")


def test_mcp_servers_get_their_secrets_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ann.md").write_text("Be kind.")

    servers = read_roster(tmp_path, WHOLE, {"SECRET": "s"}).mcp

    assert servers["files"].command == ("serve", "--root", ".")
    assert servers["files"].env == {"TOKEN": "x-s"}
    assert servers["files"].tools == ("read_file",)
    assert (servers["search"].url, servers["search"].tools) == ("https://example.org/mcp", None)
    assert servers["search"].headers == {"Authorization": "Bearer s"}


def test_an_agent_in_two_scenarios_is_one_agent(tmp_path: Path) -> None:
    again = PAIR.replace('"desk"', '"night"')
    roster = read_roster(tmp_path, f'default = "desk"\n{PAIR}\n{again}')

    assert roster.agent("desk", "ann") is roster.agent("night", "ann")


def test_a_scenario_of_one_needs_no_root_and_an_only_scenario_is_the_default(tmp_path: Path) -> None:
    roster = read_roster(tmp_path, '[[scenario]]\nid = "solo"\n[[scenario.agent]]\nname = "ann"\n')

    assert (roster.default, roster.scenario().root) == ("solo", "ann")


def test_every_fault_is_named_at_once_with_file_and_key(tmp_path: Path) -> None:
    text = PAIR.replace('handoffs = ["bob"]', 'handoffs = ["bop"]').replace('"weather"', '"wether"')

    with pytest.raises(RosterError) as raised:
        read_roster(tmp_path, text)

    assert raised.value.faults == (
        "scenario.desk.agent.ann.tools: unknown tool 'wether'; did you mean 'weather'?",
        "scenario.desk.agent.ann.handoffs: the scenario has no agent 'bop'; did you mean 'bob'?",
    )
    assert str(raised.value).startswith(f"{tmp_path / 'magent2.toml'} cannot be used: scenario.desk.agent.ann")


def test_invalid_keys_do_not_hide_faults_between_other_keys(tmp_path: Path) -> None:
    text = (
        PAIR.replace('handoffs = ["bob"]', 'handoffs = ["bop", 1]').replace('name = "bob"', 'mode = "m"')
        + "[limits]\nmax_turns = true"
    )

    assert faults_of(tmp_path, text) == [
        "limits.max_turns: must be a whole number, not True",
        "scenario.desk.agent.ann.handoffs.#2: must be a string, not 1",
        "scenario.desk.agent.#2.name: is missing",
        "scenario.desk.agent.#2: unknown key 'mode'; did you mean 'model'?",
        "scenario.desk.agent.ann.handoffs: the scenario has no agent 'bop'; known: ann, #2",
    ]


@pytest.mark.parametrize("value", ['"Bearer hush"', '{ Authorization = ["Bearer hush"] }'])
def test_a_fault_of_headers_does_not_print_their_value(tmp_path: Path, value: str) -> None:
    [fault] = faults_of(tmp_path, f'{AGENT}[mcp.x]\nurl = "http://h"\nheaders = {value}')

    assert fault.startswith("mcp.x.headers")
    assert "hush" not in fault


def test_a_path_quotes_names_that_are_not_bare_keys(tmp_path: Path) -> None:
    text = PAIR.replace('"desk"', '"front desk"').replace('"ann"', '"ann.b"').replace('"weather"', '"wether"')

    assert faults_of(tmp_path, text) == [
        "scenario.\"front desk\".agent.\"ann.b\".tools: unknown tool 'wether'; did you mean 'weather'?"
    ]


TWO = 'default = "s"\n' + AGENT + '[[scenario]]\nid = "t"\n[[scenario.agent]]\nname = "a"\n'

CASES = {
    "an unknown key on top": ('defualt = "s"\n' + AGENT, "unknown key 'defualt'; did you mean 'default'?"),
    "an unknown key of a scenario": (
        '[[scenario]]\nid = "s"\nroots = "a"\n',
        "scenario.s: unknown key 'roots'; did you mean 'root'?",
    ),
    "an unknown key of an agent": (
        AGENT + 'tool = ["weather"]',
        "scenario.s.agent.a: unknown key 'tool'; did you mean 'tools'?",
    ),
    "an unknown key of a server": (
        AGENT + '[mcp.x]\nurl = "http://h"\nheader = {}',
        "mcp.x: unknown key 'header'; did you mean 'headers'?",
    ),
    "a server's name as a key": (AGENT + '[mcp.x]\nurl = "http://h"\nname = "x"', "mcp.x: unknown key 'name'; known: "),
    "an unknown limit": (AGENT + "[limits]\nmax_turn = 1", "limits: unknown key 'max_turn'; did you mean 'max_turns'?"),
    "a limit that is too low": (AGENT + "[limits]\nmax_turns = 0", "limits.max_turns: must be at least 1, not 0"),
    "a limit that is too high": (
        AGENT + "[limits]\nmax_turns = 1001",
        "limits.max_turns: must be at most 1000, not 1001",
    ),
    "a limit that is no number": (AGENT + "[limits]\nlease_s = true", "limits.lease_s: must be a number, not True"),
    "half a turn": (AGENT + "[limits]\nmax_turns = 1.5", "limits.max_turns: must be a whole number, not 1.5"),
    "limits that are no table": ("limits = 1\n" + AGENT, "limits: must be a table, not 1"),
    "no scenario": ("", "scenario: is missing; add a [[scenario]] table"),
    "no agent": ('[[scenario]]\nid = "s"\n', "scenario.s: has no agent; add a [[scenario.agent]] table"),
    "no id": ('[[scenario]]\n[[scenario.agent]]\nname = "a"', "scenario.#1.id: is missing"),
    "no name": ('[[scenario]]\nid = "s"\n[[scenario.agent]]\nrole = "x"', "scenario.s.agent.#1.name: is missing"),
    "no root": (PAIR.replace('root = "ann"', ""), "scenario.desk.root: is missing; name the agent"),
    "an unknown root": (
        PAIR.replace('root = "ann"', 'root = "an"'),
        "scenario.desk.root: the scenario has no agent 'an'; did you mean 'ann'?",
    ),
    "an unknown supervisor": (
        AGENT.replace('"s"\n', '"s"\nsupervisor = "x"\n'),
        "scenario.s.supervisor: the scenario has no agent 'x'; known: a",
    ),
    "a root that routes": (
        PAIR.replace('root = "ann"', 'root = "ann"\nsupervisor = "ann"'),
        "scenario.desk.root: 'ann' is the supervisor, which only routes",
    ),
    "an empty root": (PAIR.replace('"ann"\n\n', '" "\n\n', 1), "scenario.desk.root: is empty; leave the key out"),
    "an unknown default": ('default = "x"\n' + AGENT, "default: there is no scenario 'x'; known: s"),
    "an agent twice": (AGENT + '[[scenario.agent]]\nname = "a"\n', "scenario.s.agent.a: is described twice"),
    "a scenario twice": ('default = "s"\n' + AGENT + AGENT, "scenario.s: is described twice"),
    "one name, two agents": (TWO + 'model = "m"', "scenario.t.agent.a: another scenario describes this agent"),
    "an unknown shared agent": (
        AGENT + '[[scenario]]\nid = "t"\nshared = ["b"]',
        "scenario.t.shared: no scenario describes agent 'b'; known: a",
    ),
    "a shared agent that is there": (
        AGENT.replace('"s"\n', '"s"\nshared = ["a"]\n'),
        "scenario.s.shared: agent 'a' is already part of the scenario",
    ),
    "a bad name": (AGENT.replace('"a"', '"a "'), "scenario.s.agent.\"a \".name: 'a ' is not a valid name"),
    "a name that cannot be printed": (AGENT.replace('"a"', '"a\\u0007"'), "is not a valid name"),
    "a bad id": (AGENT.replace('"s"', '" s"'), "scenario.\" s\".id: ' s' is not a valid name"),
    "an empty name": (AGENT.replace('"a"', '" "'), "scenario.s.agent.#1.name: ' ' is not a valid name"),
    "a handoff to itself": (AGENT + 'handoffs = ["a"]', "scenario.s.agent.a.handoffs: 'a' is the agent itself"),
    "a subagent of itself": (AGENT + 'subagents = ["a"]', "scenario.s.agent.a.subagents: 'a' is the agent itself"),
    "an unknown subagent": (AGENT + 'subagents = ["b"]', "scenario.s.agent.a.subagents: there is no agent 'b'"),
    "approval of another tool": (AGENT + 'approval = ["weather"]', "agent.a.approval: the agent has no tool 'weather'"),
    "a tool twice": (AGENT + 'tools = ["weather", "weather"]', "scenario.s.agent.a.tools: lists 'weather' twice"),
    "tools that are no list": (AGENT + 'tools = "weather"', "agent.a.tools: must be an array, not 'weather'"),
    "a tool that is no name": (AGENT + "tools = [1]", "agent.a.tools.#1: must be a string, not 1"),
    "a tool without a name": (AGENT + 'tools = [" "]', "agent.a.tools.#1: is empty"),
    "a role that is no text": (AGENT + "role = 1", "agent.a.role: must be a string, not 1"),
    "an unknown server": (AGENT + 'mcp = ["x"]', "agent.a.mcp: there is no MCP server 'x'"),
    "a tool that a server does not offer": (
        AGENT + 'tools = ["x.b"]\n[mcp.x]\nurl = "http://h"\ntools = ["a"]',
        "agent.a.tools: unknown tool 'x.b'",
    ),
    "long instructions": (AGENT + f'instructions = "{"x" * 65_537}"', "agent.a.instructions: is over 65536 bytes"),
    "two instructions": (AGENT + 'instructions = "x"\ninstructions_file = "y"', "has both 'instructions' and"),
    "no such instructions": (
        AGENT + 'instructions_file = "y.md"',
        "agent.a.instructions_file: y.md cannot be read: No such",
    ),
    "many keywords": (
        AGENT + f"keywords = {{ {', '.join(f'k{n} = 1' for n in range(501))} }}",
        "agent.a.keywords: has more than 500 entries",
    ),
    "a keyword without a word": (AGENT + 'keywords = { "!?" = 1 }', "agent.a.keywords: '!?' contains no word"),
    "a weight that is no number": (AGENT + 'keywords = { x = "1" }', "keywords.x: must be a number, not '1'"),
    "a weight that is not finite": (AGENT + "keywords = { x = nan }", "keywords.x: must be at most 100, not nan"),
    "a weight that is too low": (AGENT + "keywords = { x = -101 }", "keywords.x: must be at least -100, not -101"),
    "a bad import path": (AGENT + '[tools]\nx = "tools.count"', "tools.x: 'tools.count' is not an import path"),
    "a tool called name": (AGENT + "[tools]\nname = 1", "tools.name: must be a string, not 1"),
    "a tool called [key]": (AGENT + '[tools]\n"[key]" = "a:b"', "tools.\"[key]\": '[key]' is not a valid name"),
    "a key called [key]": ('"[key]" = 1\n' + AGENT, "unknown key '[key]'; known: default"),
    "a bad tool name": (AGENT + '[tools]\n"x y" = "a:b"', "tools.\"x y\": 'x y' is not a valid name"),
    "a tool that is there": (
        AGENT + '[tools]\nweather = "a:b"',
        "tools.weather: is the name of a tool that comes with",
    ),
    "a bad server name": (AGENT + '[mcp."x y"]\nurl = "http://h"', "mcp.\"x y\": 'x y' is not a valid name"),
    "a server of two kinds": (
        AGENT + '[mcp.x]\nurl = "http://h"\ncommand = ["y"]',
        "mcp.x: needs either 'command' or 'url'",
    ),
    "a server of no kind": (AGENT + "[mcp.x]", "mcp.x: needs either 'command' or 'url'"),
    "a server that is no table": (AGENT + "[mcp]\nx = 1", "mcp.x: must be a table, not 1"),
    "an address of no host": (AGENT + '[mcp.x]\nurl = "ftp://h"', "mcp.x.url: must start with http:// or https://"),
    "a server's tool twice": (
        AGENT + '[mcp.x]\nurl = "http://h"\ntools = ["a", "a"]',
        "mcp.x.tools: lists a tool twice",
    ),
    "env for an address": (AGENT + '[mcp.x]\nurl = "http://h"\nenv = { A = "b" }', "mcp.x.env: belongs to 'command'"),
    "headers for a program": (
        AGENT + '[mcp.x]\ncommand = ["y"]\nheaders = { A = "b" }',
        "mcp.x.headers: belongs to 'url'",
    ),
    "a variable that is not set": (
        AGENT + '[mcp.x]\ncommand = ["y"]\nenv = { A = "${NO}" }',
        "mcp.x.env.A: needs the environment variable 'NO', which is not set",
    ),
    "no time for a model": (AGENT + "model_timeout_s = 0", "agent.a.model_timeout_s: must be at least 0.1"),
    "too much time for a provider": (AGENT + "[provider.x]\ntimeout_s = 1e9", "provider.x.timeout_s: must be at most"),
    "a scenario that is no table": ("scenario = [1]", "scenario.#1: must be a table, not 1"),
    "no TOML": ("[[scenario", "at end of document"),
}


@pytest.mark.parametrize(("text", "words"), CASES.values(), ids=CASES)
def test_a_fault_names_the_path_of_its_key(tmp_path: Path, text: str, words: str) -> None:
    assert [fault for fault in faults_of(tmp_path, text) if words in fault], faults_of(tmp_path, text)


KEYS = sorted({*AgentsFile.model_fields, *ScenarioTable.model_fields, *(key.name for key in fields(AgentSpec)), "x"})
VALUES = st.recursive(
    st.sampled_from(["", " ", "a", "weather", True, 1, -1, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), VALUES)
def test_any_values_are_accepted_or_refused_by_name(document: dict[str, object], scenario: object) -> None:
    with TemporaryDirectory() as folder:
        lines = [f"{key} = {toml(value)}" for key, value in {**document, "scenario": [scenario]}.items()]
        with suppress(RosterError):  # any other error is a failure
            read_roster(Path(folder), "\n".join(lines))


def test_instructions_of_all_agents_together_have_a_limit(tmp_path: Path) -> None:
    agents = "".join(f'[[scenario.agent]]\nname = "a{n}"\ninstructions = "{"x" * 60_000}"\n' for n in range(9))

    found = faults_of(tmp_path, f'[[scenario]]\nid = "s"\nroot = "a0"\n{agents}')

    assert found == ["scenario.s: the instructions of all agents together are over 524288 bytes; shorten them"]


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff", "is not UTF-8 text"), (b" " * (FILE_MAX_BYTES + 1), "is over 1048576 bytes")]
)
def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "magent2.toml"
    path.write_bytes(data)

    with pytest.raises(RosterError, match=words):
        load_agents_file(path, TOOLS)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match=r"none\.toml cannot be read: No such file"):
        load_agents_file(tmp_path / "none.toml", TOOLS)


def test_what_the_environment_may_name_as_a_tool_a_file_may_name_too() -> None:
    assert set(RunnerConfig.read({"AGENT_TOOLS": ",".join(known_tools())}).tools) == known_tools()


def test_the_page_has_every_key_of_the_file() -> None:
    page = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
    keys = [
        *LIMIT_NAMES,
        *RETENTION_NAMES,
        *(key.name for kind in (AgentSpec, McpServer, Scenario) for key in fields(kind)),
    ]

    absent = [key for key in keys if f"| `{key}` |" not in page]

    # The file says `[[scenario.agent]]` for these.
    assert absent == ["agents"]
