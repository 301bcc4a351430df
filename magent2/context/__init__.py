"""The message bus inside one run.

`AgentContext`, `BusMessage` and `MessageBus` come in when somebody asks for them: who only shows a block pays for none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magent2.context.agent import AgentContext
    from magent2.context.bus import MessageBus
    from magent2.context.message import BusMessage

__all__ = ["AgentContext", "BusMessage", "MessageBus"]

_HOMES = {"AgentContext": "agent", "BusMessage": "message", "MessageBus": "bus"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
