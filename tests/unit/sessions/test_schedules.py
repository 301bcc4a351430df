"""Schedules on the log: retention, erasure of a user, export and import, what metrics count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Lanes, Operation, SetHead, Topics
from magent2.bus.records import NewRecord
from magent2.bus.retention import SCHEDULES_AFTER_S, RetentionPolicy
from magent2.bus.sqlite import SqliteBus
from magent2.bus.transfer import export_log, import_log
from magent2.directory.erasure import erase_user
from magent2.errors import LimitError
from magent2.models.address import SCHEDULER
from magent2.sessions.schedules.store import SLOTS_KEPT, check_schedule_count, count_schedules, pause_schedule
from magent2.sessions.schedules.timing import Timing
from magent2.sessions.store import delete_session
from magent2.sessions.sweep import sweep_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.manual_clock import ManualClock
from tests.support.schedules import ID, OWNER, SESSION, found, look_until_idle, messages, new_schedule, outcomes

HOURLY = Timing(cron="0 * * * *")
DAY_S = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[Engine]:
    engine = MemoryBus(clock=clock)
    yield engine
    engine.close()


async def test_a_schedule_goes_some_time_after_its_end_and_not_before(bus: Engine, clock: ManualClock) -> None:
    new_schedule(bus, Timing(in_s=60))
    new_schedule(bus, HOURLY, "going on", session_id="two")
    clock.pass_s(100)
    await look_until_idle(bus)
    assert found(bus).status == "ended"

    clock.pass_s(SCHEDULES_AFTER_S - DAY_S)
    assert run_sync(bus, sweep_log, RetentionPolicy(), clock.wall).schedules == 0
    clock.pass_s(2 * DAY_S)
    assert run_sync(bus, sweep_log, RetentionPolicy(), clock.wall, dry_run=True).schedules == 1
    assert run_sync(bus, sweep_log, RetentionPolicy(), clock.wall).schedules == 1

    assert [info.topic for info in bus.call(Topics("schedule:")).topics] == ["schedule:going on"]


async def test_the_slots_of_a_schedule_are_kept_up_to_a_number(bus: Engine, clock: ManualClock) -> None:
    new_schedule(bus, Timing(cron="* * * * *"))
    for _ in range(SLOTS_KEPT + 20):
        clock.pass_s(60)
        await look_until_idle(bus)
    assert len(outcomes(bus)) > SLOTS_KEPT

    run_sync(bus, sweep_log, RetentionPolicy(), clock.wall)

    assert len(outcomes(bus)) == SLOTS_KEPT
    clock.pass_s(60)
    await look_until_idle(bus)
    assert messages(bus)[-1]["content"] == "hello"


async def test_a_session_with_an_active_schedule_is_not_idle(bus: Engine, clock: ManualClock) -> None:
    new_schedule(bus, Timing(cron="0 0 1 1 *"))
    new_schedule(bus, Timing(in_s=1), "s2", session_id="two")
    clock.pass_s(2)
    await look_until_idle(bus)
    bus.call(Lanes(SCHEDULER))
    run_sync(bus, delete_session, "two")
    policy = RetentionPolicy(idle_conversations_s=DAY_S)

    clock.pass_s(30 * DAY_S)
    run_sync(bus, sweep_log, policy, clock.wall)
    assert [info.topic for info in bus.call(Topics("stream:")).topics] == [f"stream:{SESSION}"]

    run_sync(bus, pause_schedule, ID)
    run_sync(bus, sweep_log, policy, clock.wall)
    assert [info.topic for info in bus.call(Topics("stream:")).topics] == [f"stream:{SESSION}"]


async def test_erasing_a_user_removes_their_schedules(bus: Engine) -> None:
    new_schedule(bus, HOURLY)
    new_schedule(bus, HOURLY, "other", session_id="two", owner="user:bob")

    erased = run_sync(bus, erase_user, OWNER)

    assert erased.schedules == (ID,)
    assert [info.topic for info in bus.call(Topics("schedule:")).topics] == ["schedule:other"]
    assert [lane.conversation for lane in bus.call(Lanes(SCHEDULER))] in ([], ["schedule:other"])


async def test_an_exported_schedule_goes_on_in_the_log_that_imports_it(
    bus: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    new_schedule(bus, HOURLY, missed="all")
    clock.pass_s(3700)
    await look_until_idle(bus)
    clock.pass_s(600)
    await look_until_idle(bus)
    export_log(bus, tmp_path / "log")
    other = SqliteBus(tmp_path / "other.db", clock=clock)

    import_log(other, tmp_path / "log")
    clock.pass_s(3600)
    await look_until_idle(other)

    sent = [message["id"] for message in messages(other)]
    assert len(sent) == len(set(sent)) == 2
    assert [message["id"] for message in messages(bus)] == sent[:1]
    other.close()


async def test_late_schedules_are_counted(bus: Engine, clock: ManualClock) -> None:
    new_schedule(bus, HOURLY)
    new_schedule(bus, HOURLY, "s2", session_id="two")
    await look_until_idle(bus)
    run_sync(bus, pause_schedule, "s2")

    clock.pass_s(3600)
    counts = run_sync(bus, count_schedules, clock.wall)
    assert (counts.active, counts.paused, counts.due) == (1, 1, 1)
    clock.pass_s(3600)
    assert run_sync(bus, count_schedules, clock.wall).late == 1


class CountsPages(EngineWrapper):
    """Counts the pages of topics that are read."""

    pages = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        self.pages += isinstance(operation, Topics)
        return await self.inner.acall(operation)


async def test_thousands_that_have_ended_do_not_make_a_creation_slower(bus: Engine) -> None:
    for first in range(0, 3000, 1000):
        topics = [f"schedule:old-{number}" for number in range(first, first + 1000)]
        heads = tuple(SetHead(topic, {"owner": OWNER, "status": "ended", "version": 1}) for topic in topics)
        bus.call(Append(records=tuple(NewRecord(topic, {}) for topic in topics), heads=heads))
    new_schedule(bus, HOURLY)
    counted = CountsPages(bus)

    await check_schedule_count(Log(counted), OWNER, 20)
    assert counted.pages == 2
    with pytest.raises(LimitError, match="the limit is 1"):
        await check_schedule_count(Log(bus), OWNER, 1)
