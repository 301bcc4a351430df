"""The messaging tools keep to what every tool that sends keeps to; those with the most to it on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.directory.agents import remove_agent
from magent2.directory.channels import leave_channel
from magent2.directory.swarms import set_swarm_open
from magent2.directory.users import remove_friendship, remove_user
from magent2.mail.registration import register_agent
from magent2.tools.messaging.agent_messages import SendAgentMessage
from magent2.tools.messaging.directory_messages import ChannelSend, FriendSend, SendUserMessage
from magent2.tools.messaging.user_messages import SayTool, SendFile
from magent2.tools.sending import definition_of
from tests.contracts.sending_tool import SendingToolContract, World
from tests.support.directory_fixture import (
    channel_messages,
    inbox,
    message_files,
    message_texts,
    open_channel,
    open_swarm,
    populate_directory,
)
from tests.support.engines import ENGINES, new_engines

LONG = "x" * 100_001


@pytest.fixture
def bus() -> Iterator[Engine]:
    engine = MemoryBus()
    yield engine
    engine.close()


class OnServers:
    """The same on the engines that keep what they are given."""

    @pytest.fixture(params=ENGINES[1:])
    def bus(self, request: pytest.FixtureRequest) -> Iterator[Engine]:
        engine = new_engines(request.param, request)()
        yield engine
        engine.close()


class TestSay(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        return World(
            populate_directory(bus),
            definition_of(SayTool()),
            good=[{"text": "one"}, {"text": " two "}],
            bad=[{"text": " "}, {"text": LONG}, {}, {"text": "a", "reply_to": "nobody-said"}, {"text": "a", "x": 1}],
            arrived=lambda: message_texts(bus),
            wanted=["one", "two"],
        )


class TestFriendSend(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        return World(
            populate_directory(bus),
            definition_of(FriendSend()),
            good=[{"nametag": "@bob", "text": "one"}, {"nametag": "Bob", "text": "two"}],
            bad=[
                {"nametag": "@bob", "text": ""},
                {"nametag": "@dan", "text": "hi"},
                {"nametag": "@ann", "text": "hi"},
                {"nametag": "no tag!", "text": "hi"},
                {"text": "hi"},
            ],
            arrived=lambda: inbox(bus, "Bo"),
            wanted=["user:ann: one", "user:ann: two"],
            revoke=lambda: run_sync(bus, remove_friendship, "bob", "ann"),
        )


class TestChannelSend(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        facts = populate_directory(bus)
        open_channel(bus)
        return World(
            facts,
            definition_of(ChannelSend()),
            good=[{"channel": "#launch", "text": "one"}, {"channel": "launch", "text": "two", "mentions": ["@cat"]}],
            bad=[
                {"channel": "launch", "text": " "},
                {"channel": "nowhere", "text": "hi"},
                {"channel": "launch", "text": "hi", "mentions": ["@dan"]},
                {"channel": "launch", "text": "hi", "mentions": ["@bob"] * 21},
                {"channel": "two words", "text": "hi"},
            ],
            arrived=lambda: channel_messages(bus) + inbox(bus, "Bo") + inbox(bus, "Cleo"),
            wanted=[
                "ann: one",
                "ann: two",
                "channel:launch: @ann in #launch: one",
                "channel:launch: @ann in #launch: two",
                "channel:launch: @ann in #launch: two",
            ],
            revoke=lambda: run_sync(bus, leave_channel, "launch", "ann"),
        )


class TestChannelSendOnServers(OnServers, TestChannelSend):
    pass


class TestSendFile(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine, tmp_path: Path) -> World:
        folder = tmp_path / "Ada"
        (folder / "deep").mkdir(parents=True)
        (folder / "note.txt").write_text("one")
        (folder / "deep" / "note.txt").write_text("two")
        (folder / "tool.exe").write_bytes(b"MZ")
        return World(
            populate_directory(bus),
            definition_of(SendFile(tmp_path)),
            good=[{"path": "note.txt"}, {"path": "deep/note.txt", "text": "look"}],
            bad=[
                {"path": "none.txt"},
                {"path": "../Ada/note.txt"},
                {"path": "tool.exe"},
                {"path": "deep"},
                {"path": "note.txt", "send_as": "photo"},
                {"path": "note.txt", "send_as": "boat"},
            ],
            arrived=lambda: message_files(bus),
            wanted=["note.txt: one", "note.txt: two"],
        )


class TestSendUserMessage(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        return World(
            populate_directory(bus),
            definition_of(SendUserMessage()),
            good=[{"text": "one"}, {"text": "two"}],
            bad=[{"text": ""}, {"text": "hi", "nametag": "@bob"}, {"text": "hi", "wait": True, "timeout_s": 0}],
            arrived=lambda: inbox(bus, "Ada"),
            wanted=["agent:Ada@one: one", "agent:Ada@one: two"],
            revoke=lambda: run_sync(bus, remove_user, "ann"),
        )


class TestSendUserMessageToASwarm(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        facts = populate_directory(bus)
        open_swarm(bus)
        return World(
            facts,
            definition_of(SendUserMessage()),
            good=[{"text": "one", "nametag": "@desk"}, {"text": "two", "nametag": "desk"}],
            bad=[{"text": " ", "nametag": "@desk"}, {"text": "hi", "nametag": "@nobody"}],
            arrived=lambda: inbox(bus, "Desk"),
            wanted=["user:ann: one", "user:ann: two"],
            revoke=lambda: run_sync(bus, set_swarm_open, "desk", is_open=False),
        )


class TestSendUserMessageToASwarmOnServers(OnServers, TestSendUserMessageToASwarm):
    pass


class TestSendAgentMessage(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        facts = populate_directory(bus)
        run_sync(bus, register_agent, "Cleo")
        return World(
            facts,
            definition_of(SendAgentMessage()),
            good=[{"text": "one", "agent": "Cleo"}, {"text": "two", "agent": "agent:Cleo"}],
            bad=[
                {"text": "", "agent": "Cleo"},
                {"text": "hi", "agent": "Nobody"},
                {"text": "hi", "agent": "Ada"},
                {"text": "hi", "agent": "@bob"},
                {"text": "hi"},
            ],
            arrived=lambda: inbox(bus, "Cleo"),
            wanted=["agent:Ada: one", "agent:Ada: two"],
            revoke=lambda: run_sync(bus, remove_agent, "Cleo"),
        )
