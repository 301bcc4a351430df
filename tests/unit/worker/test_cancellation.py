"""Ending the work of a run from outside."""

from __future__ import annotations

import asyncio

import pytest

from magent2.worker.cancellation import Brake, Interrupt
from magent2.worker.lane_plan import Halt
from tests.support.worker_fixture import until

LONG_S = 60.0
STOP = Halt("stopped by user:ann")


class Work:
    """Waits until it is let go."""

    def __init__(self) -> None:
        self.begun = False
        self.cancels = 0
        self.gate = asyncio.Event()

    async def do(self) -> None:
        self.begun = True
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancels += 1
            raise


async def begin(brake: Brake, work: Work, max_s: float = LONG_S) -> asyncio.Task[bool]:
    task = asyncio.create_task(brake.drive(work.do(), max_s))
    await until(lambda: work.begun)
    return task


async def test_work_that_ends_by_itself_says_so() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    work.gate.set()

    assert await task
    assert brake.reason is None


async def test_pulling_ends_the_work_and_not_its_task() -> None:
    brake, work = Brake(), Work()

    async def run() -> str:
        ended = await brake.drive(work.do(), LONG_S)
        await asyncio.sleep(0)  # the task goes on as if nothing had been cancelled
        return f"ended by itself: {ended}"

    task = asyncio.create_task(run())
    await until(lambda: work.begun)
    brake.pull(STOP)

    assert await task == "ended by itself: False"
    assert task.cancelling() == 0
    assert (brake.reason, work.cancels) == (STOP, 1)


async def test_the_first_reason_counts() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    brake.pull(Interrupt.GIVE_BACK)
    brake.pull(STOP)

    assert not await task
    assert brake.reason is Interrupt.GIVE_BACK


async def test_work_that_has_ended_cannot_be_ended() -> None:
    brake, work = Brake(), Work()
    work.gate.set()
    assert await brake.drive(work.do(), LONG_S)

    brake.pull(STOP)

    assert brake.reason is None


async def test_work_is_not_begun_when_the_brake_is_pulled_already() -> None:
    brake, work = Brake(), Work()
    brake.pull(STOP)

    assert not await brake.drive(work.do(), LONG_S)
    assert not work.begun


async def test_work_that_takes_too_long_is_ended() -> None:
    brake, work = Brake(), Work()

    assert not await brake.drive(work.do(), 0.01)
    assert brake.reason is Interrupt.OVERDUE


async def test_an_error_is_raised() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await Brake().drive(fail(), LONG_S)


async def test_an_error_while_it_is_being_ended_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    brake, begun = Brake(), asyncio.Event()

    async def fail() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise LookupError("in the clean-up")

    task = asyncio.create_task(brake.drive(fail(), LONG_S))
    await begun.wait()
    brake.pull(STOP)

    assert not await task
    assert "in the clean-up" in caplog.text


async def test_work_that_does_not_heed_is_ended_all_the_same() -> None:
    brake, begun = Brake(), asyncio.Event()

    async def deaf() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(brake.drive(deaf(), LONG_S))
    await begun.wait()
    brake.pull(STOP)

    assert not await task
    assert task.cancelling() == 0


async def test_a_cancellation_from_inside_is_an_error() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="from inside"):
        await Brake().drive(cancelled(), LONG_S)


@pytest.mark.parametrize("pulled", [False, True])
async def test_a_cancellation_of_the_whole_task_is_passed_on(pulled: bool) -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    if pulled:
        brake.pull(STOP)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


# --- halting


async def test_a_halt_in_a_while_comes_when_it_is_due() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    brake.halt(Halt("gone", in_s=0.01))

    assert not await task
    assert brake.reason == Halt("gone", in_s=0.01)


async def test_a_halt_that_was_taken_back_does_not_come() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    brake.halt(Halt("gone", in_s=LONG_S))
    brake.halt(None)
    work.gate.set()

    assert await task


async def test_a_halt_now_ends_the_work_now() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    brake.halt(STOP)

    assert not await task


async def test_a_stop_after_the_turn_waits_for_the_end_of_the_turn() -> None:
    brake, work = Brake(), Work()
    later = Halt("after its turn", after_turn=True)

    async def turns() -> None:
        await brake.between_turns()
        await work.do()
        await brake.between_turns()
        pytest.fail("a run that was stopped went on")

    task = asyncio.create_task(brake.drive(turns(), LONG_S))
    await until(lambda: work.begun)
    brake.halt(later)
    before = brake.reason
    work.gate.set()

    assert not await task
    assert (before, brake.reason, work.cancels) == (None, later, 0)


async def test_a_run_that_ends_with_the_turn_is_not_stopped() -> None:
    brake, work = Brake(), Work()
    task = await begin(brake, work)
    brake.halt(Halt("after its turn", after_turn=True))
    work.gate.set()

    assert await task
