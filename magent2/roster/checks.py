"""What must hold between the parts of a roster. Pure: every fault is a line that names its place."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from magent2.models.address import NAME_MAX_CHARS, is_name
from magent2.roster.routing import words_of
from magent2.roster.spec import AgentSpec, Roster, Scenario, nearest

INSTRUCTIONS_MAX_BYTES = 64 << 10
SCENARIO_MAX_BYTES = 512 << 10  # of instructions; a run's record holds those of the whole team
KEYWORDS_MAX = 500
WEIGHT_MAX = 100.0

_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what models take as the name of a function
_IMPORT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def faults_of(roster: Roster, known_tools: Collection[str]) -> list[str]:
    """Everything that is wrong with a roster; nothing, when it can be used."""
    return [
        *_tool_faults(roster, known_tools),
        *(f"mcp, {name!r}: {_BAD_TOOL_NAME}" for name in roster.mcp if not _TOOL.fullmatch(name)),
        *_default_faults(roster),
        *(fault for scenario in roster.scenarios.values() for fault in _scenario_faults(roster, scenario, known_tools)),
    ]


_BAD_NAME = f"cannot be a name: take 1 to {NAME_MAX_CHARS} printable characters, no outer spaces"
_BAD_TOOL_NAME = "cannot be used: take 1 to 64 letters, digits, '_' or '-'"


def _tool_faults(roster: Roster, known_tools: Collection[str]) -> Iterator[str]:
    for name, path in roster.tools.items():
        if not _TOOL.fullmatch(name):
            yield f"tools, {name[:80]!r}: {_BAD_TOOL_NAME}"
        if name in known_tools:
            yield f"tools, {name!r}: is the name of a tool that is there already; take another"
        if not _IMPORT.fullmatch(path):
            yield f"tools, {name!r}: {path[:80]!r} is no 'module:attribute'"


def _default_faults(roster: Roster) -> Iterator[str]:
    if not roster.scenarios:
        yield "scenario: there is none; begin with [[scenario]]"
    elif roster.default not in roster.scenarios:
        yield f"default: there is no scenario {roster.default!r}{_hint(roster.default, roster.scenarios)}"


def _scenario_faults(roster: Roster, scenario: Scenario, known_tools: Collection[str]) -> Iterator[str]:
    place = f"scenario {scenario.id!r}"
    if scenario.id and not is_name(scenario.id):
        yield f"{place}: {_BAD_NAME}"
    if not scenario.agents:
        yield f"{place}: has no agent; add [[scenario.agent]]"
    for key, name in (("root", scenario.root), ("supervisor", scenario.supervisor)):
        if name and name not in scenario.agents:
            yield f"{place}, {key}: the scenario has no agent {name!r}{_hint(name, scenario.agents)}"
    if scenario.root and scenario.root == scenario.supervisor:
        yield f"{place}, root: {scenario.root!r} is the supervisor, which routes and does not answer"
    if sum(len(agent.instructions.encode()) for agent in scenario.agents.values()) > SCENARIO_MAX_BYTES:
        yield f"{place}: the instructions of all agents together are over {SCENARIO_MAX_BYTES} bytes"
    for agent in scenario.agents.values():
        for fault in _agent_faults(roster, scenario, agent, known_tools):
            yield f"{place}, agent {agent.name!r}{fault}"


def _agent_faults(roster: Roster, scenario: Scenario, agent: AgentSpec, known_tools: Collection[str]) -> Iterator[str]:
    if agent.name and not is_name(agent.name):
        yield f": {_BAD_NAME}"
    if len(agent.instructions.encode()) > INSTRUCTIONS_MAX_BYTES:
        yield f", instructions: are over {INSTRUCTIONS_MAX_BYTES} bytes"
    for name in agent.handoffs:
        if name == agent.name:
            yield f", handoffs: {name!r} is the agent itself"
        elif name not in scenario.agents:
            yield f", handoffs: the scenario has no agent {name!r}{_hint(name, scenario.agents)}"
    for name in agent.mcp:
        if name not in roster.mcp:
            yield f", mcp: there is no [mcp.{name}]{_hint(name, roster.mcp)}"
    for name in agent.tools:
        if not _is_tool(roster, name, known_tools):
            yield f", tools: nobody knows a tool {name!r}{_hint(name, [*known_tools, *roster.tools])}"
    yield from _approval_faults(agent)
    yield from _subagent_faults(roster, agent)
    yield from _keyword_faults(agent)


def _is_tool(roster: Roster, name: str, known_tools: Collection[str]) -> bool:
    """Whether a tool of that name can be: known, in `[tools]`, or `server.tool` of a server that offers it."""
    if name in known_tools or name in roster.tools:
        return True
    server = roster.mcp.get(name.partition(".")[0])
    tool = name.partition(".")[2]
    return server is not None and bool(tool) and (server.tools is None or tool in server.tools)


def _approval_faults(agent: AgentSpec) -> Iterator[str]:
    for name in agent.approval:
        if name not in agent.tools and name.partition(".")[0] not in agent.mcp:
            yield f", approval: {name!r} is none of its tools{_hint(name, agent.tools)}"


def _subagent_faults(roster: Roster, agent: AgentSpec) -> Iterator[str]:
    for name in agent.subagents:
        if name not in roster.agents():
            yield f", subagents: there is no agent {name!r}{_hint(name, roster.agents())}"
        if name == agent.name:
            yield ", subagents: an agent cannot start itself; describe another"


def _keyword_faults(agent: AgentSpec) -> Iterator[str]:
    if len(agent.keywords) > KEYWORDS_MAX:
        yield f", keywords: has {len(agent.keywords)}, the limit is {KEYWORDS_MAX}"
    for keyword, weight in agent.keywords.items():
        if not words_of(keyword):
            yield f", keywords: {keyword[:80]!r} has no word in it"
        if not math.isfinite(weight) or abs(weight) > WEIGHT_MAX:
            yield f", keywords: the weight of {keyword[:80]!r} must be from {-WEIGHT_MAX:g} to {WEIGHT_MAX:g}"


def _hint(wanted: str, known: Collection[str]) -> str:
    near = nearest(wanted, list(known))
    return f"; did you mean {near!r}?" if near else f"; there is: {', '.join(sorted(known)) or 'none'}"
