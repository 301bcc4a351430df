"""The tools that agents can use without any configuration: those that send, `run_python`, and four examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from magent2.errors import InvalidInput
from magent2.roster.limits import LimitValues
from magent2.tools.builtins import BUILTINS
from magent2.tools.chat.function_tools import chat_send_definition
from magent2.tools.definition import (
    JsonSchema,
    ToolAnswer,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
)
from magent2.tools.interface import RunFacts
from magent2.tools.messaging import messaging_tools
from magent2.tools.messaging.read_tools import message_status, read_attachment_definition
from magent2.tools.registry import ToolRegistry, ToolSpec, tool
from magent2.tools.reminders import list_reminders, reminder_tools

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


async def _no_sandbox(raw: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[str]:
    raise InvalidInput("run_python needs a sandbox, which only the run of an agent has; call it as a tool of an agent")


# In lists of tools. A run replaces it by one with a sandbox and the tools of its agent (`sandbox/python_tool.py`).
RUN_PYTHON_TOOL = ToolDefinition(
    ToolSignature(RUN_PYTHON, RUN_PYTHON_DESCRIPTION, RUN_PYTHON_SCHEMA), {"type": "string"}, _no_sandbox
)

# --- example tools: they work offline, and their results say so ----------------------------------------------------

SKIES = ("clear", "some clouds", "overcast", "light rain", "heavy rain", "snow", "fog")
COLDEST_C, WARMEST_C = -10, 35
WEATHER_SOURCE = "example data, computed offline from the name of the city; not a forecast"

REFUND_SOURCE = "example, offline; no money was paid"
PRODUCTS_SOURCE = "example data, offline: a sample catalogue of {count} products"
PRODUCTS_MAX = 20
WORD_MIN_CHARS = 3  # shorter words of a query, such as articles, are ignored
CATALOGUE: tuple[tuple[str, str, float], ...] = (
    ("lamp-01", "Reading lamp, brass", 49.0),
    ("lamp-02", "Desk lamp, dimmable", 65.5),
    ("chair-01", "Oak chair", 120.0),
    ("chair-02", "Office chair with arms", 239.0),
    ("desk-01", "Standing desk, electric", 480.0),
    ("shoe-01", "Red running shoes", 89.9),
    ("shoe-02", "Hiking boots, waterproof", 139.0),
    ("bag-01", "Canvas bag", 24.5),
)


@tool
def echo_context(
    context: RunFacts, text: Annotated[str, Field(description="Any text. It is returned unchanged.")] = ""
) -> ToolAnswer:
    """Return the conversation, the agent and the run of this call, and the text."""
    return {
        "conversation_id": context.conversation_id,
        "agent": context.agent,
        "run_id": context.run_id,
        "text": text,
        "source": "this run itself, offline",
    }


@tool
def weather(city: Annotated[str, Field(description="Name of the city.", min_length=1)]) -> ToolAnswer:
    """The weather in a city. An example that works offline: the answer is invented and says so."""
    digest = hashlib.blake2b(city.strip().casefold().encode(), digest_size=2).digest()
    degrees = COLDEST_C + digest[0] % (WARMEST_C - COLDEST_C + 1)
    skies = SKIES if degrees <= 2 else [sky for sky in SKIES if sky != "snow"]
    return {
        "city": city.strip(),
        "temperature_c": degrees,
        "sky": skies[digest[1] % len(skies)],
        "source": WEATHER_SOURCE,
    }


@tool(needs_approval=True)
def refund(order: Annotated[str, Field(description="Number of the order.", min_length=1)]) -> ToolAnswer:
    """Refund an order, once a person has approved it. An example that works offline: no money is paid."""
    return {"order": order.strip(), "refunded": True, "source": REFUND_SOURCE}


@tool
def product_search(
    query: Annotated[str, Field(description="Words to look for, such as 'red shoes'.", min_length=1)],
    limit: Annotated[int, Field(description="How many products at most.", ge=1, le=PRODUCTS_MAX)] = 5,
) -> ToolAnswer:
    """Search the products. An example that works offline, on a small sample catalogue."""
    words = [word.removesuffix("s") for word in query.casefold().split() if len(word) >= WORD_MIN_CHARS]
    scores = [(sum(word in product[1].casefold() for word in words), product) for product in CATALOGUE]
    matches = sorted((match for match in scores if match[0]), key=lambda match: -match[0])
    products = [{"id": key, "title": title, "price_eur": price} for _, (key, title, price) in matches[:limit]]
    return {"products": products, "found": len(matches), "source": PRODUCTS_SOURCE.format(count=len(CATALOGUE))}


STANDARD: tuple[ToolSpec | ToolDefinition, ...] = (
    chat_send_definition(),
    *messaging_tools(),
    *reminder_tools(),
    list_reminders,
    read_attachment_definition(),
    echo_context,
    message_status,
    product_search,
    RUN_PYTHON_TOOL,
    refund,
    weather,
)


def standard_tools(
    paths: Mapping[str, str] | None = None,
    folder: Path | None = None,
    limits: Callable[[], LimitValues] = LimitValues,
) -> ToolRegistry:
    """A registry with the default tools and those that the agents file names. `limits` returns the limits in force."""
    registry = ToolRegistry({tool.name: tool for tool in (*STANDARD, *reminder_tools(limits))}.values())
    registry.follow(paths or {}, folder)
    return registry


def known_tools() -> frozenset[str]:
    """Every name that an agent's `tools` may contain without a line in `[tools]`."""
    return frozenset(spec.name for spec in STANDARD) | frozenset(BUILTINS)
