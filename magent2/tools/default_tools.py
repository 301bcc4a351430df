"""`run_python` as everybody knows it: its name, what it takes, and what its language has not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magent2.errors import InvalidInput
from magent2.tools.builtins import BUILTINS
from magent2.tools.chat.sending_tool import chat_send_definition
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult, ToolSignature
from magent2.tools.examples import echo_context, product_search, refund, weather
from magent2.tools.message_status import message_status
from magent2.tools.messaging import messaging_tools
from magent2.tools.messaging.read_attachment import read_attachment_definition
from magent2.tools.registry import ToolRegistry, ToolSpec

RUN_PYTHON = "run_python"

DESCRIPTION = """\
Run Python code that calls your other tools as functions, and see what it prints and the value of its last line.
Messages that it sends wait until it has ended well, and then all leave; if it fails, none does. With now=True one
leaves at once. The last lines of the result say what was sent.
Functions give their results at once: no await. A tool that fails raises an exception.
The language is a part of Python: functions, classes without inheritance, loops, comprehensions, try/except, f-strings,
and of the library json, re, math, datetime, random, collections, itertools. There are no files, no network, no yield,
no inheritance (so no exceptions or Enums of your own), no @property, no del; an exception takes one text.
Clock and random numbers stand still within a block."""

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code.", "minLength": 1}},
    "required": ["code"],
    "additionalProperties": False,
}

SIGNATURE = ToolSignature(RUN_PYTHON, DESCRIPTION, SCHEMA)


async def _nowhere(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[Any]:
    raise InvalidInput("run_python runs where an agent has it in its tools; there is no sandbox here")


def python_definition() -> ToolDefinition:
    """For lists of tools. Where blocks are run, each agent has one of its own, with its tools as functions."""
    return ToolDefinition(SIGNATURE, {"type": "string"}, _nowhere)


# --- The tools that are there without a line of configuration.

STANDARD: tuple[ToolSpec | ToolDefinition, ...] = (
    chat_send_definition(),
    *messaging_tools(),
    read_attachment_definition(),
    echo_context,
    message_status,
    product_search,
    python_definition(),
    refund,
    weather,
)


def standard_tools(paths: Mapping[str, str] | None = None, folder: Path | None = None) -> ToolRegistry:
    """The standard tools, and those that a file of agents names."""
    registry = ToolRegistry(STANDARD)
    registry.follow(paths or {}, folder)
    return registry


def known_tools() -> frozenset[str]:
    """Every name that an agent's `tools` may hold without a line in `[tools]`."""
    return frozenset(spec.name for spec in STANDARD) | frozenset(BUILTINS)
