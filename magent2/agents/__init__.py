"""Run an agent in this process: stream its events and steer it while it works.

    runtime = create_agent("openai:gpt-4o")
    async with stream_agent(runtime, "Analyze this codebase") as streamer:
        async for event in streamer:
            ...

There is no log and no worker: all state is lost when the process ends. The SDK is imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magent2.agents.create import AgentRuntime, create_agent
    from magent2.agents.injection import inject_bus_messages
    from magent2.agents.remote import RemoteContext
    from magent2.agents.stream import Streamer, stream_agent
    from magent2.events import StreamEvent

__all__ = [
    "AgentRuntime",
    "RemoteContext",
    "StreamEvent",
    "Streamer",
    "create_agent",
    "inject_bus_messages",
    "stream_agent",
]

_MODULES = {
    "AgentRuntime": "magent2.agents.create",
    "RemoteContext": "magent2.agents.remote",
    "StreamEvent": "magent2.events",
    "Streamer": "magent2.agents.stream",
    "create_agent": "magent2.agents.create",
    "inject_bus_messages": "magent2.agents.injection",
    "stream_agent": "magent2.agents.stream",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
