"""Erasing a user takes them out of the directory, and leaves everybody else's entries as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.flow import Flow, run
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import OLDEST, Delete, Operation, Read
from magent2.directory.channels import finding_channel, joining, leaving, making_channel, new_member
from magent2.directory.erasure import erasing_user
from magent2.directory.friends import accepting, listing_friendships, requesting
from magent2.directory.swarms import listing_contacts, listing_swarms, making_swarm
from magent2.directory.users import finding_by_nametag, finding_user, listing_users, making_user
from magent2.errors import BusUnavailable, NameTaken, NotFriends, UnknownEntity
from magent2.tools.messaging.channel_send import ChannelSend
from magent2.tools.messaging.friend_send import FriendSend
from magent2.tools.messaging.send_user_message import send_user_message_definition
from magent2.tools.sending_tool import definition_of
from tests.support.broken import Broken
from tests.support.engines import ENGINES, new_engines
from tests.support.messaging import open_channel, open_swarm, settle, talk
from tests.support.sending import Facts

OPERATIONS_MAX = 200  # an erasure that takes more is stuck


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    settle(engine)
    open_channel(engine)
    open_swarm(engine)
    yield engine
    engine.close()


def bobs(bus: Engine) -> Facts:
    return Facts(bus, "bobs", "Bo", principal="user:bob")


async def say(bus: Engine, user: str, agent: str, text: str) -> None:
    facts = Facts(bus, f"{user}s", agent, run_id=text, principal=f"user:{user}")
    await definition_of(ChannelSend()).run({"channel": "launch", "text": text}, facts)


def log_of(bus: Engine, topic: str) -> str:
    return str([record.payload for record in bus.call(Read(topic, OLDEST, 1000)).records])


def test_the_entry_its_name_and_all_that_was_between_them_and_others_go(bus: Engine) -> None:
    erased = run(bus, erasing_user("user:ann"))

    assert {topic.partition(":")[2] for topic in erased.entries} == {
        "user:ann", "nametag:ann", "friendship:ann|bob", "friendship:ann|cat",
    }  # fmt: skip
    assert [user.id for user in run(bus, listing_users())] == ["bob", "cat"]
    assert run(bus, listing_friendships()) == []
    with pytest.raises(UnknownEntity, match="nobody is called @ann"):
        run(bus, finding_by_nametag("ann"))
    with pytest.raises(UnknownEntity, match="user 'ann' is gone"):
        run(bus, finding_user("ann"))
    with pytest.raises(UnknownEntity, match="was erased"):
        run(bus, requesting("bob", "ann"))
    assert not run(bus, erasing_user("user:ann"))


def test_neither_the_id_nor_the_nametag_is_given_to_anybody_else(bus: Engine) -> None:
    run(bus, erasing_user("user:ann"))

    for entity, nametag in (("ann", "new"), ("dan", "ann"), ("ann", "ann")):
        with pytest.raises(NameTaken):
            run(bus, making_user(entity, nametag))
    with pytest.raises(NameTaken):
        run(bus, making_swarm("ann", "bob", "Desk"))


async def test_swarms_and_contacts_go_on_both_sides(bus: Engine) -> None:
    tool = send_user_message_definition()
    for user, agent in (("ann", "Ada"), ("cat", "Cleo")):
        facts = Facts(bus, f"{user}s", agent, principal=f"user:{user}")
        await tool.run({"text": "hi", "nametag": "@desk"}, facts)

    run(bus, erasing_user("user:ann"))
    assert [contact.user for contact in run(bus, listing_contacts("desk"))] == ["cat"]

    run(bus, erasing_user("user:bob"))
    assert (run(bus, listing_swarms()), run(bus, listing_contacts("desk"))) == ([], [])
    with pytest.raises(UnknownEntity, match="nobody is called @desk"):
        await tool.run({"text": "hi", "nametag": "@desk"}, Facts(bus, "cats", "Cleo", principal="user:cat"))


async def test_a_channel_forgets_who_was_there_and_what_they_said(bus: Engine) -> None:
    await say(bus, "ann", "Ada", "from ann")
    await say(bus, "bob", "Bo", "from bob")
    before = run(bus, finding_channel("launch")).state

    run(bus, erasing_user("user:ann"))

    after = run(bus, finding_channel("launch")).state
    assert after.members == tuple(member for member in before.members if member.user != "ann")
    assert (after.leader, talk_left(bus)) == ("bob", ["bob: from bob"])
    assert "'ann'" not in log_of(bus, "entity:channel:launch")
    run(bus, joining("launch", new_member("dan", "dan", "Dot")))
    assert len(run(bus, finding_channel("launch")).state.members) == 3


def talk_left(bus: Engine) -> list[str]:
    records = bus.call(Read("channel:launch", OLDEST, 1000)).records
    return [f"{record.payload['from']}: {record.payload['text']}" for record in records if not record.erased]


def test_whoever_left_long_ago_is_forgotten_too(bus: Engine) -> None:
    run(bus, leaving("launch", "ann"))

    run(bus, erasing_user("user:ann"))

    assert "'ann'" not in log_of(bus, "entity:channel:launch")


async def test_a_channel_that_lost_its_leader_is_led_by_who_is_longest_there(bus: Engine) -> None:
    run(bus, erasing_user("user:bob"))

    assert run(bus, finding_channel("launch")).state.leader == "ann"
    await say(bus, "cat", "Cleo", "who leads?")
    assert talk(bus) == ["cat: who leads?"]


def test_a_channel_in_which_nobody_is_left_goes(bus: Engine) -> None:
    run(bus, making_channel("alone", new_member("ann", "ann", "Ada")))

    run(bus, erasing_user("user:ann"))

    with pytest.raises(UnknownEntity, match="is gone"):
        run(bus, finding_channel("alone"))


async def test_others_are_told_that_they_are_gone(bus: Engine) -> None:
    run(bus, erasing_user("user:ann"))

    with pytest.raises((NotFriends, UnknownEntity)):
        await definition_of(FriendSend()).run({"nametag": "@ann", "text": "hi"}, bobs(bus))
    run(bus, requesting("bob", "cat"))
    run(bus, accepting("cat", "bob"))
    await definition_of(FriendSend()).run({"nametag": "@cat", "text": "hi"}, bobs(bus))


class Interrupted(Broken):
    """A bus that is lost after so many operations."""

    left = 0

    def answer(self, operation: Operation[Any]) -> Any:
        self.left -= 1
        if self.left < 0:
            raise BusUnavailable("lost")
        return self.inner.call(operation)


def test_an_erasure_that_was_cut_short_is_finished_by_the_next() -> None:
    """Cut short after each of its operations in turn."""
    bus = MemoryBus()
    settle(bus)
    interrupted = Interrupted(bus)
    for number in range(OPERATIONS_MAX):
        name = f"user{number}"
        run(bus, making_user(name, name))
        run(bus, requesting(name, "bob"))
        run(bus, making_channel(f"c{number}", new_member(name, name, "Ada")))
        run(bus, joining(f"c{number}", new_member("bob", "bob", "Bo")))
        interrupted.left = number
        try:
            run(interrupted, erasing_user(f"user:{name}"))
        except BusUnavailable:
            run(bus, erasing_user(f"user:{name}"))
        assert name not in log_of(bus, f"entity:channel:c{number}") + str(run(bus, listing_friendships("bob")))
        assert run(bus, finding_channel(f"c{number}")).state.leader == "bob"
        with pytest.raises(UnknownEntity):
            run(bus, finding_user(name))
        if interrupted.left >= 0:
            break
        run(bus, leaving_all(f"c{number}"))
    else:
        pytest.fail("an erasure has no end")
    bus.close()


def leaving_all(channel: str) -> Flow[None]:
    yield Delete((f"entity:channel:{channel}",))
