"""Agents of the Agents SDK that the operator's own code defines: found by import path, described, copied for a run.

Their code is not on the log. What a run pins of such an agent is its import path, its name and what the agents file and
the session add to it. Recorded turns are replayed whatever the code is now; new turns use the code of the worker.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from agents import Agent, FunctionTool, Handoff, HostedMCPTool, Model, RunContextWrapper, Tool, handoff

from magent2.errors import ModelError, SettingsError
from magent2.import_path import import_attribute
from magent2.models.address import NAME_MAX_CHARS, is_name
from magent2.roster.spec import AgentSpec
from magent2.runner.build import require_approval
from magent2.runner.journal.agents import check_tool
from magent2.runner.journal.model import refuse_server_state
from magent2.runner.journal.options import with_instructions
from magent2.runner.team.spec import TeamMember, TeamSpec

CAN_ASK = (FunctionTool, HostedMCPTool)  # the tools whose calls can wait for approval
CONNECT_MCP = "has mcp_servers, which only a program can connect; name them in [mcp] of an agents file"

log = logging.getLogger(__name__)


def import_agents(path: str, folder: Path | None = None) -> dict[str, Agent]:
    """Return the agents at `module:attribute` by name: one agent, or those of a list. Raises `SettingsError`."""
    target = import_attribute(path, folder)
    listed = list(target) if isinstance(target, list | tuple) else [target]
    if not listed:
        raise SettingsError(f"{path!r} is empty; list at least one agent")
    agents: dict[str, Agent] = {}
    for agent in listed:
        if not isinstance(agent, Agent):
            where = f"{path!r} has a" if isinstance(target, list | tuple) else f"{path!r} is a"
            raise SettingsError(f"{where} {type(agent).__name__}; name an Agent of the Agents SDK, or a list of them")
        if agents.setdefault(agent.name, agent) is not agent:
            raise SettingsError(f"{path!r} has two agents called {agent.name!r}; a name is a mailbox, rename one")
        _check(path, agent)
    return agents


def find_agent(path: str, name: str, folder: Path | None = None) -> Agent:
    """Return the agent of that name at an import path. Raises `SettingsError`."""
    agents = import_agents(path, folder)
    if name not in agents:
        names = ", ".join(map(repr, agents))
        raise SettingsError(f"{path!r} has no agent {name[:NAME_MAX_CHARS]!r}; its agents are {names}")
    return agents[name]


def describe_agents(path: str, folder: Path | None = None) -> Sequence[AgentSpec]:
    """Describe the agents at an import path for the roster: what lists of agents show, and their handoffs."""
    return [
        AgentSpec(
            agent.name,
            role=(agent.handoff_description or "").strip(),
            model=agent.model if isinstance(agent.model, str) else None,
            tools=tuple(tool.name for tool in agent.tools),
            handoffs=tuple(dict.fromkeys(_target_name(target) for target in agent.handoffs)),
            agent=path,
        )
        for agent in import_agents(path, folder).values()
    ]


def describe_all(paths: Iterable[str], folder: Path | None = None) -> Sequence[AgentSpec]:
    """Describe the agents at several import paths. Raises `SettingsError` if two of them have one name."""
    found: dict[str, AgentSpec] = {}
    for path in dict.fromkeys(paths):
        for agent in describe_agents(path, folder):
            other = found.setdefault(agent.name, agent)
            if other is not agent:
                raise SettingsError(
                    f"{other.agent!r} and {path!r} both have an agent called {agent.name!r};"
                    " a name is a mailbox, rename one"
                )
    return list(found.values())


def _check(path: str, agent: Agent) -> None:
    """Refuse an agent that could not be served: its name is no mailbox, or a crash would repeat what it does."""
    if not is_name(agent.name):
        raise SettingsError(
            f"{path!r}: {agent.name[:NAME_MAX_CHARS]!r} is not a valid name for an agent;"
            f" use 1 to {NAME_MAX_CHARS} printable characters"
        )
    if agent.mcp_servers:
        raise SettingsError(f"{path!r}: agent {agent.name!r} {CONNECT_MCP}")
    try:
        refuse_server_state(agent.model_settings, {})
        for tool in agent.tools:
            check_tool(tool, agent.name)
    except ModelError as error:
        raise SettingsError(f"{path!r}: agent {agent.name!r}: {error}") from error


def _with_approval(agent: Agent, names: Collection[str]) -> list[Tool]:
    """The tools of an agent, of which these need approval. One whose provider cannot ask for it is left out."""
    left_out = [tool.name for tool in agent.tools if tool.name in names and not isinstance(tool, CAN_ASK)]
    if left_out:
        log.error(
            "tools left out: their provider cannot ask for approval", extra={"agent": agent.name, "tools": left_out}
        )
    tools = [tool for tool in agent.tools if tool.name not in left_out]
    return [require_approval(tool) if tool.name in names else tool for tool in tools]


def _target_name(target: Agent | Handoff) -> str:
    return target.name if isinstance(target, Agent) else target.agent_name


class SdkAgentCopies:
    """Copies the SDK agents of a team run, and the agents that they hand off to, each once.

    A copy has what the agents file and the session add: approvals, instructions, another model. `model` replaces the
    models that agents name. A model that is an object is part of the code and is kept.
    """

    def __init__(self, spec: TeamSpec, model: Model | str | None, folder: Path | None) -> None:
        self._spec = spec
        self._model = model
        self._members: dict[int, TeamMember] = {}  # by `id` of the agent in the operator's code
        self.originals: dict[str, Agent] = {}
        self._copies: dict[int, Agent] = {}
        for name, member in spec.members.items():
            if member.agent is not None:
                original = self.originals[name] = find_agent(member.agent, name, folder)
                self._members[id(original)] = member

    def agents(self) -> dict[str, Agent]:
        return {name: self.copy_of(original) for name, original in self.originals.items()}

    def copy_of(self, agent: Agent) -> Agent:
        if id(agent) not in self._copies:
            member = self._members.get(id(agent))
            made = self._copies[id(agent)] = copy.copy(agent)
            if not isinstance(agent.model, Model):
                made.model = self._model or (member.model if member is not None else agent.model)
            if member is not None and member.role:
                made.handoff_description = member.role
            self._add_instructions(made, agent, member)
            made.tools = _with_approval(agent, () if member is None else member.approval)
            made.handoffs = [self._handoff(target) for target in agent.handoffs]
        return self._copies[id(agent)]

    def _add_instructions(self, made: Agent, agent: Agent, member: TeamMember | None) -> None:
        """Replace the instructions by those of the session, if it has some, and append the overlay."""
        added = self._spec.overlay.strip() if member is None else self._spec.instructions_of(member.name)
        if not added:
            return
        replaced = member is not None and bool(member.instructions)
        made.instructions = added if replaced else with_instructions(agent.instructions, added)

    def _handoff(self, target: Agent | Handoff) -> Handoff:
        """The handoff to the copy of its target."""
        if isinstance(target, Agent):
            return handoff(self.copy_of(target))
        made = copy.copy(target)

        async def invoke(context: RunContextWrapper, arguments: str) -> Agent:
            return self.copy_of(await target.on_invoke_handoff(context, arguments))

        made.on_invoke_handoff = invoke
        known_target = target._agent_ref() if target._agent_ref is not None else None
        if isinstance(known_target, Agent):
            made._agent_ref = weakref.ref(self.copy_of(known_target))  # `invoke` keeps the copy alive
        return made
