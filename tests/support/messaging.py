"""A small town for tools that send: users, their agents, a channel, a swarm, and what has reached whom."""

from __future__ import annotations

from magent2.bus.flow import run
from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, GetBlob, Read
from magent2.directory.channels import joining, making_channel, new_member
from magent2.directory.friends import accepting, requesting
from magent2.directory.swarms import making_swarm
from magent2.directory.users import finding_user, making_user
from magent2.models.address import channel_topic, chat_topic, stream_topic
from magent2.sessions.store import creating
from tests.support.sending import Facts

CONVERSATION = "one"


def settle(bus: Engine) -> Facts:
    """Ann, whose agent Ada runs in her conversation `one`; bob and cat, who are her friends."""
    for name, agent in (("ann", "Ada"), ("bob", "Bo"), ("cat", "Cleo")):
        run(bus, making_user(name, name, {"agent": agent}))
    for name in ("bob", "cat"):
        run(bus, requesting("ann", name))
        run(bus, accepting(name, "ann"))
    run(bus, creating(CONVERSATION, "user:ann"))
    return Facts(bus, CONVERSATION, "Ada", principal="user:ann")


def open_channel(bus: Engine) -> None:
    """#launch, which bob leads; ann's Ada and cat's Cleo are in it."""
    run(bus, making_channel("launch", new_member("bob", "bob", "Bo")))
    run(bus, joining("launch", new_member("ann", "ann", "Ada")))
    run(bus, joining("launch", new_member("cat", "cat", "Cleo")))


def open_swarm(bus: Engine) -> None:
    """@desk, which bob runs with his agent Desk, open to everybody."""
    run(bus, making_swarm("desk", "bob", "Desk", is_open=True))


def inbox(bus: Engine, agent: str) -> list[str]:
    """What an agent was sent, with who says so."""
    page = bus.call(Read(chat_topic(agent), OLDEST, 1000))
    return [f"{record.payload['sender']}: {record.payload['content']}" for record in page.records]


def home_of(bus: Engine, user: str) -> str:
    return run(bus, finding_user(user)).state.home


def said(bus: Engine, conversation: str = CONVERSATION) -> list[str]:
    """What the page of a conversation shows as messages on the way."""
    page = bus.call(Read(stream_topic(conversation), OLDEST, 1000))
    return [record.payload["text"] for record in page.records if record.payload.get("event") == "message"]


def files_said(bus: Engine, conversation: str = CONVERSATION) -> list[str]:
    """The files that a page shows, by name and content."""
    page = bus.call(Read(stream_topic(conversation), OLDEST, 1000))
    files = [item for record in page.records for item in record.payload.get("attachments", ())]
    return [f"{item['name']}: {bus.call(GetBlob(item['sha256'])).decode()}" for item in files]


def talk(bus: Engine, channel: str = "launch") -> list[str]:
    page = bus.call(Read(channel_topic(channel), OLDEST, 1000))
    return [f"{record.payload['from']}: {record.payload['text']}" for record in page.records]
