"""Stopping a run: what commands and disconnects ask for, and cancelling the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magent2.mail.headers import STOP, STOP_AFTER_TURN
from magent2.worker.cancellation import (
    CONNECTED,
    DISCONNECTED,
    GRACE_S,
    DisconnectPolicy,
    InterruptReason,
    RunCancellation,
    StopCommand,
    after_command,
    policy_of,
)
from tests.support.worker_fixture import until

LONG_S = 60.0
STOPPED_BY_ANN = StopCommand("stopped by user:ann")


class Work:
    """A run that waits until its gate opens."""

    def __init__(self) -> None:
        self.has_started = False
        self.cancels = 0
        self.gate = asyncio.Event()

    async def do(self) -> None:
        self.has_started = True
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancels += 1
            raise


async def begin(cancellation: RunCancellation, work: Work, max_s: float = LONG_S) -> asyncio.Task[bool]:
    task = asyncio.create_task(cancellation.drive(work.do(), max_s))
    await until(lambda: work.has_started)
    return task


async def test_drive_returns_true_when_the_run_ends_by_itself() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    work.gate.set()

    assert await task
    assert cancellation.reason is None


async def test_cancelling_ends_the_run_and_not_its_task() -> None:
    cancellation, work = RunCancellation(), Work()

    async def run() -> str:
        ended = await cancellation.drive(work.do(), LONG_S)
        await asyncio.sleep(0)  # the task goes on as if nothing had been cancelled
        return f"ended by itself: {ended}"

    task = asyncio.create_task(run())
    await until(lambda: work.has_started)
    cancellation.cancel(STOPPED_BY_ANN)

    assert await task == "ended by itself: False"
    assert task.cancelling() == 0
    assert (cancellation.reason, work.cancels) == (STOPPED_BY_ANN, 1)


async def test_the_first_reason_counts() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.cancel(InterruptReason.GIVE_BACK)
    cancellation.cancel(STOPPED_BY_ANN)

    assert not await task
    assert cancellation.reason is InterruptReason.GIVE_BACK


async def test_a_run_that_has_ended_is_not_cancelled() -> None:
    cancellation, work = RunCancellation(), Work()
    work.gate.set()
    assert await cancellation.drive(work.do(), LONG_S)

    cancellation.cancel(STOPPED_BY_ANN)

    assert cancellation.reason is None


async def test_a_run_that_is_cancelled_already_does_not_start() -> None:
    cancellation, work = RunCancellation(), Work()
    cancellation.cancel(STOPPED_BY_ANN)

    assert not await cancellation.drive(work.do(), LONG_S)
    assert not work.has_started


async def test_a_run_that_takes_too_long_is_cancelled() -> None:
    cancellation, work = RunCancellation(), Work()

    assert not await cancellation.drive(work.do(), 0.01)
    assert cancellation.reason is InterruptReason.OVERDUE


async def test_an_error_of_the_run_is_raised() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await RunCancellation().drive(fail(), LONG_S)


async def test_an_error_of_a_cancelled_run_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    cancellation, begun = RunCancellation(), asyncio.Event()

    async def fail() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise LookupError("in the clean-up")

    task = asyncio.create_task(cancellation.drive(fail(), LONG_S))
    await begun.wait()
    cancellation.cancel(STOPPED_BY_ANN)

    assert not await task
    assert [vars(record)["error"] for record in caplog.records] == ["LookupError: in the clean-up"]


async def test_a_run_that_ignores_its_cancellation_is_cancelled_again() -> None:
    cancellation, begun = RunCancellation(), asyncio.Event()

    async def deaf() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(cancellation.drive(deaf(), LONG_S))
    await begun.wait()
    cancellation.cancel(STOPPED_BY_ANN)

    assert not await task
    assert task.cancelling() == 0


async def test_a_cancellation_from_inside_is_an_error() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="from inside"):
        await RunCancellation().drive(cancelled(), LONG_S)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_cancellation_of_the_whole_task_is_passed_on(cancelled: bool) -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    if cancelled:
        cancellation.cancel(STOPPED_BY_ANN)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_delayed_stop_cancels_when_it_is_due() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(StopCommand("gone", in_s=0.01))

    assert not await task
    assert cancellation.reason == StopCommand("gone", in_s=0.01)


async def test_a_revoked_stop_does_not_cancel() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(StopCommand("gone", in_s=LONG_S))
    cancellation.apply(None)
    work.gate.set()

    assert await task


async def test_an_immediate_stop_cancels_at_once() -> None:
    cancellation, work = RunCancellation(), Work()
    task = await begin(cancellation, work)
    cancellation.apply(STOPPED_BY_ANN)

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
    await until(lambda: work.has_started)
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


ANN = "user:ann"
DETACH, CANCEL, GRACE = DisconnectPolicy(), DisconnectPolicy("cancel"), DisconnectPolicy("grace", 5.0)


@pytest.mark.parametrize("policy", [DETACH, CANCEL, GRACE])
def test_a_stop_applies_under_every_disconnect_policy(policy: DisconnectPolicy) -> None:
    assert after_command(STOP, ANN, policy) == StopCommand("stopped by user:ann")


def test_a_disconnect_alone_stops_nothing() -> None:
    assert after_command(DISCONNECTED, ANN, DETACH) is None


def test_a_disconnect_under_cancel_stops_at_once() -> None:
    stop_request = after_command(DISCONNECTED, ANN, CANCEL)

    assert stop_request is not None
    assert stop_request.in_s == 0


def test_a_disconnect_under_grace_stops_after_the_grace_period() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert stop_request is not None
    assert stop_request.in_s == 5.0


def test_a_client_that_reconnects_ends_the_grace_period() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert after_command(CONNECTED, ANN, GRACE, stop_request) is None


@pytest.mark.parametrize("command", [CONNECTED, DISCONNECTED, STOP])
def test_a_stop_cannot_be_revoked(command: str) -> None:
    stop_request = StopCommand("stopped by user:bob")

    assert after_command(command, ANN, GRACE, stop_request) is stop_request


def test_only_a_stop_replaces_a_stop_after_the_turn() -> None:
    stop_request = after_command(STOP_AFTER_TURN, ANN, GRACE)

    assert stop_request == StopCommand("stopped by user:ann after its turn", after_turn=True)
    assert after_command(STOP, ANN, GRACE, stop_request) == StopCommand("stopped by user:ann")
    for command in (CONNECTED, DISCONNECTED, STOP_AFTER_TURN):
        assert after_command(command, "user:bob", GRACE, stop_request) is stop_request


def test_a_stop_after_the_turn_replaces_a_grace_period() -> None:
    stop_request = after_command(STOP_AFTER_TURN, ANN, GRACE, after_command(DISCONNECTED, ANN, GRACE))

    assert stop_request is not None
    assert stop_request.after_turn


def test_an_unknown_command_changes_nothing() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert after_command("dance", ANN, GRACE, stop_request) == stop_request
    assert after_command("dance", ANN, GRACE) is None


@pytest.mark.parametrize(
    ("metadata", "policy"),
    [
        ({}, DisconnectPolicy()),
        ({"on_disconnect": "detach"}, DisconnectPolicy()),
        ({"on_disconnect": "cancel"}, DisconnectPolicy("cancel")),
        ({"on_disconnect": "grace"}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "grace", "grace_s": 2}, DisconnectPolicy("grace", 2.0)),
        ({"on_disconnect": "grace", "grace_s": -1}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "grace", "grace_s": "long"}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "explode"}, DisconnectPolicy()),
        ({"on_disconnect": ["cancel"]}, DisconnectPolicy()),
    ],
)
def test_the_envelope_chooses_the_policy(metadata: dict[str, Any], policy: DisconnectPolicy) -> None:
    assert policy_of(metadata) == policy
