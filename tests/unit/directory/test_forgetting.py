"""Erasing a user takes them out of the directory, and leaves everybody else's entries as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import OLDEST, Delete, Operation, Read
from magent2.directory.channels import create_channel, find_channel, join_channel, leave_channel, new_member
from magent2.directory.erasure import erase_user
from magent2.directory.swarms import create_swarm, list_contacts, list_swarms
from magent2.directory.users import (
    accept_friendship,
    create_user,
    find_user,
    find_user_by_nametag,
    list_friendships,
    list_users,
    request_friendship,
)
from magent2.errors import BusUnavailable, NameTaken, NotFriends, UnknownEntity
from magent2.tools.messaging.directory_messages import ChannelSend, FriendSend, SendUserMessage
from magent2.tools.sending import definition_of
from tests.support.directory_fixture import channel_messages, open_channel, open_swarm, populate_directory
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.sending import Facts

OPERATIONS_MAX = 200  # an erasure that takes more is stuck


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    populate_directory(engine)
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
    erased = run_sync(bus, erase_user, "user:ann")

    assert {topic.partition(":")[2] for topic in erased.entries} == {
        "user:ann", "nametag:ann", "friendship:ann|bob", "friendship:ann|cat",
    }  # fmt: skip
    assert [user.id for user in run_sync(bus, list_users)] == ["bob", "cat"]
    assert run_sync(bus, list_friendships) == []
    with pytest.raises(UnknownEntity, match="unknown nametag @ann"):
        run_sync(bus, find_user_by_nametag, "ann")
    with pytest.raises(UnknownEntity, match="user 'ann' was removed"):
        run_sync(bus, find_user, "ann")
    with pytest.raises(UnknownEntity, match="was erased"):
        run_sync(bus, request_friendship, "bob", "ann")
    assert not run_sync(bus, erase_user, "user:ann")


def test_the_id_and_nametag_of_an_erased_user_stay_taken(bus: Engine) -> None:
    run_sync(bus, erase_user, "user:ann")

    for entity, nametag in (("ann", "new"), ("dan", "ann"), ("ann", "ann")):
        with pytest.raises(NameTaken):
            run_sync(bus, create_user, entity, nametag)
    with pytest.raises(NameTaken):
        run_sync(bus, create_swarm, "ann", "bob", "Desk")


async def test_swarms_and_contacts_go_on_both_sides(bus: Engine) -> None:
    tool = definition_of(SendUserMessage())
    for user, agent in (("ann", "Ada"), ("cat", "Cleo")):
        facts = Facts(bus, f"{user}s", agent, principal=f"user:{user}")
        await tool.run({"text": "hi", "nametag": "@desk"}, facts)

    run_sync(bus, erase_user, "user:ann")
    assert [contact.user for contact in run_sync(bus, list_contacts, "desk")] == ["cat"]

    run_sync(bus, erase_user, "user:bob")
    assert (run_sync(bus, list_swarms), run_sync(bus, list_contacts, "desk")) == ([], [])
    with pytest.raises(UnknownEntity, match="unknown nametag @desk"):
        await tool.run({"text": "hi", "nametag": "@desk"}, Facts(bus, "cats", "Cleo", principal="user:cat"))


async def test_a_channel_forgets_who_was_there_and_what_they_said(bus: Engine) -> None:
    await say(bus, "ann", "Ada", "from ann")
    await say(bus, "bob", "Bo", "from bob")
    before = run_sync(bus, find_channel, "launch").state

    run_sync(bus, erase_user, "user:ann")

    after = run_sync(bus, find_channel, "launch").state
    assert after.members == tuple(member for member in before.members if member.user != "ann")
    assert (after.leader, talk_left(bus)) == ("bob", ["bob: from bob"])
    assert "'ann'" not in log_of(bus, "entity:channel:launch")
    run_sync(bus, join_channel, "launch", new_member("dan", "dan", "Dot"))
    assert len(run_sync(bus, find_channel, "launch").state.members) == 3


def talk_left(bus: Engine) -> list[str]:
    records = bus.call(Read("channel:launch", OLDEST, 1000)).records
    return [f"{record.payload['from']}: {record.payload['text']}" for record in records if not record.erased]


def test_an_earlier_membership_is_erased_too(bus: Engine) -> None:
    run_sync(bus, leave_channel, "launch", "ann")

    run_sync(bus, erase_user, "user:ann")

    assert "'ann'" not in log_of(bus, "entity:channel:launch")


async def test_a_channel_that_lost_its_leader_is_led_by_who_is_longest_there(bus: Engine) -> None:
    run_sync(bus, erase_user, "user:bob")

    assert run_sync(bus, find_channel, "launch").state.leader == "ann"
    await say(bus, "cat", "Cleo", "who leads?")
    assert channel_messages(bus) == ["cat: who leads?"]


def test_a_channel_without_members_is_deleted(bus: Engine) -> None:
    run_sync(bus, create_channel, "alone", new_member("ann", "ann", "Ada"))

    run_sync(bus, erase_user, "user:ann")

    with pytest.raises(UnknownEntity, match="was removed"):
        run_sync(bus, find_channel, "alone")


async def test_others_are_told_that_they_are_gone(bus: Engine) -> None:
    run_sync(bus, erase_user, "user:ann")

    with pytest.raises((NotFriends, UnknownEntity)):
        await definition_of(FriendSend()).run({"nametag": "@ann", "text": "hi"}, bobs(bus))
    run_sync(bus, request_friendship, "bob", "cat")
    run_sync(bus, accept_friendship, "cat", "bob")
    await definition_of(FriendSend()).run({"nametag": "@cat", "text": "hi"}, bobs(bus))


class Interrupted(EngineWrapper):
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
    populate_directory(bus)
    interrupted = Interrupted(bus)
    for number in range(OPERATIONS_MAX):
        name = f"user{number}"
        run_sync(bus, create_user, name, name)
        run_sync(bus, request_friendship, name, "bob")
        run_sync(bus, create_channel, f"c{number}", new_member(name, name, "Ada"))
        run_sync(bus, join_channel, f"c{number}", new_member("bob", "bob", "Bo"))
        interrupted.left = number
        try:
            run_sync(interrupted, erase_user, f"user:{name}")
        except BusUnavailable:
            run_sync(bus, erase_user, f"user:{name}")
        assert name not in log_of(bus, f"entity:channel:c{number}") + str(run_sync(bus, list_friendships, "bob"))
        assert run_sync(bus, find_channel, f"c{number}").state.leader == "bob"
        with pytest.raises(UnknownEntity):
            run_sync(bus, find_user, name)
        if interrupted.left >= 0:
            break
        run_sync(bus, leaving_all, f"c{number}")
    else:
        pytest.fail("an erasure has no end")
    bus.close()


async def leaving_all(log: Log, channel: str) -> None:
    await log.run(Delete((f"entity:channel:{channel}",)))
