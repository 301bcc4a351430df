"""The in-memory message bus of one run, for messages between its agents and from the user.

`AgentContext`, `BusMessage` and `MessageBus` are imported on first use: a process that needs only `block.py` does not
pay for importing pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magent2.context.agent import AgentContext
    from magent2.context.bus import BusMessage, MessageBus

__all__ = ["AgentContext", "BusMessage", "MessageBus"]

_MODULES = {"AgentContext": "agent", "BusMessage": "bus", "MessageBus": "bus"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
