"""The tools that agents can use without any configuration, and the signature of `run_python`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magent2.errors import InvalidInput
from magent2.tools.builtins import BUILTINS
from magent2.tools.chat.function_tools import chat_send_definition
from magent2.tools.definition import (
    JsonSchema,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
)
from magent2.tools.examples import echo_context, product_search, refund, weather
from magent2.tools.messaging import messaging_tools
from magent2.tools.messaging.read_tools import message_status, read_attachment_definition
from magent2.tools.registry import ToolRegistry, ToolSpec

RUN_PYTHON = "run_python"
RUN_PYTHON_DESCRIPTION = """\
Run Python code that calls your other tools as functions. Returns what it prints and the value of its last line.
Messages that the code sends are held until it has ended. If it succeeds, all of them are sent. If it fails, none is.
With now=True a message is sent immediately. The last lines of the result say what was sent.
Functions return their results directly: do not use await. A tool that fails raises an exception.
The language is a subset of Python: functions, classes without inheritance, loops, comprehensions, try/except,
f-strings, and from the standard library json, re, math, datetime, random, collections, itertools. There are no files,
no network, no yield, no inheritance (so no custom exceptions or Enums), no @property, no del. An exception takes one
text. The clock and random numbers are fixed within a block."""
RUN_PYTHON_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code.", "minLength": 1}},
    "required": ["code"],
    "additionalProperties": False,
}


async def _no_sandbox(given: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[str]:
    raise InvalidInput("run_python needs a sandbox, which is missing here; call it as a tool of an agent")


# In lists of tools. A run replaces it by one with a sandbox and the tools of its agent (`sandbox/python_tool.py`).
RUN_PYTHON_TOOL = ToolDefinition(
    ToolSignature(RUN_PYTHON, RUN_PYTHON_DESCRIPTION, RUN_PYTHON_SCHEMA), {"type": "string"}, _no_sandbox
)

STANDARD: tuple[ToolSpec | ToolDefinition, ...] = (
    chat_send_definition(),
    *messaging_tools(),
    read_attachment_definition(),
    echo_context,
    message_status,
    product_search,
    RUN_PYTHON_TOOL,
    refund,
    weather,
)


def standard_tools(paths: Mapping[str, str] | None = None, folder: Path | None = None) -> ToolRegistry:
    """A registry with the default tools and those that the agents file names."""
    registry = ToolRegistry(STANDARD)
    registry.follow(paths or {}, folder)
    return registry


def known_tools() -> frozenset[str]:
    """Every name that an agent's `tools` may contain without a line in `[tools]`."""
    return frozenset(spec.name for spec in STANDARD) | frozenset(BUILTINS)
