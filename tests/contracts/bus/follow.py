"""Promise 7: followers are woken, and see every record once and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from magent2.bus.interface import BusMessage
from magent2.bus.operations import OLDEST, Append, Delete, SetHead, Trim
from magent2.bus.records import NewRecord, Record
from magent2.bus.watch import Watch
from magent2.errors import UnknownCursor
from tests.contracts.bus.driver import BusDriver, ContractClass, EngineOpener, opened
from tests.support.waiting import DEADLINE_S, eventually

T = TypeVar("T")

LONG_WAIT_S = 3 * DEADLINE_S  # of a reader that has to be woken: it gives up later than the test


async def take(records: AsyncIterator[Record], count: int) -> list[int]:
    """Return the seqs of the next records."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(records)).seq for _ in range(count)]


async def drain(records: AsyncIterator[Record]) -> list[int]:
    """Return the seqs of all records until the follower ends."""
    async with asyncio.timeout(DEADLINE_S):
        return [record.seq async for record in records]


def started(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(coroutine)


async def parked(task: asyncio.Task[Any]) -> None:
    """Give a follower time to read what is there and to start waiting."""
    await asyncio.wait([task], timeout=0.05)


MARKERS = ("stream:marker-1", "stream:marker-2")


def await_start(bus: BusDriver, watch: Watch) -> None:
    """Wait until a watch has reported its start, which may count as a change of all its topics.

    Topics that are watched from the first wait on may start in any order. So the first marker only shows that the watch
    is at work. The second one is added after that and starts behind all others: they have been reported with it.
    """
    for marker in MARKERS:
        _await_report(bus, watch, marker)


def _await_report(bus: BusDriver, watch: Watch, marker: str) -> None:
    watch.add(marker)
    bus.put(marker)
    eventually(lambda: marker in watch.wait(DEADLINE_S / 100))


def next_change(watch: Watch) -> frozenset[str]:
    """The next changed topics besides the markers, which may be reported twice: by their start and by their record."""
    return eventually(lambda: watch.wait(DEADLINE_S / 100) - set(MARKERS))


def await_change(watch: Watch, topic: str) -> None:
    """Wait until a change of a topic is reported. An engine that has just connected reports all topics once more."""
    eventually(lambda: topic in watch.wait(DEADLINE_S / 100))


def one(topic: str, **payload: Any) -> Append:
    return Append(records=(NewRecord(topic, payload),))


class FollowTests:
    # --- on a thread

    def test_a_blocking_read_returns_at_once_what_is_there(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)

        assert [r.seq for r in bus.engine.read_blocking("stream:a", last_id="r1")] == [2, 3]

    def test_a_blocking_read_wakes_when_a_record_comes(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 1)

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(bus.engine.read_blocking, "stream:a", "r1", 100, LONG_WAIT_S)
            bus.put("stream:a")

            assert [r.seq for r in reading.result(DEADLINE_S)] == [2]

    def test_a_blocking_read_waits_for_the_first_record_of_a_topic(self, bus: BusDriver) -> None:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(bus.engine.read_blocking, "stream:a", None, 100, LONG_WAIT_S)
            bus.put("stream:a")

            assert [r.seq for r in reading.result(DEADLINE_S)] == [1]

    def test_a_blocking_read_gives_up_when_its_time_is_over(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 1)

        assert bus.engine.read_blocking("stream:a", last_id="r1", timeout_s=0.02) == []

    # --- on an event loop

    @pytest.mark.parametrize(
        ("cursor", "seen"), [(OLDEST, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (2, [3, 4]), ("r2", [3, 4]), (3, [4])]
    )
    def test_a_follower_starts_after_its_cursor_and_goes_on_with_what_comes(
        self, bus: BusDriver, cursor: int | str, seen: list[int]
    ) -> None:
        bus.fill("stream:a", 3)

        async def scene() -> list[int]:
            following = started(take(bus.engine.follow("stream:a", cursor), len(seen)))
            await parked(following)
            await bus.ado(one("stream:a"))
            return await following

        assert bus.run(scene()) == seen

    def test_a_follower_without_a_cursor_sees_only_what_is_new(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)

        async def scene() -> list[int]:
            records = bus.engine.follow("stream:a")
            first = started(take(records, 1))
            while not first.done():  # nothing tells when the follower has begun: what came before that is old for it
                await bus.ado(one("stream:a"))
                await parked(first)
            await bus.ado(one("stream:a"))
            return await first + await take(records, 1)

        first, second = bus.run(scene())

        assert first > 3
        assert second == first + 1

    def test_a_follower_waits_for_a_topic_that_is_not_there_yet(self, bus: BusDriver) -> None:
        async def scene() -> list[int]:
            following = started(take(bus.engine.follow("stream:a", OLDEST), 1))
            await parked(following)
            await bus.ado(one("stream:a"))
            return await following

        assert bus.run(scene()) == [1]

    def test_publishing_on_the_loop_that_follows_never_deadlocks(self, bus: BusDriver) -> None:
        async def scene() -> list[int]:
            following = started(take(bus.engine.follow("stream:a", 0), 20))
            for n in range(20):
                bus.engine.publish("stream:a", BusMessage("stream:a", {"n": n}))
                await asyncio.sleep(0)
            return await following

        assert bus.run(scene()) == list(range(1, 21))

    def test_blocking_reads_on_the_loop_that_follows_never_deadlock(self, bus: BusDriver) -> None:
        async def scene() -> list[int]:
            following = started(take(bus.engine.follow("stream:a", 0), 5))
            for n in range(5):
                await bus.engine.acall(one("stream:a", n=n))
                assert bus.engine.read_blocking("stream:a", timeout_s=DEADLINE_S)
            return await following

        assert bus.run(scene()) == [1, 2, 3, 4, 5]

    def test_a_follower_sees_every_record_of_many_writers_once_and_in_order(self, bus: BusDriver) -> None:
        def write() -> None:
            for _ in range(50):
                bus.engine.call(one("stream:a"))

        async def scene() -> list[int]:
            following = started(take(bus.engine.follow("stream:a", 0), 150))
            await asyncio.gather(*(asyncio.to_thread(write) for _ in range(3)))
            return await following

        assert bus.run(scene()) == list(range(1, 151))

    def test_each_of_many_followers_sees_everything(self, bus: BusDriver) -> None:
        async def scene() -> list[list[int]]:
            following = [started(take(bus.engine.follow("stream:a", 0), 10)) for _ in range(20)]
            for _ in range(10):
                await bus.ado(one("stream:a"))
            return await asyncio.gather(*following)

        assert bus.run(scene()) == [list(range(1, 11))] * 20

    def test_a_follower_that_was_left_can_be_taken_up_again_by_its_cursor(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 4)

        async def scene() -> list[int]:
            records = bus.engine.follow("stream:a", 0)
            seen = await take(records, 2)
            await records.aclose()  # type: ignore[attr-defined]  # engines give generators, the port says iterator
            return seen + await take(bus.engine.follow("stream:a", seen[-1]), 2)

        assert bus.run(scene()) == [1, 2, 3, 4]

    def test_a_follower_ends_when_its_topic_is_deleted(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)

        async def scene() -> list[int]:
            records = bus.engine.follow("stream:a", 0)
            seen = await take(records, 2)
            rest = started(drain(records))
            await parked(rest)
            await bus.ado(Delete(("stream:a",)))
            return seen + await rest

        assert bus.run(scene()) == [1, 2]

    @pytest.mark.parametrize("cursor", [0, 1, "r1"])
    def test_a_follower_that_lags_when_its_topic_is_deleted_ends_too(self, bus: BusDriver, cursor: int | str) -> None:
        bus.fill("stream:a", 3)
        bus.do(Delete(("stream:a",)))

        assert bus.run(drain(bus.engine.follow("stream:a", cursor))) == []

    def test_a_follower_of_a_deleted_topic_ends_at_once(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)
        bus.do(Delete(("stream:a",)))

        assert bus.run(drain(bus.engine.follow("stream:a"))) == []
        assert bus.run(drain(bus.engine.follow("stream:a", 2))) == []

    def test_a_follower_that_retention_has_overtaken_raises_unknown_cursor(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        async def scene() -> None:
            records = bus.engine.follow("stream:a", 1)
            await bus.ado(Trim("stream:a", keep=1))
            await take(records, 1)

        with pytest.raises(UnknownCursor):
            bus.run(scene())

    # --- watching

    @pytest.mark.parametrize("change", ["append", "head", "delete"])
    def test_every_change_of_a_topic_wakes_its_watchers(self, bus: BusDriver, change: str) -> None:
        bus.put("stream:a")
        operations = {
            "append": one("stream:a"),
            "head": Append(records=(NewRecord("stream:z", {}),), heads=(SetHead("stream:a", {"x": 1}),)),
            "delete": Delete(("stream:a",)),
        }

        async def scene() -> frozenset[str]:
            with bus.engine.watch(["stream:a"]) as watch:
                while await watch.changed(0.05):  # the start of the watch may be reported as a change
                    pass
                await bus.ado(operations[change])
                return await watch.changed(DEADLINE_S)

        assert bus.run(scene()) == {"stream:a"}

    def test_a_thread_that_waits_is_woken_by_the_topic_that_changed(self, bus: BusDriver) -> None:
        waiting = threading.Event()

        def wait() -> None:
            with bus.engine.watch(["stream:a", "stream:b"]) as watch:
                await_start(bus, watch)
                waiting.set()
                await_change(watch, "stream:b")

        with ThreadPoolExecutor(1) as pool:
            woken = pool.submit(wait)
            assert waiting.wait(DEADLINE_S)
            bus.put("stream:b")

            woken.result(DEADLINE_S)

    def test_a_change_between_adding_and_waiting_is_not_missed(self, bus: BusDriver) -> None:
        with bus.engine.watch() as watch:
            watch.add("stream:a")
            bus.put("stream:a")

            assert watch.wait(DEADLINE_S) == {"stream:a"}

    def test_a_topic_that_is_no_longer_watched_is_not_reported(self, bus: BusDriver) -> None:
        with bus.engine.watch(["stream:a", "stream:b"]) as watch:
            await_start(bus, watch)
            watch.discard("stream:a")
            bus.put("stream:a")
            bus.put("stream:b")

            assert next_change(watch) == {"stream:b"}

    # --- between two engines on one log

    def test_a_record_of_another_engine_on_the_same_log_wakes_a_follower(
        self: ContractClass, bus: BusDriver, opener: EngineOpener
    ) -> None:
        if not self.shared:
            pytest.skip("the engine does not share its log")
        with opened(opener, "main", bus) as other:

            async def scene() -> list[int]:
                following = started(take(bus.engine.follow("stream:a", 0), 2))
                await parked(following)
                other.engine.call(one("stream:a"))
                other.engine.call(one("stream:a"))
                return await following

            assert bus.run(scene()) == [1, 2]

    def test_a_record_of_another_engine_on_the_same_log_wakes_a_thread(
        self: ContractClass, bus: BusDriver, opener: EngineOpener
    ) -> None:
        if not self.shared:
            pytest.skip("the engine does not share its log")
        with opened(opener, "main", bus) as other, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(bus.engine.read_blocking, "stream:a", None, 100, LONG_WAIT_S)
            other.put("stream:a", {"x": 1})

            assert [r.payload for r in reading.result(DEADLINE_S)] == [{"x": 1}]

    def test_two_engines_on_one_log_number_and_deduplicate_together(
        self: ContractClass, bus: BusDriver, opener: EngineOpener
    ) -> None:
        if not self.shared:
            pytest.skip("the engine does not share its log")
        with opened(opener, "main", bus) as other:
            bus.put("stream:a", {"x": 1}, "one")
            other.put("stream:a", {"x": 2}, "two")

            assert other.append(NewRecord("stream:a", {"x": 1}, "one")).repeat
            assert bus.append(NewRecord("stream:a", {"x": 2}, "two")).repeat
            assert bus.seqs("stream:a") == other.seqs("stream:a") == [1, 2]
