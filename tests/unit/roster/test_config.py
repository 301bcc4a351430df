"""A file of agents: what it may say, and how each fault is named."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from magent2.errors import RosterError, SettingsError
from magent2.gateway.limits.limits import DEFAULT_RATES, Limits
from magent2.roster.config import FILE_MAX_BYTES, load
from magent2.roster.limits import BOUNDS, limits_of
from magent2.roster.spec import AgentSpec, McpServer, Scenario
from magent2.runner.config import HISTORY_MAX, HISTORY_MAX_CHOICES, MAX_TURNS, MAX_TURNS_CHOICES, RunnerConfig
from magent2.sessions.approvals import APPROVAL_MAX_S
from magent2.tools.default_tools import known_tools
from magent2.worker.lane_run import RUN_MAX_S
from magent2.worker.service import CONCURRENCY, DRAIN_S, LEASE_S
from tests.unit.roster.writing import PAIR, TOOLS, faults, read, written

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

    loaded = load(written(tmp_path, WHOLE), TOOLS, {"SECRET": "s"})

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

    servers = read(tmp_path, WHOLE, {"SECRET": "s"}).mcp

    assert servers["files"].command == ("serve", "--root", ".")
    assert servers["files"].env == {"TOKEN": "x-s"}
    assert servers["files"].tools == ("read_file",)
    assert (servers["search"].url, servers["search"].tools) == ("https://example.org/mcp", None)
    assert servers["search"].headers == {"Authorization": "Bearer s"}


def test_an_agent_in_two_scenarios_is_one_agent(tmp_path: Path) -> None:
    again = PAIR.replace('"desk"', '"night"')
    roster = read(tmp_path, f'default = "desk"\n{PAIR}\n{again}')

    assert roster.agent("desk", "ann") is roster.agent("night", "ann")


def test_a_scenario_of_one_needs_no_root_and_an_only_scenario_is_the_default(tmp_path: Path) -> None:
    roster = read(tmp_path, '[[scenario]]\nid = "solo"\n[[scenario.agent]]\nname = "ann"\n')

    assert (roster.default, roster.scenario().root) == ("solo", "ann")


def test_every_fault_is_named_at_once_with_file_and_key(tmp_path: Path) -> None:
    text = PAIR.replace('handoffs = ["bob"]', 'handoffs = ["bop"]').replace('"weather"', '"wether"')

    with pytest.raises(RosterError) as raised:
        read(tmp_path, text)

    assert raised.value.faults == (
        "scenario 'desk', agent 'ann', handoffs: the scenario has no agent 'bop'; did you mean 'bob'?",
        "scenario 'desk', agent 'ann', tools: nobody knows a tool 'wether'; did you mean 'weather'?",
    )
    assert str(raised.value).startswith(f"{tmp_path / 'magent2.toml'} cannot be used: scenario 'desk'")


AGENT = '[[scenario]]\nid = "s"\n[[scenario.agent]]\nname = "a"\n'
TWO = 'default = "s"\n' + AGENT + '[[scenario]]\nid = "t"\n[[scenario.agent]]\nname = "a"\n'

CASES = {
    "an unknown key on top": ('defualt = "s"\n' + AGENT, "unknown key 'defualt'; did you mean 'default'?"),
    "an unknown key of a scenario": ('[[scenario]]\nid = "s"\nroots = "a"\n', "did you mean 'root'?"),
    "an unknown key of an agent": (AGENT + 'tool = ["weather"]', "unknown key 'tool'; did you mean 'tools'?"),
    "an unknown key of a server": (AGENT + '[mcp.x]\nurl = "http://h"\nheader = {}', "did you mean 'headers'?"),
    "an unknown limit": (AGENT + "[limits]\nmax_turn = 1", "limits: unknown key 'max_turn'; did you mean 'max_turns'?"),
    "a limit out of range": (AGENT + "[limits]\nmax_turns = 0", "limits, max_turns: must be from 1 to 1000, not 0"),
    "a limit that is no number": (AGENT + "[limits]\nmax_turns = true", "must be a number, not True"),
    "half a turn": (AGENT + "[limits]\nmax_turns = 1.5", "must be a whole number, not 1.5"),
    "no scenario": ("", "there is none; begin with [[scenario]]"),
    "no agent": ('[[scenario]]\nid = "s"\n', "scenario 's': has no agent; add [[scenario.agent]]"),
    "no id": ('[[scenario]]\n[[scenario.agent]]\nname = "a"', "scenario 1, id: is missing"),
    "no name": ('[[scenario]]\nid = "s"\n[[scenario.agent]]\nrole = "x"', "scenario 's', agent 1, name: is missing"),
    "no root": (PAIR.replace('root = "ann"', ""), "scenario 'desk', root: is missing"),
    "an unknown root": (
        PAIR.replace('root = "ann"', 'root = "an"'),
        "root: the scenario has no agent 'an'; did you mean",
    ),
    "an unknown supervisor": (
        AGENT.replace('"s"\n', '"s"\nsupervisor = "x"\n'),
        "supervisor: the scenario has no agent",
    ),
    "a root that routes": (
        PAIR.replace('root = "ann"', 'root = "ann"\nsupervisor = "ann"'),
        "root: 'ann' is the supervisor, which routes and does not answer",
    ),
    "an unknown default": ('default = "x"\n' + AGENT, "default: there is no scenario 'x'"),
    "an agent twice": (AGENT + '[[scenario.agent]]\nname = "a"\n', "scenario 's', agent 'a': is there twice"),
    "a scenario twice": ('default = "s"\n' + AGENT + AGENT, "scenario 's': is there twice"),
    "one name, two agents": (TWO + 'model = "m"', "scenario 't', agent 'a': another agent of that name"),
    "an unknown shared agent": (AGENT + '[[scenario]]\nid = "t"\nshared = ["b"]', "shared: no scenario describes"),
    "a bad name": (AGENT.replace('"a"', '"a "'), "agent 'a ': cannot be a name"),
    "a name that cannot be printed": (AGENT.replace('"a"', '"a\\u0007"'), "cannot be a name"),
    "a bad id": (AGENT.replace('"s"', '" s"'), "scenario ' s': cannot be a name"),
    "an empty name": (AGENT.replace('"a"', '" "'), "name: is empty"),
    "a handoff to itself": (AGENT + 'handoffs = ["a"]', "handoffs: 'a' is the agent itself"),
    "a subagent of itself": (AGENT + 'subagents = ["a"]', "subagents: an agent cannot start itself"),
    "a tool twice": (AGENT + 'tools = ["weather", "weather"]', "tools: has 'weather' twice"),
    "tools that are no list": (AGENT + 'tools = "weather"', "tools: must be a list, not 'weather'"),
    "a tool that is no name": (AGENT + "tools = [1]", "tools: has 1, which is no name"),
    "an unknown server": (AGENT + 'mcp = ["x"]', "mcp: there is no [mcp.x]"),
    "a tool that a server does not offer": (
        AGENT + 'tools = ["x.b"]\n[mcp.x]\nurl = "http://h"\ntools = ["a"]',
        "nobody knows a tool 'x.b'",
    ),
    "long instructions": (AGENT + f'instructions = "{"x" * 65_537}"', "instructions: are over 65536 bytes"),
    "two instructions": (AGENT + 'instructions = "x"\ninstructions_file = "y"', "has both 'instructions' and"),
    "no such instructions": (AGENT + 'instructions_file = "y.md"', "instructions_file: y.md cannot be read: No such"),
    "a keyword without a word": (AGENT + 'keywords = { "!?" = 1 }', "keywords: '!?' has no word in it"),
    "a weight that is no number": (AGENT + 'keywords = { x = "1" }', "keywords.x: must be a number, not '1'"),
    "a weight that is not finite": (AGENT + "keywords = { x = nan }", "the weight of 'x' must be from -100 to 100"),
    "a bad import path": (AGENT + '[tools]\nx = "tools.count"', "tools, 'x': 'tools.count' is no 'module:attribute'"),
    "a bad tool name": (AGENT + '[tools]\n"x y" = "a:b"', "tools, 'x y': cannot be used"),
    "a tool that is there": (AGENT + '[tools]\nweather = "a:b"', "is the name of a tool that is there already"),
    "a server of two kinds": (AGENT + '[mcp.x]\nurl = "http://h"\ncommand = ["y"]', "needs either 'command' or 'url'"),
    "a server of no kind": (AGENT + "[mcp.x]", "mcp.x: needs either 'command' or 'url'"),
    "a server that is no table": (AGENT + "[mcp]\nx = 1", "mcp.x: must be a table, not 1"),
    "an address of no host": (AGENT + '[mcp.x]\nurl = "ftp://h"', "url: must begin with http:// or https://"),
    "env for an address": (AGENT + '[mcp.x]\nurl = "http://h"\nenv = { A = "b" }', "env: belongs to 'command'"),
    "headers for a program": (AGENT + '[mcp.x]\ncommand = ["y"]\nheaders = { A = "b" }', "headers: belong to 'url'"),
    "a variable that is not set": (
        AGENT + '[mcp.x]\ncommand = ["y"]\nenv = { A = "${NO}" }',
        "needs the variable 'NO'",
    ),
    "a scenario that is no table": ("scenario = [1]", "scenario: has 1 where a table is wanted"),
    "no TOML": ("[[scenario", "at end of document"),
}


@pytest.mark.parametrize(("text", "words"), CASES.values(), ids=CASES)
def test_a_fault_is_named_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    assert [fault for fault in faults(tmp_path, text) if words in fault], faults(tmp_path, text)


def test_instructions_of_all_agents_together_have_a_limit(tmp_path: Path) -> None:
    agents = "".join(f'[[scenario.agent]]\nname = "a{n}"\ninstructions = "{"x" * 60_000}"\n' for n in range(9))

    found = faults(tmp_path, f'[[scenario]]\nid = "s"\nroot = "a0"\n{agents}')

    assert found == ["scenario 's': the instructions of all agents together are over 524288 bytes"]


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff", "is not UTF-8 text"), (b" " * (FILE_MAX_BYTES + 1), "is over 1048576 bytes")]
)
def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "magent2.toml"
    path.write_bytes(data)

    with pytest.raises(RosterError, match=words):
        load(path, TOOLS)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match=r"none\.toml cannot be read: No such file"):
        load(tmp_path / "none.toml", TOOLS)


OF_WORKERS = {
    "max_turns": MAX_TURNS,
    "history_max": HISTORY_MAX,
    "concurrency": CONCURRENCY,
    "run_max_s": RUN_MAX_S,
    "run_drain_s": DRAIN_S,
    "approval_max_s": APPROVAL_MAX_S,
    "lease_s": LEASE_S,
}
OF_GATEWAYS = {
    **{name: value for name, value in asdict(Limits()).items() if name != "rates"},
    **{f"{kind}_per_s": rate.per_s for kind, rate in DEFAULT_RATES.items()},
    **{f"{kind}_burst": rate.burst for kind, rate in DEFAULT_RATES.items()},
}


def test_limits_are_those_of_the_worker_and_of_the_gateway_and_defaults_are_in_range() -> None:
    defaults = OF_WORKERS | OF_GATEWAYS

    assert BOUNDS.keys() == defaults.keys()
    for name, choices in (("max_turns", MAX_TURNS_CHOICES), ("history_max", HISTORY_MAX_CHOICES)):
        assert (BOUNDS[name].low, BOUNDS[name].high) == (choices[0], choices[-1])
    for name, value in defaults.items():
        assert BOUNDS[name].low <= value <= BOUNDS[name].high
        assert BOUNDS[name].whole == isinstance(value, int)


@pytest.mark.parametrize("name", OF_GATEWAYS)
def test_every_limit_of_a_gateway_reaches_it_from_the_file_and_from_the_environment(tmp_path: Path, name: str) -> None:
    value = OF_GATEWAYS[name] + 1
    in_file = read(tmp_path, f"{AGENT}[limits]\n{name} = {value}").limits

    by_file, by_environment = Limits.of(in_file), Limits.of(limits_of({name: str(value)}))

    assert by_file == by_environment
    shown = {**asdict(by_file), **{f"{kind}_per_s": rate.per_s for kind, rate in by_file.rates.items()}}
    shown |= {f"{kind}_burst": rate.burst for kind, rate in by_file.rates.items()}
    assert {key: shown[key] for key in OF_GATEWAYS} == OF_GATEWAYS | {name: value}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            {"wait_max": "1"},
            "MAGENT2_LIMIT_WAIT_MAX is a limit that nobody knows; did you mean MAGENT2_LIMIT_WAIT_MAX_S?",
        ),
        ({"wait_max_s": "long"}, "MAGENT2_LIMIT_WAIT_MAX_S must be a number, not 'long'"),
        ({"wait_max_s": "nan"}, "MAGENT2_LIMIT_WAIT_MAX_S must be from 0 to 3600, not nan"),
        ({"send_burst": "1.5"}, "MAGENT2_LIMIT_SEND_BURST must be a whole number, not 1.5"),
        ({"send_burst": "0"}, "MAGENT2_LIMIT_SEND_BURST must be from 1 to 1e"),
    ],
)
def test_a_limit_of_the_environment_that_cannot_be_used_is_refused_by_name(texts: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        limits_of(texts)


def test_what_the_environment_may_name_as_a_tool_a_file_may_name_too() -> None:
    assert set(RunnerConfig.read({"AGENT_TOOLS": ",".join(known_tools())}).tools) == known_tools()


def test_the_page_has_every_key_of_the_file() -> None:
    page = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
    keys = [*BOUNDS, *(key for kind in (AgentSpec, McpServer, Scenario) for key in kind.__dataclass_fields__)]

    absent = [key for key in keys if f"| `{key}` |" not in page]

    # The file says `[[scenario.agent]]` for these.
    assert absent == ["agents"]
