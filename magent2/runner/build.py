"""Build agents and tools of the SDK from a configuration and from tool definitions."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

from agents import Agent, FunctionTool, HostedMCPTool, Model, Tool
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext

from magent2.errors import ArgumentsError
from magent2.models.json_types import JsonObject
from magent2.runner.config import RunnerConfig
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.python_tool import LateTools, PythonTool
from magent2.tools.builtins import BUILTINS, BuiltinTools, ModelKind
from magent2.tools.default_tools import RUN_PYTHON, standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.interface import RunFacts, tool_failure

log = logging.getLogger(__name__)


def build_agent(config: RunnerConfig, sandbox: Sandbox, model: Model | None = None) -> Agent:
    """Build the agent that the configuration describes. `model` replaces the configured one.

    `sandbox` runs its Python blocks.
    """
    return Agent(
        name=config.agent_name,
        instructions=config.instructions,
        model=model or config.model,
        tools=_configured_tools(config, sandbox, "demo" if model is not None else None),
    )


def _configured_tools(config: RunnerConfig, sandbox: Sandbox, kind: ModelKind | None) -> list[Tool]:
    """The tools that the configuration names, without hosted tools that the model's provider does not support.

    `kind` is the kind of the model; by default the base URL determines it.
    """
    registry = standard_tools()
    definitions = [registry.get(name) for name in config.tools if name not in BUILTINS]
    local = {tool.name: function_tool_of(tool) for tool in with_python(definitions, sandbox)}
    builtins = BuiltinTools.read()
    kind = kind or builtins.kind_of_server(config.base_url, config.api)
    tools = [_builtin(builtins, name, kind) if name in BUILTINS else local[name] for name in config.tools]
    return [tool for tool in tools if tool is not None]


def _builtin(builtins: BuiltinTools, name: str, kind: ModelKind) -> Tool | None:
    implementation = builtins.implementation(name, kind)
    return builtins.build(name, kind) if implementation is None else function_tool_of(implementation)


def with_python(
    tools: Sequence[ToolDefinition], sandbox: Sandbox, late: LateTools | None = None
) -> list[ToolDefinition]:
    """The same tools. In blocks of `run_python`, if it is one of them, the others and `late` are functions."""
    if all(tool.name != RUN_PYTHON for tool in tools):
        return list(tools)
    python = PythonTool(sandbox, tools, late).definition()
    return [python if tool.name == RUN_PYTHON else tool for tool in tools]


def function_tool_of(tool: ToolDefinition) -> FunctionTool:
    """The tool as an SDK tool, with exactly the JSON schema of its definition."""

    async def invoke(context: ToolContext, arguments: str) -> object:
        result = await tool.run(_parse_arguments(tool.name, arguments), _facts_of(context.context))
        return result.tool_message

    def report(tool: FunctionTool, error: Exception, arguments: str) -> None:
        tool_failure(tool.name, error)  # logs it, if the configuration of the run has not done so

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(tool.params_schema),
        on_invoke_tool=with_function_tool_failure_error_handler(invoke, report),
        strict_json_schema=False,
        needs_approval=tool.needs_approval,
    )


def unavailable_tool(name: str) -> FunctionTool:
    """A stand-in for a tool that the run has called and that no longer exists.

    The SDK needs a tool of this name to replay the recorded call.
    """
    text = f"{name} is not available any more"

    async def invoke(context: ToolContext, arguments: str) -> str:
        return text

    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    return FunctionTool(name, f"{text}.", schema, invoke, strict_json_schema=False)


def require_approval(tool: Tool) -> Tool:
    """A copy of the tool whose calls need approval."""
    tool = copy.copy(tool)
    if isinstance(tool, FunctionTool):
        tool.needs_approval = True
    elif isinstance(tool, HostedMCPTool):
        tool.tool_config = {**tool.tool_config, "require_approval": "always"}
    return tool


def _parse_arguments(tool: str, text: str) -> JsonObject:
    """The arguments of a call, as the model wrote them."""
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ArgumentsError(f"the arguments of tool {tool!r} are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ArgumentsError(f"the arguments of tool {tool!r} must be an object, not {type(arguments).__name__}")
    return arguments


def _facts_of(context: object) -> RunFacts:
    """The run context as tools see it. A run without a journal has a mapping with fewer facts."""
    if not isinstance(context, Mapping):
        return cast(RunFacts, context)
    return cast(RunFacts, SimpleNamespace(**{"run_id": "", "bus": None, "hops": 0, "principal": None, **context}))
