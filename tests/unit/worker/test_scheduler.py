"""The scheduler of a worker: every slot of a schedule is one message, whatever happens to workers and clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Delete, Lanes, Later, Leave, Operation
from magent2.directory.agents import remove_agent
from magent2.errors import Fenced, IdConflict, LimitError, NameTaken, ScheduleEnded
from magent2.mail import lane_loop
from magent2.models.address import SCHEDULER
from magent2.sessions.schedules.planning import LOOK_EVERY_S
from magent2.sessions.schedules.store import (
    create_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    schedule_text,
    slot_message_id,
)
from magent2.sessions.schedules.timing import MISSED_MAX, Timing
from magent2.sessions.store import delete_session
from magent2.worker.scheduler import Scheduler, keep_firing
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import ENGINES, new_engines
from tests.support.manual_clock import ManualClock
from tests.support.schedules import (
    HOUR_MS,
    ID,
    OWNER,
    SESSION,
    found,
    hourly,
    look_until_idle,
    messages,
    new_schedule,
    outcomes,
    set_back_to,
    slots_sent,
)
from tests.support.waiting import until
from tests.support.worker_fixture import AGENT, LEASE_S, send

HOURLY = Timing(cron="0 * * * *")
HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Iterator[Engine]:
    """A log whose clock the test sets."""
    engine = MemoryBus(clock=clock)
    yield engine
    engine.close()


# --- on every engine


async def test_an_instant_fires_once_and_the_schedule_ends(bus: Engine) -> None:
    at_ms = round(time.time() * 1000) + 500
    new_schedule(bus, Timing(at_ms=at_ms))

    firing = [asyncio.create_task(keep_firing(bus, name, LEASE_S)) for name in ("w1", "w2")]
    await until(lambda: found(bus).status == "ended")
    for task in firing:
        task.cancel()
    await asyncio.gather(*firing, return_exceptions=True)

    (message,) = messages(bus)
    assert message["id"] == slot_message_id(ID, at_ms)
    assert (message["content"], message["sender"], outcomes(bus)) == ("hello", OWNER, ["fired"])
    assert bus.call(Lanes(SCHEDULER)) == ()


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_missed_slots_fire_by_policy(bus: Engine, missed: str, sent: int) -> None:
    timing, last = hourly()
    new_schedule(bus, timing, missed=missed)
    await look_until_idle(bus)

    set_back_to(bus, last - 4 * HOUR_MS)
    await look_until_idle(bus)

    assert len(messages(bus)) == sent
    assert (found(bus).skipped, found(bus).status) == (5 - sent, "active")
    assert found(bus).next_ms == last + HOUR_MS


async def test_a_worker_that_lost_the_lane_fires_nothing(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    set_back_to(bus, last)
    (lane,) = bus.call(Claim(worker="frozen", agents=(SCHEDULER,), limit=1, lease_s=LEASE_S)).lanes
    bus.call(Leave("frozen"))

    assert await look_until_idle(bus, "other") >= 1
    with pytest.raises(Fenced):
        await Scheduler(bus, worker="frozen", lease_s=LEASE_S).work_on(lane)

    assert len(messages(bus)) == 1


async def test_a_paused_schedule_fires_nothing_and_goes_on_with_its_next_slot(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)

    run_sync(bus, pause_schedule, ID)
    set_back_to(bus, last)
    await look_until_idle(bus)
    assert (messages(bus), found(bus).status) == ([], "paused")
    assert [lane.state for lane in bus.call(Lanes(SCHEDULER))] == ["parked"]

    run_sync(bus, resume_schedule, ID)
    await look_until_idle(bus)
    assert (messages(bus), found(bus).status) == ([], "active")
    assert found(bus).next_ms == last + HOUR_MS


class PausesBeforeMessage(EngineWrapper):
    """Pauses the schedule between the look of a worker and its append."""

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Later) and operation.records:
            run_sync(self.inner, pause_schedule, ID)
        return await self.inner.acall(operation)


async def test_no_slot_fires_after_a_pause_that_was_accepted(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    set_back_to(bus, last)

    await look_until_idle(PausesBeforeMessage(bus))

    assert (messages(bus), outcomes(bus), found(bus).status) == ([], [], "paused")


class FailsToSend(EngineWrapper):
    """Raises an error that no engine raises on purpose whenever a message of a slot would be written."""

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Later) and operation.records:
            raise RuntimeError("a bug")
        return await self.inner.acall(operation)


async def test_a_lane_that_keeps_failing_says_so_and_keeps_its_mail(
    bus: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_loop, "LANE_FAILURES_MAX", 2)
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    set_back_to(bus, last)

    broken = asyncio.create_task(keep_firing(FailsToSend(bus), "broken", LEASE_S))
    await until(lambda: found(bus).last_error)
    broken.cancel()
    await asyncio.gather(broken, return_exceptions=True)
    assert "a bug" in str(found(bus).last_error)
    assert messages(bus) == []

    await until_idle_again(bus)
    assert (len(messages(bus)), found(bus).last_error, outcomes(bus)) == (1, None, ["fired"])


async def until_idle_again(bus: Engine) -> None:
    """Look until the lane, which a failure may have delayed, was looked at."""
    firing = asyncio.create_task(keep_firing(bus, "right", LEASE_S))
    await until(lambda: messages(bus) and found(bus).runs)
    firing.cancel()
    await asyncio.gather(firing, return_exceptions=True)


async def test_a_deleted_schedule_leaves_no_lane_and_fires_nothing(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    set_back_to(bus, last)

    run_sync(bus, delete_schedule, ID)

    assert await look_until_idle(bus) == 0
    assert (messages(bus), bus.call(Lanes(SCHEDULER))) == ([], ())


async def test_deleting_the_session_ends_its_schedules_and_removes_their_text(bus: Engine) -> None:
    timing, _ = hourly()
    new_schedule(bus, timing, text="a secret")
    await look_until_idle(bus)

    run_sync(bus, delete_session, SESSION)
    await look_until_idle(bus)

    ended = found(bus)
    assert (ended.status, ended.title, ended.last_error) == ("ended", "", "its session was deleted")
    assert "a secret" not in str([record.payload for record in whole_log(bus, ended.topic)])
    assert bus.call(Lanes(SCHEDULER)) == ()


async def test_a_session_that_was_deleted_behind_its_schedule_ends_it_at_the_next_slot(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    bus.call(Delete((f"stream:{SESSION}", f"chat:{SESSION}"), conversation=SESSION))
    assert run_sync(bus, schedule_text, ID) is None

    set_back_to(bus, last)
    await look_until_idle(bus)

    ended = found(bus)
    assert (ended.status, ended.failures, outcomes(bus)) == ("ended", 1, ["failed"])
    assert ended.last_error is not None
    assert "was deleted" in ended.last_error


async def test_a_busy_session_is_recorded_as_a_failure_and_the_schedule_goes_on(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing, when_busy="reject")
    await look_until_idle(bus)
    send(bus, "first", SESSION)

    set_back_to(bus, last)
    await look_until_idle(bus)

    schedule = found(bus)
    assert (schedule.status, schedule.failures, outcomes(bus)) == ("active", 1, ["failed"])
    assert schedule.last_error is not None
    assert "is busy" in schedule.last_error
    assert len(messages(bus)) == 1


async def test_a_full_queue_refuses_the_message_of_a_slot(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing)
    await look_until_idle(bus)
    send(bus, "first", SESSION)
    set_back_to(bus, last)

    scheduler = asyncio.create_task(keep_firing(bus, "w1", LEASE_S, queue_max_messages=1))
    await until(lambda: found(bus).runs)
    set_back_to(bus, last - HOUR_MS)
    await until(lambda: found(bus).failures)
    scheduler.cancel()
    await asyncio.gather(scheduler, return_exceptions=True)

    assert "the limit is 1" in str(found(bus).last_error)


async def test_a_removed_agent_refuses_the_message_of_a_slot(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing, agent="Bo")
    await look_until_idle(bus)
    run_sync(bus, remove_agent, "Bo")
    set_back_to(bus, last)

    await look_until_idle(bus)

    assert (messages(bus), found(bus).status, outcomes(bus)) == ([], "active", ["failed"])
    assert "'Bo' was removed" in str(found(bus).last_error)


async def test_a_session_is_told_of_the_first_of_several_refused_slots(bus: Engine) -> None:
    timing, last = hourly()
    new_schedule(bus, timing, agent="Bo")
    await look_until_idle(bus)
    run_sync(bus, remove_agent, "Bo")

    for hours in (3, 2):
        set_back_to(bus, last - hours * HOUR_MS)
        await look_until_idle(bus)

    assert found(bus).failures == 2
    (told,) = [record.payload for record in whole_log(bus, f"stream:{SESSION}") if record.payload["event"] == "error"]
    assert (told["code"], told["agent"]) == ("schedule_refused", "Bo")
    assert told["message"] == f"schedule {ID!r} did not send its message: the agent 'Bo' was removed"


async def test_creating_twice_is_once_and_another_body_is_refused(bus: Engine) -> None:
    timing, _ = hourly()
    schedule = new_schedule(bus, timing)

    assert run_sync(bus, create_schedule, schedule, "hello")[1]
    with pytest.raises(IdConflict):
        run_sync(bus, create_schedule, schedule, "other")
    with pytest.raises(NameTaken, match="is taken"):
        run_sync(bus, create_schedule, replace(schedule, owner="user:bob"), "hello")
    with pytest.raises(LimitError, match="has 1 schedules, the limit is 1"):
        run_sync(bus, create_schedule, replace(schedule, schedule_id="s2"), "hello", 1)


# --- clocks


async def test_every_hour_fires_once_over_a_day(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, HOURLY)
    await look_until_idle(log)

    for _ in range(24 * 6):
        clock.pass_s(LOOK_EVERY_S)
        await look_until_idle(log)

    sent = slots_sent(log)
    assert len(sent) == len(set(sent)) == 24
    assert (found(log).skipped, found(log).runs) == (0, 24)


@pytest.mark.parametrize("seconds", [DAY_S, -DAY_S])
async def test_a_clock_that_jumps_by_a_day_and_back_fires_no_slot_twice(
    log: Engine, clock: ManualClock, seconds: int
) -> None:
    new_schedule(log, HOURLY, missed="all")
    await look_until_idle(log)

    for jump in (seconds, -seconds):
        clock.jump_s(jump)
        for _ in range(12):
            clock.pass_s(LOOK_EVERY_S)
            await look_until_idle(log)
    for _ in range(30 * 6):
        clock.pass_s(LOOK_EVERY_S)
        await look_until_idle(log)

    sent = slots_sent(log)
    assert sent == sorted(set(sent))
    assert len(messages(log)) == len(sent)
    assert len(sent) >= 30


async def test_a_duration_is_measured_by_the_clock_that_does_not_jump(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, Timing(in_s=2 * HOUR_S))
    await look_until_idle(log)

    clock.jump_s(DAY_S)
    for _ in range(6):
        clock.pass_s(LOOK_EVERY_S)
        await look_until_idle(log)
    assert messages(log) == []

    clock.jump_s(-2 * DAY_S)
    for _ in range(6):
        clock.pass_s(LOOK_EVERY_S)
        await look_until_idle(log)
    assert (len(messages(log)), found(log).status) == (1, "ended")


async def test_slots_during_a_pause_are_not_sent_later(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, HOURLY, missed="all")
    new_schedule(log, Timing(in_s=HOUR_S), "s2", session_id="two")
    await look_until_idle(log)
    for name in (ID, "s2"):
        run_sync(log, pause_schedule, name)

    clock.pass_s(5 * HOUR_S)
    await look_until_idle(log)
    for name in (ID, "s2"):
        run_sync(log, resume_schedule, name)
    await look_until_idle(log)

    assert (messages(log), messages(log, "two"), found(log).skipped) == ([], [], 0)
    assert (found(log).status, found(log, "s2").status) == ("active", "ended")
    clock.pass_s(HOUR_S)
    await look_until_idle(log)
    assert len(messages(log)) == 1


async def test_missed_slots_beyond_the_limit_are_reported(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, Timing(cron="* * * * *"), missed="all")
    await look_until_idle(log)

    clock.pass_s(200 * 60)
    await look_until_idle(log)

    assert (len(messages(log)), found(log).skipped) == (MISSED_MAX, 200 - MISSED_MAX)
    assert outcomes(log).count("skipped") == 1


async def test_a_schedule_ends_after_its_last_run_and_after_its_end(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, HOURLY, max_runs=2)
    until_ms = clock.wall + 2 * HOUR_S * 1000
    new_schedule(log, replace(HOURLY, until_ms=until_ms), "s2", session_id="two")

    for _ in range(5 * 6):
        clock.pass_s(LOOK_EVERY_S)
        await look_until_idle(log)

    assert (found(log).runs, found(log).status) == (2, "ended")
    assert (found(log, "s2").runs, found(log, "s2").status) == (2, "ended")
    with pytest.raises(ScheduleEnded):
        run_sync(log, resume_schedule, ID)


async def test_a_schedule_with_an_agent_writes_to_that_agent(log: Engine, clock: ManualClock) -> None:
    new_schedule(log, Timing(in_s=60), agent="Bob")
    clock.pass_s(61)

    await look_until_idle(log)

    (message,) = messages(log)
    assert message["recipient"] == "agent:Bob"
    assert AGENT not in message["recipient"]
