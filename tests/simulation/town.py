"""A town for agents that send: users, friends, a channel, and two places outside that connectors reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.channels import create_channel, join_channel, new_member
from magent2.directory.connectors import Capabilities, register_connector
from magent2.directory.friends import accept_friendship, request_friendship
from magent2.directory.users import create_user
from magent2.sessions.store import create_session
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging.send_file import SendFile
from magent2.tools.sending_tool import definition_of
from tests.simulation.calls import chance_of

FILES = Path(__file__).parent.parent / "fixtures" / "simulation"
FILE = "note.txt"
CHANNEL = "launch"
CONNECTORS: Mapping[str, bool] = {"hook": True, "pager": False}  # whether the receiver takes a key
SENDER = "Sol"  # the agent whose runs send


@dataclass(frozen=True)
class Citizen:
    """A user: whose conversation it is, who answers for them, and where they are reached."""

    id: str
    conversation: str
    agent: str
    connector: str
    friend: str


CITIZENS = (
    Citizen("ann", "one", "Ada", "hook", "bob"),
    Citizen("bob", "two", "Bob", "pager", "ann"),
    Citizen("cat", "three", "Ada", "hook", "bob"),
)


def settle(bus: Engine) -> None:
    for connector, takes_key in CONNECTORS.items():
        run_sync(bus, register_connector, connector, "kept", Capabilities(text=True, files=True, takes_key=takes_key))
    for citizen in CITIZENS:
        facts = {"agent": citizen.agent, "connector": citizen.connector, "target": citizen.id}
        run_sync(bus, create_user, citizen.id, citizen.id, facts)
        run_sync(bus, create_session, citizen.conversation, f"user:{citizen.id}")
    for name in ("ann", "cat"):
        run_sync(bus, request_friendship, name, "bob")
        run_sync(bus, accept_friendship, "bob", name)
    run_sync(bus, create_channel, CHANNEL, new_member("leader", "bob", "Bob"))
    for citizen in CITIZENS:
        run_sync(bus, join_channel, CHANNEL, new_member(citizen.id, citizen.id, SENDER))


# --- sends

CHAT, OUTBOX, TALK = "chat", "outbox", "channel"  # the logs that tell of a send, by the beginnings of their names


@dataclass(frozen=True)
class Send:
    """A call of a tool that sends, and in which kind of log the send is found once it has left."""

    tool: str
    arguments: Mapping[str, Any]
    lands: str = CHAT


def send_of(name: str, conversation: str) -> Send:
    """One of the sending tools, by the name of the send; the text names the send."""
    friend = next(citizen.friend for citizen in CITIZENS if citizen.conversation == conversation)
    sends = (
        Send("say", {"text": name}, OUTBOX),
        Send("say", {"text": name}, OUTBOX),
        Send("send_file", {"path": FILE, "text": name}, OUTBOX),
        Send("send_user_message", {"text": name}),
        Send("send_agent_message", {"text": name, "agent": "Bob"}),
        Send("friend_send", {"text": name, "nametag": f"@{friend}"}),
        Send("channel_send", {"text": name, "channel": CHANNEL}, TALK),
        Send("chat_send", {"content": name, "recipient": "agent:Ada"}),
    )
    return sends[chance_of(name, len(sends))]


@cache
def sending_tools() -> Mapping[str, ToolDefinition]:
    registry = standard_tools()
    names = ("say", "send_user_message", "send_agent_message", "friend_send", "channel_send", "chat_send")
    return {**{name: registry.get(name) for name in names}, "send_file": definition_of(SendFile(FILES))}
