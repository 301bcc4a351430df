"""The SDK agents of a team run, built from its specification."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agents import Agent, Handoff, HostedMCPTool, Model, ModelSettings, RunContextWrapper, Tool, handoff

from magent2.models.json_types import JsonObject
from magent2.runner.attachments import TEXT_ONLY, USUAL_CONTENT
from magent2.runner.build import function_tool_of, require_approval, unavailable_tool, with_python
from magent2.runner.context import RunContext
from magent2.runner.guardrails import input_guardrail, output_guardrail
from magent2.runner.journal.compaction import RequestPolicy
from magent2.runner.journal.output import SchemaOutput, stored_schema
from magent2.runner.providers.catalogue import OwnServer
from magent2.runner.providers.provider import AgentModels, LoopProvider
from magent2.runner.providers.settings import sdk_settings
from magent2.runner.team.sdk_agents import SdkAgentCopies
from magent2.runner.team.spec import TeamMember, TeamSpec
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.python_tool import LateTools
from magent2.sessions.folds import function_calls
from magent2.sessions.history import RunRecord
from magent2.tools.builtins import BUILTINS, ROUTING_KINDS, BuiltinTools, ModelKind, kind_of_models
from magent2.tools.definition import ToolDefinition
from magent2.tools.mcp import McpServers, model_name
from magent2.tools.registry import ToolRegistry, grants_of
from magent2.tools.subagents import subagent_tools

GRAPHS_MAX = 64  # teams whose agents are cached
HANDOFF_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": "Why this agent continues, in one short sentence."}},
    "required": ["reason"],
    "additionalProperties": False,
}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TeamGraphs:
    """Builds the agents of teams. Caches those of the teams that ran last."""

    tools: ToolRegistry
    builtins: BuiltinTools
    mcp: McpServers
    sandbox: Sandbox
    kind: ModelKind
    provider: LoopProvider
    model: Model | str | None = None  # replaces the model of every agent
    folder: Path | None = None  # where modules of guardrails and SDK agents are looked for first
    _cache: OrderedDict[tuple[str, str], Agent] = field(default_factory=OrderedDict)

    def get(self, spec: TeamSpec, start: str, run: RunRecord) -> Agent:
        """The agent that the run starts with. A resumed run keeps the tools that it has called."""
        called = called_tools(run)
        if called:
            return self._build(spec, called)[start]
        key = (spec.digest, start)
        if key not in self._cache:
            self._cache[key] = self._build(spec, {})[start]
            if len(self._cache) > GRAPHS_MAX:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def contexts(self, spec: TeamSpec, runs_max: int | None) -> dict[str, RequestPolicy]:
        """What the requests of each agent may contain. `runs_max`: earlier runs in them.

        The content is what the roster says, else what its kind of model takes.
        """
        usual = USUAL_CONTENT if self.kind in ROUTING_KINDS else TEXT_ONLY
        return {
            name: RequestPolicy(
                accepts=frozenset(member.accepts) | TEXT_ONLY if member.accepts else usual,
                context_max=member.context_max,
                summary_model=self._summary_model_of(member),
                runs_max=runs_max,
            )
            for name, member in spec.members.items()
        }

    def _summary_model_of(self, member: TeamMember) -> Model | str | None:
        """The model that makes the summaries of an agent, if it is not its own. It is on the same server."""
        if self.model is not None or member.summary_model is None:
            return None
        if member.own_server.is_set:
            return AgentModels(self.provider, (member.summary_model,), member.own_server)
        return member.summary_model

    def clear_cache(self) -> None:
        """Forget all agents. Another roster may define other tools under the same names."""
        self._cache.clear()

    def _build(self, spec: TeamSpec, called: Mapping[str, frozenset[str]]) -> dict[str, Agent]:
        agents = SdkAgentCopies(spec, self.model, self.folder).agents()
        agents |= {name: self._agent(spec, member) for name, member in spec.members.items() if member.agent is None}
        for name, member in spec.members.items():
            own = {target.agent_name for target in agents[name].handoffs if isinstance(target, Handoff)}
            targets = [target for target in member.handoffs if target in agents and target not in own]
            agents[name].handoffs = [*agents[name].handoffs, *(handoff_to(agents[target]) for target in targets)]
            self._add_late_tools(agents[name], member, called.get(name, frozenset()))
        return agents

    def _agent(self, spec: TeamSpec, member: TeamMember) -> Agent:
        hosted = self._hosted_tools(member)
        limit = ModelSettings(extra_args={"max_tool_calls": self.builtins.calls_max}) if hosted else None
        return Agent(
            name=member.name,
            handoff_description=member.role or None,
            instructions=spec.instructions_of(member.name),
            model=self.model_of(member),
            model_settings=sdk_settings(member.model_settings).resolve(limit),
            tools=[*self._local_tools(member), *hosted],
            input_guardrails=[input_guardrail(path, self.folder) for path in member.input_guardrails],
            output_guardrails=[output_guardrail(path, self.folder) for path in member.output_guardrails],
            output_type=None if member.output_schema is None else SchemaOutput(stored_schema(member.output_schema)),
        )

    def model_of(self, member: TeamMember) -> Model | str | None:
        """The model of an agent: the one that replaces all, a name for the provider, or several names as one model."""
        if self.model is not None:
            return self.model
        if member.fallbacks or member.own_server != OwnServer():
            return AgentModels(self.provider, member.models, member.own_server)
        return member.model

    def _local_tools(self, member: TeamMember) -> list[Tool]:
        """The tools that run in this process. Tools that the registry lacks are left out and logged."""
        names = [name for name in member.tools if name not in BUILTINS and "." not in name]
        missing = [name for name in names if name not in self.tools]
        if missing:
            log.error("the tool registry lacks tools of an agent", extra={"agent": member.name, "tools": missing})
        tools = [*local_tools(self.tools, self.sandbox, self.mcp, member), *self._implementations(member)]
        return [function_tool_of(tool) for tool in tools]

    def _implementations(self, member: TeamMember) -> list[ToolDefinition]:
        """The built-in tools that the operator implements. They are not functions of Python blocks."""
        found = {name: self.builtins.implementation(name, self.kind) for name in member.tools if name in BUILTINS}
        return [
            replace(tool, needs_approval=tool.needs_approval or name in member.approval)
            for name, tool in found.items()
            if tool is not None and tool.name not in member.tools
        ]

    def _hosted_tools(self, member: TeamMember) -> list[Tool]:
        """The tools that the model's provider runs, without those that this model does not support.

        A tool that needs approval is left out if its provider cannot ask for it: it must not run without approval.
        """
        kind = self.kind
        if self.model is None:
            kind = kind_of_models(kind, member.models, own_server=member.own_server.is_set)
        tools: list[Tool] = []
        without_approval: list[str] = []
        for name in member.tools:
            tool = self.builtins.build(name, kind) if name in BUILTINS else None
            if tool is None:
                continue
            if name not in member.approval:
                tools.append(tool)
            elif isinstance(tool, HostedMCPTool):
                tools.append(require_approval(tool))
            else:
                without_approval.append(name)
        if without_approval:
            log.error(
                "tools left out: their provider cannot ask for approval",
                extra={"agent": member.name, "tools": without_approval},
            )
        return tools

    def _add_late_tools(self, agent: Agent, member: TeamMember, called: frozenset[str]) -> None:
        """Add tools that are known only when a turn starts: those of MCP servers, and stand-ins for missing ones.

        The SDK asks `get_mcp_tools` for them. An agent has no other hook for tools that change between turns.
        """
        grants = grants_of(member.tools, member.mcp)
        own = {tool.name for tool in agent.tools}
        handoffs = {target.tool_name for target in agent.handoffs if isinstance(target, Handoff)}
        needed = called - own - handoffs
        with_approval = _mcp_tools_with_approval(member)
        if not grants and not needed:
            return

        async def get_mcp_tools(context: RunContextWrapper) -> list[Tool]:
            available: list[Tool] = [tool for tool in await self.mcp.tools(grants) if tool.name not in own]
            if isinstance(context.context, RunContext):
                context.context.mcp_unavailable.update(self.mcp.unavailable(grants))
            missing = needed - {tool.name for tool in available}
            return [
                *(require_approval(tool) if tool.name in with_approval else tool for tool in available),
                *(unavailable_tool(name) for name in sorted(missing)),
            ]

        hook: Callable[[RunContextWrapper], Awaitable[list[Tool]]] = get_mcp_tools
        object.__setattr__(agent, "get_mcp_tools", hook)


def handoff_to(agent: Agent) -> Handoff:
    """The handoff `transfer_to_{agent}`, whose `reason` the event of the handoff shows.

    The reason is not validated when the model calls it: a handoff without one is better than a failed run.
    """
    made = handoff(agent)
    made.input_json_schema = HANDOFF_SCHEMA
    return made


def called_tools(run: RunRecord) -> dict[str, frozenset[str]]:
    """For each agent, the names of the tools that it called in earlier attempts at the run."""
    called: dict[str, frozenset[str]] = {}
    for answer in run.answers.values():
        names = frozenset(str(call["name"]) for call in function_calls(answer["response"].get("output", ())))
        if names:
            called[answer["speaker"]] = called.get(answer["speaker"], frozenset()) | names
    return called


def local_tools(registry: ToolRegistry, sandbox: Sandbox, mcp: McpServers, member: TeamMember) -> list[ToolDefinition]:
    """The tools of an agent that run in this process. In `run_python` they are functions, with those of MCP servers.

    A tool needs approval if its definition or the agent's `approval` says so.
    """
    tools = [registry.get(name) for name in member.tools if name in registry]
    tools += [tool for tool in subagent_tools(member.subagents) if tool.name not in registry]
    tools = [replace(tool, needs_approval=True) if tool.name in member.approval else tool for tool in tools]
    return with_python(tools, sandbox, _late_tools(mcp, member))


def _late_tools(mcp: McpServers, member: TeamMember) -> LateTools | None:
    """Returns the tools of the agent's MCP servers at the time a block starts."""
    grants = grants_of(member.tools, member.mcp)
    with_approval = _mcp_tools_with_approval(member)

    async def list_tools() -> list[ToolDefinition]:
        tools = await mcp.definitions(grants)
        return [replace(tool, needs_approval=True) if tool.name in with_approval else tool for tool in tools]

    return list_tools if grants else None


def _mcp_tools_with_approval(member: TeamMember) -> set[str]:
    """The names, as a model sees them, of the tools of MCP servers that need approval."""
    return {model_name(*name.split(".", 1)) for name in member.approval if "." in name}
