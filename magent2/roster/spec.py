"""Who exists, as values: an agent, a scenario that a team plays, and the roster that holds them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from magent2.errors import UnknownAgent, UnknownScenario

DEFAULT_SCENARIO = "default"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent. Its name is its mailbox; `tools`, `handoffs` and `mcp` are names.

    `keywords` are words and phrases that speak for the agent when mail is routed, each with its weight.
    `approval` are those of its tools that a person is asked about, besides those that always are.
    `subagents` are agents that it may start for a task of its own.
    """

    name: str
    role: str = ""
    instructions: str = ""
    model: str | None = None
    voice: str | None = None
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    keywords: Mapping[str, float] = field(default_factory=dict)
    mcp: tuple[str, ...] = ()
    approval: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A team and what it plays. A new session starts with `root`; `supervisor` routes and does not answer."""

    id: str
    agents: Mapping[str, AgentSpec]
    root: str
    supervisor: str | None = None
    title: str = ""

    def agent(self, name: str) -> AgentSpec:
        if name not in self.agents:
            raise UnknownAgent(f"scenario {self.id!r} has no agent {name[:80]!r}; {_there_is(name, self.agents)}")
        return self.agents[name]

    @property
    def answering(self) -> Mapping[str, AgentSpec]:
        """The agents that mail can be routed to: all but the supervisor."""
        return {name: agent for name, agent in self.agents.items() if name != self.supervisor}


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of tools: a program to start (`command`, `env`), or an address (`url`, `headers`).

    `tools` says which of its tools may be used; None means all. What `env` and `headers` hold does not print.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Roster:
    """All scenarios, where their tools are found (`module:attribute`), MCP servers and limits."""

    scenarios: Mapping[str, Scenario]
    tools: Mapping[str, str] = field(default_factory=dict)
    mcp: Mapping[str, McpServer] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    default: str = DEFAULT_SCENARIO

    @classmethod
    def of_environment(
        cls,
        name: str,
        *,
        model: str | None = None,
        instructions: str | None = None,
        tools: Sequence[str] = (),
        limits: Mapping[str, Any] | None = None,
    ) -> Roster:
        """A team of one, as AGENT_NAME and its companions describe it."""
        agent = AgentSpec(name, instructions=instructions or "", model=model, tools=tuple(tools))
        return cls({DEFAULT_SCENARIO: Scenario(DEFAULT_SCENARIO, {name: agent}, root=name)}, limits=dict(limits or {}))

    def scenario(self, scenario_id: str | None = None) -> Scenario:
        """The scenario, or the default one when none is named."""
        chosen = self.default if scenario_id is None else scenario_id
        if chosen not in self.scenarios:
            raise UnknownScenario(f"there is no scenario {chosen[:80]!r}; {_there_is(chosen, self.scenarios)}")
        return self.scenarios[chosen]

    def agent(self, scenario_id: str | None, name: str) -> AgentSpec:
        return self.scenario(scenario_id).agent(name)

    def agents(self) -> tuple[str, ...]:
        """All names, each once, in the order of the scenarios."""
        return tuple(dict.fromkeys(name for scenario in self.scenarios.values() for name in scenario.agents))

    def with_agent(self, agent: AgentSpec) -> Roster:
        """The same roster with this agent in place of the one of its name, in every scenario that has it."""
        changed = {
            key: replace(scenario, agents={**scenario.agents, agent.name: agent})
            for key, scenario in self.scenarios.items()
            if agent.name in scenario.agents
        }
        return replace(self, scenarios={**self.scenarios, **changed})


def _there_is(wanted: str, known: Mapping[str, Any]) -> str:
    names = ", ".join(repr(name) for name in known) or "none"
    near = nearest(wanted, known)
    return f"there is: {names}" + (f" (did you mean {near!r}?)" if near else "")


def nearest(wanted: str, known: Mapping[str, Any] | Sequence[str]) -> str | None:
    """The known name that looks most like the one that was written."""
    return next(iter(get_close_matches(wanted, list(known), n=1)), None)
