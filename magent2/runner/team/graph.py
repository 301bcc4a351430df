"""The agents of a run as the SDK wants them, made from what the run goes by."""

from __future__ import annotations

import copy
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from agents import Agent, FunctionTool, Handoff, HostedMCPTool, Model, ModelSettings, RunContextWrapper, Tool
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext

from magent2.errors import ArgumentsError
from magent2.runner.team.spec import TeamMember, TeamSpec
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.python_tool import LateTools, PythonTool
from magent2.sessions.folds import function_calls
from magent2.sessions.history import RunRecord
from magent2.tools.builtins import BUILTINS, BuiltinTools, ModelKind
from magent2.tools.default_tools import RUN_PYTHON
from magent2.tools.definition import ToolDefinition
from magent2.tools.interface import RunFacts
from magent2.tools.mcp import McpServers, model_name
from magent2.tools.registry import ToolRegistry, grants_of
from magent2.tools.subagents import subagent_tools

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
        names = frozenset(str(call["name"]) for call in function_calls(answer["response"].get("output", ())))
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

    def _agent(self, spec: TeamSpec, member: TeamMember) -> Agent[Any]:
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

    def _own(self, member: TeamMember) -> list[Tool]:
        """Tools that run here. One that this process does not have is left out, and the log says so."""
        names = [name for name in member.tools if name not in BUILTINS and "." not in name]
        missing = [name for name in names if name not in self.tools]
        if missing:
            log.error("an agent's tools are missing here", extra={"agent": member.name, "tools": missing})
        return [function_tool_of(tool) for tool in own_tools(self.tools, self.sandbox, self.mcp, member)]

    def _hosted(self, member: TeamMember) -> list[Tool]:
        """Tools that the model's provider runs, as far as this model can take them."""
        kind = self.kind_of(member.model)
        built = {name: self.builtins.build(name, kind) for name in member.tools if name in BUILTINS}
        there = {name: tool for name, tool in built.items() if tool is not None}
        asked = {name: asked_first(tool) for name, tool in there.items() if name in member.approval}
        unasked = [name for name, tool in asked.items() if not isinstance(tool, HostedMCPTool)]
        if unasked:  # rather than let them run without a word
            log.error(
                "tools left out: their provider cannot ask for approval", extra={"agent": member.name, "tools": unasked}
            )
        return [asked.get(name, tool) for name, tool in there.items() if name not in unasked]

    def kind_of(self, model: str | None) -> ModelKind:
        """A model that is named with another provider is not on OpenAI's own API."""
        elsewhere = self.model is None and "/" in (model or "") and not (model or "").startswith(OPENAI_PREFIX)
        return "compatible" if elsewhere and self.kind == "openai" else self.kind

    def _give_late_tools(self, agent: Agent[Any], member: TeamMember, called: frozenset[str]) -> None:
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


# --- Tools of the registry in the form that the SDK takes.

GONE = "not available any more"


def function_tool_of(tool: ToolDefinition) -> FunctionTool:
    """The tool as a model may call it, under exactly the schema that the registry shows."""

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        result = await tool.run(parsed(tool.name, text), facts_of(context.context))
        return result.tool_message

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(tool.params_schema),
        on_invoke_tool=with_function_tool_failure_error_handler(invoke, _note),
        strict_json_schema=False,
        needs_approval=tool.needs_approval,
    )


def own_tools(registry: ToolRegistry, sandbox: Sandbox, mcp: McpServers, member: TeamMember) -> list[ToolDefinition]:
    """The tools of an agent that run here; in `run_python` the others are functions, those of MCP servers too.

    Some need a person's approval in this agent's hands, whatever they say themselves.
    """
    found = [registry.get(name) for name in member.tools if name in registry]
    found += [tool for tool in subagent_tools(member.subagents) if tool.name not in registry]
    tools = [replace(tool, needs_approval=True) if tool.name in member.approval else tool for tool in found]
    return with_python(tools, sandbox, _late_tools(mcp, member))


def with_python(
    tools: Sequence[ToolDefinition], sandbox: Sandbox, late: LateTools | None = None
) -> list[ToolDefinition]:
    """The same tools; `run_python`, where it is one of them, with the others as functions."""
    python = PythonTool(sandbox, tools, late).definition() if any(tool.name == RUN_PYTHON for tool in tools) else None
    return [tool if python is None or tool.name != RUN_PYTHON else python for tool in tools]


def _late_tools(mcp: McpServers, member: TeamMember) -> LateTools | None:
    """What the servers offer when a block begins, as far as the agent may use it."""
    grants = grants_of(member.tools, member.mcp)
    asked = {model_name(*name.split(".", 1)) for name in member.approval if "." in name}

    async def late() -> list[ToolDefinition]:
        found = await mcp.definitions(grants)
        return [replace(tool, needs_approval=True) if tool.name in asked else tool for tool in found]

    return late if grants else None


def gone_tool(name: str) -> FunctionTool:
    """Stands for a tool that a run has called and that is no longer there: what it answered then still counts."""

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        return f"{name} is {GONE}"

    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    return FunctionTool(name, f"{name} is {GONE}.", schema, invoke, strict_json_schema=False)


def parsed(tool: str, text: str) -> dict[str, Any]:
    """A call's arguments, as a model wrote them."""
    try:
        given = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ArgumentsError(f"the arguments of tool {tool!r} are no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ArgumentsError(f"the arguments of tool {tool!r} must be an object, not {type(given).__name__}")
    return given


def facts_of(context: object) -> RunFacts:
    """The facts of the run; outside a journalled one there are fewer of them."""
    if not isinstance(context, Mapping):
        return cast(RunFacts, context)
    return cast(RunFacts, SimpleNamespace(**{"run_id": "", "bus": None, "hops": 0, "principal": None, **context}))


def _note(tool: FunctionTool, error: Exception, arguments: str) -> None:
    log.info("a tool failed", extra={"tool": tool.name, "error": type(error).__name__})
