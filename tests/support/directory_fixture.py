"""A directory for tests of sending tools: users, agents, a channel, a swarm; and readers for what has arrived."""

from __future__ import annotations

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import OLDEST, GetBlob, Read
from magent2.directory.channels import create_channel, join_channel, new_member
from magent2.directory.swarms import create_swarm
from magent2.directory.users import accept_friendship, create_user, find_user, request_friendship
from magent2.models.address import channel_topic, chat_topic, stream_topic
from magent2.sessions.store import create_session
from tests.support.sending import Facts

CONVERSATION = "one"


def populate_directory(bus: Engine) -> Facts:
    """Create ann, whose agent Ada runs in conversation `one`, and her friends bob and cat."""
    for name, agent in (("ann", "Ada"), ("bob", "Bo"), ("cat", "Cleo")):
        run_sync(bus, create_user, name, name, {"agent": agent})
    for name in ("bob", "cat"):
        run_sync(bus, request_friendship, "ann", name)
        run_sync(bus, accept_friendship, name, "ann")
    run_sync(bus, create_session, CONVERSATION, "user:ann")
    return Facts(bus, CONVERSATION, "Ada", principal="user:ann")


def open_channel(bus: Engine) -> None:
    """Create #launch, led by bob, with ann's agent Ada and cat's agent Cleo."""
    run_sync(bus, create_channel, "launch", new_member("bob", "bob", "Bo"))
    run_sync(bus, join_channel, "launch", new_member("ann", "ann", "Ada"))
    run_sync(bus, join_channel, "launch", new_member("cat", "cat", "Cleo"))


def open_swarm(bus: Engine) -> None:
    """Create @desk, an open swarm of bob with the agent Desk."""
    run_sync(bus, create_swarm, "desk", "bob", "Desk", is_open=True)


def inbox(bus: Engine, agent: str) -> list[str]:
    """The mail of an agent, as `sender: content`."""
    page = bus.call(Read(chat_topic(agent), OLDEST, 1000))
    return [f"{record.payload['sender']}: {record.payload['content']}" for record in page.records]


def home_conversation(bus: Engine, user: str) -> str:
    return run_sync(bus, find_user, user).state.home


def message_texts(bus: Engine, conversation: str = CONVERSATION) -> list[str]:
    """The texts of the `message` events of a conversation."""
    page = bus.call(Read(stream_topic(conversation), OLDEST, 1000))
    return [record.payload["text"] for record in page.records if record.payload.get("event") == "message"]


def message_files(bus: Engine, conversation: str = CONVERSATION) -> list[str]:
    """The attachments of a conversation, as `name: content`."""
    page = bus.call(Read(stream_topic(conversation), OLDEST, 1000))
    files = [item for record in page.records for item in record.payload.get("attachments", ())]
    return [f"{item['name']}: {bus.call(GetBlob(item['sha256'])).decode()}" for item in files]


def channel_messages(bus: Engine, channel: str = "launch") -> list[str]:
    page = bus.call(Read(channel_topic(channel), OLDEST, 1000))
    return [f"{record.payload['from']}: {record.payload['text']}" for record in page.records]
