"""A run that a newer release started waits for a worker of that release. Other runs continue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Lanes
from magent2.errors import TransientError
from magent2.runner.echo import EchoRunner
from magent2.telemetry.logs import fields_of
from magent2.worker.lane_run import LaneRun, Outcome, is_newer
from magent2.worker.retry import CRASHES_MAX
from magent2.worker.runner_adapter import Runner
from magent2.worker.settlement import LEFT_S
from tests.support.manual_clock import ManualClock
from tests.support.runners import FailingRunner
from tests.support.worker_fixture import (
    AGENT,
    claim_one,
    command,
    dead_letters,
    history,
    kinds,
    outputs,
    run_worker,
    send,
    stream,
    until,
)

OLD, NEW = "1.9.4", "1.10.0"
SOON_S = 10.0  # after the delay of a first retry, within a lease


@pytest.mark.parametrize(
    ("found", "own", "newer"),
    [
        ("1.10.0", "1.9.4", True),
        ("1.9.4", "1.10.0", False),
        ("1.9.4", "1.9.4", False),
        ("1.9", "1.9.0", False),
        ("2", "1.99", True),
        ("1.9.0", "1.9.0rc1", True),
        ("1.9.0rc1", "1.9.0", False),
        ("1.9.1.dev3", "1.9.0", True),
        ("", "1.9.4", False),  # begun before releases were told
        ("next", "1.9.4", True),  # whatever that is, it is not ours
    ],
)
def test_which_release_is_newer(found: str, own: str, newer: bool) -> None:
    assert is_newer(found, own) is newer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[MemoryBus]:
    bus = MemoryBus(clock=clock)
    yield bus
    bus.close()


async def work(bus: Engine, release: str, runner: Runner | None = None) -> Outcome:
    return await LaneRun(bus, claim_one(bus), runner or EchoRunner(), release=release).work()


async def begin(bus: Engine, clock: ManualClock, conversation: str = "one", **fields: Any) -> None:
    """Start a run with a worker of the newer release, and let it fail so that it is retried."""
    send(bus, "hello", conversation, **fields)
    assert await work(bus, NEW, FailingRunner(TransientError("later"))) is Outcome.RETRIED
    clock.pass_s(SOON_S)


async def test_a_run_of_a_newer_release_waits_for_its_workers(bus: MemoryBus, clock: ManualClock) -> None:
    await begin(bus, clock)
    before = history(bus), stream(bus)

    assert await work(bus, OLD) is Outcome.LEFT

    assert (history(bus), stream(bus)) == before
    clock.pass_s(LEFT_S)
    assert await work(bus, NEW) is Outcome.ANSWERED
    assert outputs(bus) == ["hello"]


async def test_a_run_that_is_left_to_a_newer_release_costs_no_attempt(bus: MemoryBus, clock: ManualClock) -> None:
    await begin(bus, clock)

    for _ in range(2 * CRASHES_MAX):
        assert await work(bus, OLD) is Outcome.LEFT
        clock.pass_s(LEFT_S)

    assert bus.call(Lanes(AGENT))[0].attempt == 1
    assert await work(bus, NEW) is Outcome.ANSWERED
    assert dead_letters(bus) == []
    assert [event["attempt"] for event in stream(bus) if event.get("status") == "restarted"] == [2]


async def test_a_run_that_has_not_started_may_run_on_every_release(bus: MemoryBus) -> None:
    send(bus, "hello")

    assert await work(bus, OLD) is Outcome.ANSWERED


async def test_a_run_of_an_older_release_is_taken_over(bus: MemoryBus, clock: ManualClock) -> None:
    send(bus, "hello")
    assert await work(bus, OLD, FailingRunner(TransientError("later"))) is Outcome.RETRIED
    clock.pass_s(SOON_S)

    assert await work(bus, NEW) is Outcome.ANSWERED


@pytest.mark.parametrize("how", ["stop", "stop_after_turn"])
async def test_a_stop_is_applied_to_a_run_of_a_newer_release(bus: MemoryBus, clock: ManualClock, how: str) -> None:
    await begin(bus, clock)
    command(bus, how)

    assert await work(bus, OLD) is Outcome.STOPPED

    assert kinds(stream(bus))[-1] == "stopped"
    assert bus.call(Lanes(AGENT)) == ()


async def test_a_command_that_is_no_stop_does_not_keep_the_lane_due(bus: MemoryBus, clock: ManualClock) -> None:
    await begin(bus, clock)
    command(bus, "connected")

    assert await work(bus, OLD) is Outcome.LEFT

    (lane,) = bus.call(Lanes(AGENT))
    assert (lane.state, lane.pending) == ("later", 1)


async def test_other_conversations_are_answered_meanwhile_and_the_wait_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "magent2.worker.lane_run")
    bus = MemoryBus()
    send(bus, "hello", "newer")
    lane = claim_one(bus)
    await LaneRun(bus, lane, FailingRunner(TransientError("later")), release=NEW).work()
    caplog.clear()

    async with run_worker(bus, EchoRunner(), release=OLD) as service:
        await until(lambda: service.outcomes[Outcome.LEFT] == 1)
        send(bus, "and me", "other")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    (line,) = [line for line in caplog.records if line.message == "a run of a newer release is left to its workers"]
    assert {"release": NEW, "own_release": OLD, "agent": AGENT}.items() <= fields_of(line).items()
    assert outputs(bus, "other") == ["and me"]
    bus.close()
