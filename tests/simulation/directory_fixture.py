"""The directory of a simulated world: users, friends, a channel, and two connectors."""

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
from magent2.directory.users import accept_friendship, create_user, request_friendship
from magent2.sessions.store import create_session
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging.user_messages import SendFile
from magent2.tools.sending import definition_of
from tests.simulation.calls import stable_choice

FILES = Path(__file__).parent.parent / "fixtures" / "simulation"
FILE = "note.txt"
CHANNEL = "launch"
CONNECTORS: Mapping[str, bool] = {"hook": True, "pager": False}  # whether the receiver accepts an idempotency key
SENDER = "Sol"  # the agent whose runs send


@dataclass(frozen=True)
class FixtureUser:
    """A user, with their conversation, agent, connector and friend."""

    id: str
    conversation: str
    agent: str
    connector: str
    friend: str


USERS = (
    FixtureUser("ann", "one", "Ada", "hook", "bob"),
    FixtureUser("bob", "two", "Bob", "pager", "ann"),
    FixtureUser("cat", "three", "Ada", "hook", "bob"),
)


def populate_directory(bus: Engine) -> None:
    for connector, takes_key in CONNECTORS.items():
        run_sync(bus, register_connector, connector, "kept", Capabilities(text=True, files=True, takes_key=takes_key))
    for user in USERS:
        facts = {"agent": user.agent, "connector": user.connector, "target": user.id}
        run_sync(bus, create_user, user.id, user.id, facts)
        run_sync(bus, create_session, user.conversation, f"user:{user.id}")
    for name in ("ann", "cat"):
        run_sync(bus, request_friendship, name, "bob")
        run_sync(bus, accept_friendship, "bob", name)
    run_sync(bus, create_channel, CHANNEL, new_member("leader", "bob", "Bob"))
    for user in USERS:
        run_sync(bus, join_channel, CHANNEL, new_member(user.id, user.id, SENDER))


# --- sends

CHAT, OUTBOX, CHANNEL_LOG = (
    "chat",
    "outbox",
    "channel",
)  # prefixes of the logs that show a send


@dataclass(frozen=True)
class SendCall:
    """A call of a sending tool, and the prefix of the log in which the send appears."""

    tool: str
    arguments: Mapping[str, Any]
    lands: str = CHAT


def send_call(name: str, conversation: str) -> SendCall:
    """A call of one of the sending tools, chosen by the name of the send. The text contains that name."""
    friend = next(user.friend for user in USERS if user.conversation == conversation)
    sends = (
        SendCall("say", {"text": name}, OUTBOX),
        SendCall("say", {"text": name}, OUTBOX),
        SendCall("send_file", {"path": FILE, "text": name}, OUTBOX),
        SendCall("send_user_message", {"text": name}),
        SendCall("send_agent_message", {"text": name, "agent": "Bob"}),
        SendCall("friend_send", {"text": name, "nametag": f"@{friend}"}),
        SendCall("channel_send", {"text": name, "channel": CHANNEL}, CHANNEL_LOG),
        SendCall("chat_send", {"content": name, "recipient": "agent:Ada"}),
    )
    return sends[stable_choice(name, len(sends))]


@cache
def sending_tools() -> Mapping[str, ToolDefinition]:
    registry = standard_tools()
    names = ("say", "send_user_message", "send_agent_message", "friend_send", "channel_send", "chat_send")
    return {**{name: registry.get(name) for name in names}, "send_file": definition_of(SendFile(FILES))}
