"""Live lists of sessions: what one task asks of the log for all of them, and what the lists show."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe, Operation, SetHead, Topics
from magent2.bus.records import NewRecord
from magent2.errors import BusUnavailable
from magent2.gateway.streaming import session_list
from magent2.gateway.streaming.session_list import LiveSessionList, LiveSessionLists
from magent2.mail.registration import register_agent
from magent2.models.address import stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.store import create_session, delete_session, post_message
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.waiting import until

USERS = [f"user{number}" for number in range(50)]
BARRIERS = ("barrier-1", "barrier-2")
NEVER_S = 3600.0


class OperationLog(EngineWrapper):
    """Remembers the operations that it ran. `fault` may raise in place of one."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.operations: list[Operation[Any]] = []
        self.fault: Callable[[Operation[Any]], None] = lambda _: None

    def answer(self, operation: Operation[Any]) -> Any:
        self.operations.append(operation)
        self.fault(operation)
        return self.inner.call(operation)

    def listings(self) -> list[Topics]:
        return [operation for operation in self.operations if isinstance(operation, Topics)]


class Reader:
    def wake(self) -> None: ...


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[OperationLog]:
    bus = OperationLog(new_engines(request.param, request)())
    yield bus
    await bus.aclose()


@pytest.fixture
async def memory() -> AsyncIterator[OperationLog]:
    bus = OperationLog(MemoryBus())
    yield bus
    await bus.aclose()


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that only a sweep would find has to fail a test."""
    monkeypatch.setattr(session_list, "SWEEP_S", NEVER_S)


class Followed:
    """Open lists, and lists of two more users that tell when everything that came before is done.

    The two are used in turn. A post is notified of twice, so the second notification of the last one may be left, and a
    look at its session would show the next post there before the changes in between.
    """

    def __init__(self, bus: OperationLog, lists: list[LiveSessionList], barriers: list[LiveSessionList]) -> None:
        self.bus = bus
        self.lists = lists
        self._barriers = itertools.cycle(barriers)

    async def all_done(self) -> None:
        """Post a message and wait until its list shows it. The changes before it are published by then."""
        barrier = next(self._barriers)
        version = barrier.version
        post(self.bus, str(barrier.owner))
        await until(lambda: barrier.version > version)


@asynccontextmanager
async def following(bus: OperationLog, *owners: str | None) -> AsyncIterator[Followed]:
    """Open the lists of these owners, and wait until they are read."""
    for barrier in BARRIERS:
        run_sync(bus.inner, create_session, barrier, barrier)
    lists, reader = LiveSessionLists(bus), Reader()
    opened = [lists.join(owner, reader) for owner in owners]
    barriers = [lists.join(barrier, reader) for barrier in BARRIERS]
    await until(lambda: all(one.version for one in (*opened, *barriers)))
    followed = Followed(bus, opened, barriers)
    await followed.all_done()  # on Redis, all lists are read again when the subscription is confirmed
    yield followed
    for one in (*opened, *barriers):
        lists.leave(one, reader)
    await asyncio.sleep(0)


def post(bus: OperationLog, user: str) -> None:
    """Send a message in the session that has the name of the user."""
    text = uuid.uuid4().hex
    envelope = MessageEnvelope(conversation_id=user, sender=f"user:{user}", recipient="agent:Ada", content=text)
    run_sync(bus.inner, post_message, envelope)


def set_head(bus: Engine, session: str, **fields: Any) -> None:
    topic = stream_topic(session)
    bus.call(Append(records=(NewRecord("note:x", {}),), heads=(SetHead(topic, fields),)))


def shown(one: LiveSessionList) -> list[str]:
    frame = one.after(0).decode()
    return [entry["session_id"] for entry in orjson.loads(frame.partition("data: ")[2])["sessions"]]


def changes(one: LiveSessionList, after: int) -> list[dict[str, Any]]:
    frames = one.after(after).decode().split("\n\n")
    return [orjson.loads(frame.partition("data: ")[2]) for frame in frames if frame]


# --- what the lists ask


async def test_a_message_of_one_of_many_users_lists_no_topics(bus: OperationLog) -> None:
    run_sync(bus.inner, register_agent, "Ada")
    for user in USERS:
        run_sync(bus.inner, create_session, user, user)

    async with following(bus, *USERS) as followed:
        versions = [one.version for one in followed.lists]
        bus.operations.clear()
        post(bus, USERS[7])
        await followed.all_done()

        assert bus.listings() == []
        # The messages that begin and end the test may be looked at too, with this one or by themselves.
        looked_at = [operation.topics for operation in bus.operations if isinstance(operation, Describe)]
        assert len(looked_at) == len(bus.operations)
        of_users = [set(topics) - set(map(stream_topic, BARRIERS)) for topics in looked_at]
        assert [topics for topics in of_users if topics] == [{stream_topic(USERS[7])}]
        assert [one.version - before for one, before in zip(followed.lists, versions, strict=True)] == [
            int(user == USERS[7]) for user in USERS
        ]


async def test_records_without_a_head_are_not_looked_at(memory: OperationLog) -> None:
    run_sync(memory.inner, create_session, "one", "ann")

    async with following(memory, "ann") as followed:
        memory.operations.clear()
        for number in range(20):
            memory.inner.call(Append(records=(NewRecord("stream:one", {"token": number}),)))
        await followed.all_done()

        assert memory.operations == [Describe((stream_topic(BARRIERS[1]),))]


async def test_lists_that_nothing_happens_to_share_one_slow_sweep(
    memory: OperationLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in USERS:
        run_sync(memory.inner, create_session, user, user)
    monkeypatch.setattr(session_list, "SWEEP_S", 0.01)
    lists, reader = LiveSessionLists(memory), Reader()
    opened = [lists.join(user, reader) for user in USERS]
    await until(lambda: all(one.version for one in opened))

    memory.operations.clear()
    await until(lambda: len(memory.operations) >= 5)

    assert set(memory.operations) == {Topics("stream:", limit=session_list.SHOWN_MAX)}
    for one in opened:
        lists.leave(one, reader)
    await asyncio.sleep(0)


async def test_many_changes_are_looked_at_in_a_few_operations(
    memory: OperationLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "DESCRIBED_MAX", 10)

    async with following(memory, "ann") as followed:
        (anns,) = followed.lists
        memory.operations.clear()
        for number in range(25):
            run_sync(memory.inner, create_session, f"s{number:02}", "ann")
        await until(lambda: len(shown(anns)) == 25)

        assert [len(one.topics) for one in memory.operations if isinstance(one, Describe)] == [10, 10, 5]


# --- what the lists show


async def test_a_session_of_another_gateway_is_shown_without_a_message(bus: OperationLog) -> None:
    async with following(bus, "ann", "bob", None) as followed:
        anns, bobs, all_sessions = followed.lists
        version = anns.version
        run_sync(bus.inner, create_session, "new", "ann")
        await until(lambda: anns.version > version)

        assert (shown(anns), shown(bobs)) == (["new"], [])
        assert sorted(shown(all_sessions)) == [*BARRIERS, "new"]


async def test_the_most_recently_active_session_comes_first(memory: OperationLog) -> None:
    for name in ("one", "two", "three"):
        run_sync(memory.inner, create_session, name, "ann")
        set_head(memory.inner, name, title=name)

    async with following(memory, "ann") as followed:
        (anns,) = followed.lists
        await until(lambda: clock_moved(memory.inner))
        set_head(memory.inner, "one", title="again")
        await until(lambda: anns.version > 1)

        assert shown(anns)[0] == "one"
        assert [entry["title"] for entry in changes(anns, 1)[0]["changed"]] == ["again"]


def clock_moved(bus: Engine) -> bool:
    """Whether the clock has moved on since the last activity of any session."""
    set_head(bus, "clock", owner="clock")
    listed = {info.topic: info.active_ms for info in bus.call(Topics("stream:")).topics}
    return listed[stream_topic("clock")] > max(ms for topic, ms in listed.items() if topic != stream_topic("clock"))


async def test_a_deleted_session_makes_room_for_an_older_one(
    bus: OperationLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "SHOWN_MAX", 2)
    for name in ("old", "middle", "new"):
        run_sync(bus.inner, create_session, name, "ann")
        await until(lambda: clock_moved(bus.inner))

    async with following(bus, "ann") as followed:
        (anns,) = followed.lists
        assert shown(anns) == ["new", "middle"]
        version = anns.version
        run_sync(bus.inner, delete_session, "new")
        await until(lambda: shown(anns) == ["middle", "old"])

        assert [name for change in changes(anns, version) for name in change["removed"]] == ["new"]


async def test_a_session_that_makes_room_is_not_reported_as_removed(
    memory: OperationLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "SHOWN_MAX", 2)
    for name in ("a", "b"):
        run_sync(memory.inner, create_session, name, "ann")
        await until(lambda: clock_moved(memory.inner))

    async with following(memory, "ann") as followed:
        (anns,) = followed.lists
        run_sync(memory.inner, create_session, "c", "ann")
        await until(lambda: anns.version > 1)

        assert shown(anns) == ["c", "b"]
        assert [change["removed"] for change in changes(anns, 1)] == [[]]


async def test_a_session_that_changes_its_owner_changes_its_list(bus: OperationLog) -> None:
    run_sync(bus.inner, create_session, "one", "ann")

    async with following(bus, "ann", "bob") as followed:
        anns, bobs = followed.lists
        version = anns.version
        set_head(bus.inner, "one", owner="bob")
        await until(lambda: anns.version > version)

        assert (shown(anns), shown(bobs)) == ([], ["one"])
        assert [change["removed"] for change in changes(anns, version)] == [["one"]]


async def test_all_lists_are_read_again_when_changes_may_have_been_missed(memory: OperationLog) -> None:
    for user in ("ann", "bob"):
        run_sync(memory.inner, create_session, user, user)

    async with following(memory, "ann", "bob") as followed:
        memory.operations.clear()
        assert isinstance(memory.inner, MemoryBus)
        memory.inner._hub.notify((session_list.ALL_SESSIONS,))
        await followed.all_done()

        assert [one.owner for one in memory.listings()] == ["ann", "bob", *BARRIERS]


# --- errors


@pytest.mark.parametrize("error", [BusUnavailable("away"), ValueError("of another library")])
async def test_an_error_of_the_bus_does_not_end_the_lists(memory: OperationLog, error: Exception) -> None:
    async with following(memory, "ann") as followed:
        (anns,) = followed.lists
        failed: list[Operation[Any]] = []

        def fail_once(operation: Operation[Any]) -> None:
            if isinstance(operation, Describe) and not failed:
                failed.append(operation)
                raise error

        memory.fault = fail_once
        run_sync(memory.inner, create_session, "new", "ann")
        await until(lambda: anns.version > 1)

        assert (len(failed), shown(anns)) == (1, ["new"])


async def test_the_task_ends_with_the_last_list_and_starts_with_the_next(memory: OperationLog) -> None:
    lists, reader = LiveSessionLists(memory), Reader()

    def tasks() -> int:
        return sum(task.get_name() == "magent2-session-lists" for task in asyncio.all_tasks())

    first = [lists.join(owner, reader) for owner in USERS]
    assert tasks() == 1
    for one in first:
        lists.leave(one, reader)
    await until(lambda: tasks() == 0)

    run_sync(memory.inner, create_session, "one", "ann")
    second = lists.join("ann", reader)
    await until(lambda: second.version == 1)
    assert (tasks(), shown(second)) == (1, ["one"])
    lists.leave(second, reader)
    await until(lambda: tasks() == 0)
