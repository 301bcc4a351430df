"""What a run of a team goes by, as one value: pinned when the run starts, the same for every attempt. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from magent2.bus.records import canonical
from magent2.roster.spec import AgentSpec, Roster, Scenario

MESSAGE, TOOL, ROUTE = "message", "tool", "route"  # the sorts of runs, as the header of their mail names them


@dataclass(frozen=True, slots=True)
class TeamMember:
    """An agent as a run has it: what the roster says, with what the session says instead."""

    name: str
    role: str = ""
    instructions: str = ""
    model: str | None = None
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()
    approval: tuple[str, ...] = ()  # of the tools: those that a person is asked about

    def payload(self) -> dict[str, Any]:
        return {key: _plain(value) for key, value in asdict(self).items() if value and key != "name"}

    @classmethod
    def of(cls, name: str, payload: Mapping[str, Any]) -> TeamMember:
        known = {item.name for item in fields(cls)} - {"name"}
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in payload.items()
        }
        return cls(name, **{key: value for key, value in given.items() if key in known})


@dataclass(frozen=True, slots=True)
class TeamSpec:
    """The agents that a run can reach, by name, and what is said to all of them."""

    scenario_id: str
    members: Mapping[str, TeamMember]
    overlay: str = ""
    kind: str = MESSAGE

    def payload(self) -> dict[str, Any]:
        """As JSON, without what is not said."""
        payload: dict[str, Any] = {
            "scenario_id": self.scenario_id,
            "agents": {name: member.payload() for name, member in self.members.items()},
        }
        if self.overlay:
            payload["overlay"] = self.overlay
        if self.kind != MESSAGE:
            payload["kind"] = self.kind
        return payload

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> TeamSpec:
        members = {name: TeamMember.of(name, given) for name, given in payload["agents"].items()}
        return cls(payload["scenario_id"], members, payload.get("overlay", ""), payload.get("kind", MESSAGE))

    def instructions_of(self, name: str) -> str | None:
        """The agent's own, then the overlay as its own paragraph."""
        parts = (self.members[name].instructions, self.overlay)
        return "\n\n".join(text for part in parts if (text := part.strip())) or None

    @property
    def digest(self) -> str:
        return hashlib.blake2b(canonical(self.payload()).encode(), digest_size=16).hexdigest()


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def resolve(
    roster: Roster, agent: str, settings: Mapping[str, Any], *, kind: str = MESSAGE, model: str | None = None
) -> TeamSpec:
    """What a run of this agent goes by as things stand. `model` is for agents that name none.

    The session's settings are for the agents of its scenario; one from elsewhere comes as it is.
    """
    scenario = scenario_of(roster, agent, settings.get("scenario_id"))
    own = settings if settings.get("scenario_id") in (None, scenario.id) else {}
    names = reachable(scenario, agent) if kind == MESSAGE else (agent,)
    changes = own.get("agents") or {}
    members = {name: _member(scenario.agents[name], changes.get(name) or {}, model) for name in names}
    return TeamSpec(scenario.id, members, own.get("overlay") or "", kind)


def _member(agent: AgentSpec, changes: Mapping[str, Any], model: str | None) -> TeamMember:
    return TeamMember(
        agent.name,
        role=agent.role,
        instructions=changes.get("instructions") or agent.instructions,
        model=changes.get("model") or agent.model or model,
        tools=agent.tools,
        handoffs=agent.handoffs,
        mcp=agent.mcp,
        approval=agent.approval,
        subagents=agent.subagents,
    )


def scenario_of(roster: Roster, agent: str, wanted: str | None) -> Scenario:
    """The session's scenario if the agent is in it; else the default one, else the first that has the agent."""
    preferred = [
        roster.scenarios[key] for key in (wanted, roster.default) if key is not None and key in roster.scenarios
    ]
    for scenario in (*preferred, *roster.scenarios.values()):
        if agent in scenario.agents:
            return scenario
    roster.agent(None, agent)  # says who there is
    raise AssertionError("an agent of the default scenario was found above")


def reachable(scenario: Scenario, start: str) -> tuple[str, ...]:
    """Return the agent and all agents that it can hand the conversation to, directly or indirectly."""
    found: dict[str, None] = {}
    waiting: list[str] = [start]
    while waiting:
        name = waiting.pop(0)
        if name not in found and name in scenario.agents:
            found[name] = None
            waiting.extend(scenario.agents[name].handoffs)
    return tuple(found)
