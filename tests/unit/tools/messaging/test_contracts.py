"""The messaging tools keep to what every tool that sends keeps to, on every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.flow import run
from magent2.bus.interface import Engine
from magent2.directory.channels import leaving
from magent2.directory.friends import removing
from magent2.tools.messaging.channel_send import ChannelSend
from magent2.tools.messaging.friend_send import FriendSend
from magent2.tools.messaging.say import Say
from magent2.tools.sending_tool import definition_of
from tests.contracts.sending_tool import SendingToolContract, World
from tests.support.engines import ENGINES, new_engines
from tests.support.messaging import inbox, open_channel, said, settle, talk

LONG = "x" * 100_001


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


class TestSay(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        return World(
            settle(bus),
            definition_of(Say()),
            good=[{"text": "one"}, {"text": " two "}],
            bad=[{"text": " "}, {"text": LONG}, {}, {"text": "a", "reply_to": "nobody-said"}, {"text": "a", "x": 1}],
            arrived=lambda: said(bus),
            wanted=["one", "two"],
        )


class TestFriendSend(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        return World(
            settle(bus),
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
            revoke=lambda: run(bus, removing("bob", "ann")),
        )


class TestChannelSend(SendingToolContract):
    @pytest.fixture
    def world(self, bus: Engine) -> World:
        facts = settle(bus)
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
            arrived=lambda: talk(bus) + inbox(bus, "Bo") + inbox(bus, "Cleo"),
            wanted=[
                "ann: one",
                "ann: two",
                "channel:launch: @ann in #launch: one",
                "channel:launch: @ann in #launch: two",
                "channel:launch: @ann in #launch: two",
            ],
            revoke=lambda: run(bus, leaving("launch", "ann")),
        )
