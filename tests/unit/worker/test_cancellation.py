"""Ending the work of a run from outside."""

from __future__ import annotations

import asyncio

import pytest

from magent2.worker.cancellation import InterruptReason, RunCancellation, StopCommand
from tests.support.worker_fixture import until

LONG_S = 60.0
STOP = StopCommand("stopped by user:ann")


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


async def begin(cancellation: RunCancellation, work: Work, max_s: float = LONG_S) -> asyncio.Task[bool]:
    task = asyncio.create_task(cancellation.drive(work.do(), max_s))
    await until(lambda: work.begun)
    return task


async def test_work_that_ends_by_itself_says_so() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    work.gate.set()

    assert await task
    assert cancellation.reason is None


async def test_pulling_ends_the_work_and_not_its_task() -> None:
    cancellation, work = RunCancellation(), Work()

    async def run() -> str:
        ended = await cancellation.drive(work.do(), LONG_S)
        await asyncio.sleep(0)  # the task goes on as if nothing had been cancelled
        return f"ended by itself: {ended}"

    task = asyncio.create_task(run())
    await until(lambda: work.begun)
    cancellation.cancel(STOP)

    assert await task == "ended by itself: False"
    assert task.cancelling() == 0
    assert (cancellation.reason, work.cancels) == (STOP, 1)


async def test_the_first_reason_counts() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.cancel(InterruptReason.GIVE_BACK)
    cancellation.cancel(STOP)

    assert not await task
    assert cancellation.reason is InterruptReason.GIVE_BACK


async def test_work_that_has_ended_cannot_be_ended() -> None:
    cancellation, work = RunCancellation(), Work()
    work.gate.set()
    assert await cancellation.drive(work.do(), LONG_S)

    cancellation.cancel(STOP)

    assert cancellation.reason is None


async def test_work_is_not_begun_when_the_brake_is_pulled_already() -> None:
    cancellation, work = RunCancellation(), Work()
    cancellation.cancel(STOP)

    assert not await cancellation.drive(work.do(), LONG_S)
    assert not work.begun


async def test_work_that_takes_too_long_is_ended() -> None:
    cancellation, work = RunCancellation(), Work()

    assert not await cancellation.drive(work.do(), 0.01)
    assert cancellation.reason is InterruptReason.OVERDUE


async def test_an_error_is_raised() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await RunCancellation().drive(fail(), LONG_S)


async def test_an_error_while_it_is_being_ended_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    cancellation, begun = RunCancellation(), asyncio.Event()

    async def fail() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise LookupError("in the clean-up")

    task = asyncio.create_task(cancellation.drive(fail(), LONG_S))
    await begun.wait()
    cancellation.cancel(STOP)

    assert not await task
    assert "in the clean-up" in caplog.text


async def test_work_that_does_not_heed_is_ended_all_the_same() -> None:
    cancellation, begun = RunCancellation(), asyncio.Event()

    async def deaf() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(cancellation.drive(deaf(), LONG_S))
    await begun.wait()
    cancellation.cancel(STOP)

    assert not await task
    assert task.cancelling() == 0


async def test_a_cancellation_from_inside_is_an_error() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="from inside"):
        await RunCancellation().drive(cancelled(), LONG_S)


@pytest.mark.parametrize("pulled", [False, True])
async def test_a_cancellation_of_the_whole_task_is_passed_on(pulled: bool) -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    if pulled:
        cancellation.cancel(STOP)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


# --- halting


async def test_a_halt_in_a_while_comes_when_it_is_due() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(StopCommand("gone", in_s=0.01))

    assert not await task
    assert cancellation.reason == StopCommand("gone", in_s=0.01)


async def test_a_halt_that_was_taken_back_does_not_come() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(StopCommand("gone", in_s=LONG_S))
    cancellation.apply(None)
    work.gate.set()

    assert await task


async def test_a_halt_now_ends_the_work_now() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(STOP)

    assert not await task


async def test_a_stop_after_the_turn_waits_for_the_end_of_the_turn() -> None:
    cancellation, work = RunCancellation(), Work()
    later = StopCommand("after its turn", after_turn=True)

    async def turns() -> None:
        await cancellation.between_turns()
        await work.do()
        await cancellation.between_turns()
        pytest.fail("a run that was stopped went on")

    task = asyncio.create_task(cancellation.drive(turns(), LONG_S))
    await until(lambda: work.begun)
    cancellation.apply(later)
    before = cancellation.reason
    work.gate.set()

    assert not await task
    assert (before, cancellation.reason, work.cancels) == (None, later, 0)


async def test_a_run_that_ends_with_the_turn_is_not_stopped() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(StopCommand("after its turn", after_turn=True))
    work.gate.set()

    assert await task
