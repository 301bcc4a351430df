"""The agents of a run as the SDK wants them, made from what the run goes by."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents import Agent, FunctionTool, Handoff, HostedMCPTool, Model, ModelSettings, RunContextWrapper, Tool

from magent2.runner.team_spec import Member, TeamSpec
from magent2.runner.team_tools import function_tool_of, gone_tool, own_tools
from magent2.sandbox.interface import Sandbox
from magent2.sessions.history import RunRecord
from magent2.sessions.views import calls_of
from magent2.tools.allowlist import grants_of
from magent2.tools.builtins import BUILTINS, BuiltinTools, ModelKind
from magent2.tools.mcp import McpServers, model_name
from magent2.tools.registry import ToolRegistry

GRAPHS_MAX = 64  # teams that are kept built
OPENAI_PREFIX = "openai/"

log = logging.getLogger(__name__)

# Agent → names of tools that it has called in earlier attempts at the run.
Called = Mapping[str, frozenset[str]]


def asked_first(tool: Tool) -> Tool:
    """The tool, as one that a person is asked about."""
    asked = copy.copy(tool)
    if isinstance(asked, FunctionTool):
        asked.needs_approval = True
    elif isinstance(asked, HostedMCPTool):
        asked.tool_config = {**asked.tool_config, "require_approval": "always"}
    return asked


def called_in(run: RunRecord) -> dict[str, frozenset[str]]:
    """What agents have called so far, as recorded."""
    called: dict[str, frozenset[str]] = {}
    for answer in run.answers.values():
        names = frozenset(str(call["name"]) for call in calls_of(answer["response"].get("output", ())))
        if names:
            called[answer["speaker"]] = called.get(answer["speaker"], frozenset()) | names
    return called


@dataclass(slots=True)
class TeamGraphs:
    """Builds teams, and keeps those that were used lately."""

    tools: ToolRegistry
    builtins: BuiltinTools
    mcp: McpServers
    sandbox: Sandbox
    kind: ModelKind
    model: Model | str | None = None  # for every agent, whatever it names itself
    _built: OrderedDict[tuple[str, str], Agent[Any]] = field(default_factory=OrderedDict)

    def get(self, spec: TeamSpec, start: str, run: RunRecord) -> Agent[Any]:
        """The agent that the run starts with. A run that was cut short keeps the tools that it has called."""
        called = called_in(run)
        if called:
            return self._build(spec, called)[start]
        key = (spec.digest, start)
        if key not in self._built:
            self._built[key] = self._build(spec, {})[start]
            if len(self._built) > GRAPHS_MAX:
                self._built.popitem(last=False)
        self._built.move_to_end(key)
        return self._built[key]

    def forget(self) -> None:
        """Another roster may mean other tools under the same names."""
        self._built.clear()

    def _build(self, spec: TeamSpec, called: Called) -> dict[str, Agent[Any]]:
        agents = {name: self._agent(spec, member) for name, member in spec.members.items()}
        for name, member in spec.members.items():
            agents[name].handoffs = [agents[target] for target in member.handoffs if target in agents]
            self._give_late_tools(agents[name], member, called.get(name, frozenset()))
        return agents

    def _agent(self, spec: TeamSpec, member: Member) -> Agent[Any]:
        hosted = self._hosted(member)
        limit = ModelSettings(extra_args={"max_tool_calls": self.builtins.calls_max}) if hosted else ModelSettings()
        return Agent(
            name=member.name,
            handoff_description=member.role or None,
            instructions=spec.instructions_of(member.name),
            model=self.model if self.model is not None else member.model,
            model_settings=limit,
            tools=[*self._own(member), *hosted],
        )

    def _own(self, member: Member) -> list[Tool]:
        """Tools that run here. One that this process does not have is left out, and the log says so."""
        names = [name for name in member.tools if name not in BUILTINS and "." not in name]
        missing = [name for name in names if name not in self.tools]
        if missing:
            log.error("an agent's tools are missing here", extra={"agent": member.name, "tools": missing})
        return [function_tool_of(tool) for tool in own_tools(self.tools, self.sandbox, self.mcp, member)]

    def _hosted(self, member: Member) -> list[Tool]:
        """Tools that the model's provider runs, as far as this model can take them."""
        kind = self.kind_of(member.model)
        built = {name: self.builtins.build(name, kind) for name in member.tools if name in BUILTINS}
        there = {name: tool for name, tool in built.items() if tool is not None}
        asked = {name: asked_first(tool) for name, tool in there.items() if name in member.approval}
        unasked = [name for name, tool in asked.items() if not isinstance(tool, HostedMCPTool)]
        if unasked:  # rather than let them run without a word
            log.error("left out: their provider asks nobody", extra={"agent": member.name, "tools": unasked})
        return [asked.get(name, tool) for name, tool in there.items() if name not in unasked]

    def kind_of(self, model: str | None) -> ModelKind:
        """A model that is named with another provider is not on OpenAI's own API."""
        elsewhere = self.model is None and "/" in (model or "") and not (model or "").startswith(OPENAI_PREFIX)
        return "compatible" if elsewhere and self.kind == "openai" else self.kind

    def _give_late_tools(self, agent: Agent[Any], member: Member, called: frozenset[str]) -> None:
        """Tools that are only known when a turn begins: those of MCP servers, and stand-ins for what is gone."""
        grants = grants_of(member.tools, member.mcp)
        own = {tool.name for tool in agent.tools}
        handoffs = {Handoff.default_tool_name(target) for target in agent.handoffs if isinstance(target, Agent)}
        wanted = called - own - handoffs
        asked = {model_name(*name.split(".", 1)) for name in member.approval if "." in name}
        if not grants and not wanted:
            return

        async def get_mcp_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            found = [tool for tool in await self.mcp.tools(grants) if tool.name not in own]
            there: list[Tool] = [asked_first(tool) if tool.name in asked else tool for tool in found]
            gone = wanted - {tool.name for tool in there}
            return [*there, *(gone_tool(name) for name in sorted(gone))]

        late: Callable[[RunContextWrapper[Any]], Awaitable[list[Tool]]] = get_mcp_tools
        object.__setattr__(agent, "get_mcp_tools", late)
