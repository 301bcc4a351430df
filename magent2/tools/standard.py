"""The tools that are there without a line of configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magent2.tools.builtins import BUILTINS
from magent2.tools.chat.sending_tool import chat_send_definition
from magent2.tools.definition import ToolDefinition
from magent2.tools.examples import echo_context, product_search, refund, weather
from magent2.tools.messaging import messaging_tools
from magent2.tools.messaging.read_attachment import read_attachment_definition
from magent2.tools.python_signature import python_definition
from magent2.tools.registry import ToolRegistry, ToolSpec
from magent2.tools.status import message_status

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
