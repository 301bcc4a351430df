"""Schedules for tests: create one, let a worker look at those that are due, and read what was sent."""

from __future__ import annotations

import time
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append, Claim, Describe, SetHead
from magent2.bus.records import NewRecord
from magent2.models.address import SCHEDULER, schedule_runs_topic, schedule_topic
from magent2.sessions.schedules.store import Schedule, create_schedule, get_schedule
from magent2.sessions.schedules.timing import Timing
from magent2.sessions.store import create_session
from magent2.worker.scheduler import Scheduler
from tests.support.audit import whole_log
from tests.support.worker_fixture import AGENT, LEASE_S

OWNER, SESSION, ID = "user:ann", "one", "s1"
HOUR_MS = 3_600_000


def hourly() -> tuple[Timing, int]:
    """An hourly timing for a log with the clock of the system, and its last slot.

    The slots are half an hour away from now: one that came up during a test would be sent as well.
    """
    now_ms = round(time.time() * 1000)
    timing = Timing(cron=f"{(time.gmtime(now_ms / 1000).tm_min + 30) % 60} * * * *")
    last = timing.next_slot(now_ms - HOUR_MS, 0)
    assert last is not None
    return timing, last


def new_schedule(bus: Engine, timing: Timing, schedule_id: str = ID, text: str = "hello", **fields: Any) -> Schedule:
    """Create a session and a schedule that sends to it."""
    session_id = fields.pop("session_id", SESSION)
    run_sync(bus, create_session, session_id, OWNER, {"active_agent": AGENT})
    given = {"owner": OWNER, "sender": OWNER, "principal": OWNER, "title": text, **fields}
    schedule = Schedule(schedule_id=schedule_id, session_id=session_id, timing=timing, **given)
    return run_sync(bus, create_schedule, schedule, text)[0]


def found(bus: Engine, schedule_id: str = ID) -> Schedule:
    return run_sync(bus, get_schedule, schedule_id)


async def look(bus: Engine, worker: str = "w1", rounds: int = 1) -> int:
    """Claim the schedules that are due, as a worker does, and work on them. Return how many there were."""
    scheduler, looks = Scheduler(bus, worker=worker, lease_s=LEASE_S), 0
    for _ in range(rounds):
        claim = Claim(worker=worker, agents=(SCHEDULER,), limit=10, lease_s=LEASE_S)
        for lane in (await Log(bus).run(claim)).lanes:
            looks += 1
            await scheduler.work_on(lane)
    return looks


async def look_until_idle(bus: Engine, worker: str = "w1") -> int:
    """Look until no schedule is due any more."""
    looks = 0
    while more := await look(bus, worker):
        looks += more
        assert looks < 1000, "a schedule is due again and again"
    return looks


def messages(bus: Engine, session_id: str = SESSION) -> list[Any]:
    """The messages in a session, as envelopes."""
    return [record.payload for record in whole_log(bus, f"chat:{session_id}")]


def slots_sent(bus: Engine, session_id: str = SESSION) -> list[str]:
    return [message["metadata"]["schedule"]["slot"] for message in messages(bus, session_id)]


def outcomes(bus: Engine, schedule_id: str = ID) -> list[str]:
    """What became of the slots of a schedule, oldest first."""
    return [record.payload["outcome"] for record in whole_log(bus, schedule_runs_topic(schedule_id))]


def set_back_to(bus: Engine, next_ms: int, schedule_id: str = ID) -> None:
    """Make an earlier slot the next one, as after a time without workers."""
    topic = schedule_topic(schedule_id)
    (info,) = bus.call(Describe((topic,)))
    version = info.head["version"] + 1
    records = (
        NewRecord(topic, {"status": "active"}, f"change-{version}"),
        NewRecord(f"control:{SCHEDULER}", {"conversation_id": topic, "sender": "system"}, f"wake-test-{version}"),
    )
    bus.call(Append(records=records, heads=(SetHead(topic, {"next_ms": next_ms, "version": version}),)))
