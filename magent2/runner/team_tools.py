"""Tools of the registry in the form that the SDK takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from agents import FunctionTool
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext

from magent2.errors import ArgumentsError
from magent2.runner.team_spec import Member
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.python_tool import Late, PythonTool
from magent2.tools.allowlist import grants_of
from magent2.tools.definition import ToolDefinition
from magent2.tools.interface import RunFacts
from magent2.tools.mcp import McpServers, model_name
from magent2.tools.python_signature import RUN_PYTHON
from magent2.tools.registry import ToolRegistry
from magent2.tools.subagents import subagent_tools

log = logging.getLogger(__name__)

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


def own_tools(registry: ToolRegistry, sandbox: Sandbox, mcp: McpServers, member: Member) -> list[ToolDefinition]:
    """The tools of an agent that run here; in `run_python` the others are functions, those of MCP servers too.

    Some need a person's approval in this agent's hands, whatever they say themselves.
    """
    found = [registry.get(name) for name in member.tools if name in registry]
    found += [tool for tool in subagent_tools(member.subagents) if tool.name not in registry]
    tools = [replace(tool, needs_approval=True) if tool.name in member.approval else tool for tool in found]
    return with_python(tools, sandbox, _late_tools(mcp, member))


def with_python(tools: Sequence[ToolDefinition], sandbox: Sandbox, late: Late | None = None) -> list[ToolDefinition]:
    """The same tools; `run_python`, where it is one of them, with the others as functions."""
    python = PythonTool(sandbox, tools, late).definition() if any(tool.name == RUN_PYTHON for tool in tools) else None
    return [tool if python is None or tool.name != RUN_PYTHON else python for tool in tools]


def _late_tools(mcp: McpServers, member: Member) -> Late | None:
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
