"""The chat tool: `chat_send` for agents, `send_message` for Python code.

`send_message` does not need the Agents SDK. The SDK is imported when `chat_send` is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magent2.tools.chat import function_tools
from magent2.tools.chat.function_tools import get_bus, send_message, set_bus_for_testing

if TYPE_CHECKING:
    from magent2.tools.chat.function_tools import chat_send

__all__ = ["chat_send", "get_bus", "send_message", "set_bus_for_testing"]


def __getattr__(name: str) -> object:
    if name == "chat_send":
        return function_tools.chat_send
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
