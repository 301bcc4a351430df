"""The tools that are there without a line of configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from magent2.errors import InvalidInput, Refused
from magent2.tools.builtins import BUILTINS
from magent2.tools.chat import send_message
from magent2.tools.examples import echo_context, product_search, weather
from magent2.tools.interface import RunFacts
from magent2.tools.registry import ToolRegistry, tool
from magent2.tools.status import message_status


@tool
def chat_send(
    context: RunFacts,
    recipient: Annotated[str, Field(description='"chat:{conversation_id}" or "agent:{AgentName}".')],
    content: Annotated[str, Field(description="Non-empty message text.")],
    conversation_id: Annotated[
        str | None,
        Field(description="The conversation that a message to an agent belongs to; this one when left out."),
    ] = None,
    steer: Annotated[
        bool, Field(description="Whether it is for an agent at work, which is to see it before its next step.")
    ] = False,
) -> dict[str, Any]:
    """Send a chat message to a conversation or an agent."""
    try:
        return send_message(recipient, content, conversation_id=conversation_id, context=context, steer=steer)
    except (InvalidInput, Refused) as refusal:  # the caller can do better, if it is told what was wrong
        return {"ok": False, "error": str(refusal)}


STANDARD = (chat_send, echo_context, message_status, product_search, weather)


def standard_tools(paths: Mapping[str, str] | None = None, folder: Path | None = None) -> ToolRegistry:
    """The standard tools, and those that a file of agents names."""
    registry = ToolRegistry(STANDARD)
    registry.follow(paths or {}, folder)
    return registry


def known_tools() -> frozenset[str]:
    """Every name that an agent's `tools` may hold without a line in `[tools]`."""
    return frozenset(spec.name for spec in STANDARD) | frozenset(BUILTINS)
