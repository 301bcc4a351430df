"""The end of waits for an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord, Record
from magent2.bus.watch import Watch
from magent2.gateway.reply_waiter import ReplyWaiter
from tests.support.waiting import DEADLINE_S, until


class NoOutcome:
    status: str | None = None

    def take(self, record: Record) -> None:
        pass


async def test_a_drain_ends_all_waits_also_beside_one_whose_time_has_just_run_out() -> None:
    bus = MemoryBus()
    waiter = ReplyWaiter(bus)
    waits = [asyncio.create_task(waiter.wait(name, 0, NoOutcome(), 3600)) for name in ("one", "two", "three")]
    await until(lambda: waiter.waiting == len(waits))

    # The first clock runs out in one step of the loop, and its wait ends in the next. The drain is between them.
    next(iter(waiter._clocks)).reschedule(0)
    asyncio.get_running_loop().call_soon(waiter.drain)
    await asyncio.wait_for(asyncio.gather(*waits), DEADLINE_S)

    assert [wait.result() for wait in waits] == [False] * 3
    bus.close()


async def test_a_drain_still_answers_a_wait_whose_outcome_was_just_written() -> None:
    class SlowNotifications(MemoryBus):
        def watch(self, topics: Iterable[str] = ()) -> Watch:
            return super().watch(["another topic"])

    class FirstRecord(NoOutcome):
        def take(self, record: Record) -> None:
            self.status = "finished"

    bus = SlowNotifications()
    waiter = ReplyWaiter(bus)
    wait = asyncio.create_task(waiter.wait("one", 0, FirstRecord(), 3600))
    await until(lambda: waiter.waiting == 1)

    bus.call(Append(records=(NewRecord("stream:one", {"event": "output"}),)))
    waiter.drain()

    assert await wait
    bus.close()
