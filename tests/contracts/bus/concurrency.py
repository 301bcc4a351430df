"""An engine used from several threads and event loops at once, with cancellation and closing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from magent2.bus.operations import Append, Claim, Describe, Read
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import Magent2Error
from tests.contracts.bus.driver import LEASE_S, BusDriver
from tests.contracts.bus.follow import await_change, await_start, take
from tests.support.waiting import DEADLINE_S


def one(n: int = 0) -> Append:
    return Append(records=(NewRecord("stream:a", {"n": n}),))


class ConcurrencyTests:
    def test_what_one_face_has_written_the_other_reads_at_once(self, bus: BusDriver) -> None:
        async def scene() -> None:
            for n in range(1, 11):
                await bus.engine.acall(one(n))
                assert bus.engine.call(Describe(("stream:a",)))[0].last == 2 * n - 1
                bus.engine.call(one(n))
                assert (await bus.engine.acall(Describe(("stream:a",))))[0].last == 2 * n

        bus.run(scene())

    def test_an_engine_outlives_the_loop_that_used_it(self, bus: BusDriver) -> None:
        async def scene(seq: int) -> None:
            assert (await bus.engine.acall(one())).seqs == (seq,)
            assert await take(bus.engine.follow("stream:a", seq - 1), 1) == [seq]

        for seq in (1, 2, 3):
            asyncio.run(scene(seq))

        assert bus.seqs("stream:a") == [1, 2, 3]

    def test_loops_on_several_threads_share_an_engine(self, bus: BusDriver) -> None:
        async def write() -> None:
            await asyncio.gather(*(bus.engine.acall(one(n)) for n in range(20)))

        def run(_: int) -> None:
            asyncio.run(write())

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(run, range(3)))

        assert bus.seqs("stream:a") == list(range(1, 61))

    def test_a_cancelled_append_that_is_run_again_happens_once(self, bus: BusDriver) -> None:
        async def scene() -> list[AppendResult]:
            answers = []
            for n in range(20):
                operation = one(n)
                task = asyncio.ensure_future(bus.engine.acall(operation))
                for _ in range(n % 5):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                answers.append(await bus.engine.acall(operation))
            return answers

        answers = bus.run(scene())

        assert [answer.seqs for answer in answers] == [(seq,) for seq in range(1, 21)]
        assert [record.payload["n"] for record in bus.read("stream:a")] == list(range(20))

    def test_a_cancelled_claim_that_is_run_again_hands_out_its_lanes(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        operation = Claim(worker="w1", agents=("A",), limit=1, lease_s=LEASE_S)

        async def scene() -> int:
            task = asyncio.ensure_future(bus.engine.acall(operation))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return len((await bus.engine.acall(operation)).lanes)

        assert bus.run(scene()) == 1

    def test_a_follower_that_is_cancelled_leaves_the_engine_in_order(self, bus: BusDriver) -> None:
        async def scene() -> list[int]:
            waiting = [asyncio.ensure_future(take(bus.engine.follow("stream:a"), 1)) for _ in range(5)]
            await asyncio.sleep(0.02)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await bus.ado(one())
            return await take(bus.engine.follow("stream:a", 0), 1)

        assert bus.run(scene()) == [1]

    def test_a_loop_goes_on_while_a_thread_waits_for_a_record(self, bus: BusDriver) -> None:
        async def scene() -> list[int]:
            reading = asyncio.create_task(asyncio.to_thread(bus.engine.read_blocking, "stream:a", None, 10, DEADLINE_S))
            for _ in range(10):
                await bus.engine.acall(Read("stream:b"))
            await bus.ado(one())
            return [record.seq for record in await reading]

        assert bus.run(scene()) == [1]

    def test_a_follower_sees_more_than_fits_a_page(self, bus: BusDriver) -> None:
        bus.append(*(NewRecord("stream:a", {}) for _ in range(700)))

        assert bus.run(take(bus.engine.follow("stream:a", 0), 700)) == list(range(1, 701))

    def test_one_watch_holds_many_topics(self, bus: BusDriver) -> None:
        topics = [f"stream:{n}" for n in range(300)]
        with bus.engine.watch(topics) as watch:
            await_start(bus, watch)
            bus.put("stream:299")

            await_change(watch, "stream:299")

    def test_closing_twice_does_no_harm(self, bus: BusDriver) -> None:
        bus.put("stream:a")

        bus.engine.close()
        bus.engine.close()
        bus.run(bus.engine.aclose())

        with pytest.raises(Magent2Error, match="closed"):
            bus.put("stream:a")
