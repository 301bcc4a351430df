"""Processes that fire schedules, killed and frozen around the append of a slot: every slot is one message."""

from __future__ import annotations

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Lanes
from magent2.models.address import SCHEDULER
from magent2.sessions.schedules.store import slot_message_id
from tests.support.processes import Child, ProcessGroup, freeze_between_commits
from tests.support.schedules import (
    HOUR_MS,
    ID,
    found,
    hourly,
    look_until_idle,
    messages,
    new_schedule,
    outcomes,
    set_back_to,
)
from tests.support.waiting import eventually

CHILD = "tests.integration.children.scheduling"
LEASE_S = 1.0
MISSED = 5


def start(group: ProcessGroup, url: str, worker: str, waits_at: int | None = None, after: bool = False) -> Child:
    child = group.spawn(CHILD, url=url, worker=worker, lease_s=LEASE_S, waits_at=waits_at, after=after)
    assert child.next_report() == {"ready": True}
    return child


async def missed_slots(engine: Engine) -> list[int]:
    """Create an hourly schedule that has missed some slots, and return them."""
    timing, last = hourly()
    new_schedule(engine, timing, missed="all")
    await look_until_idle(engine, "setup")
    slots = [last - n * HOUR_MS for n in reversed(range(MISSED))]
    set_back_to(engine, slots[0])
    return slots


def check(engine: Engine, slots: list[int]) -> None:
    """Each slot is one message, in order, and the schedule waits for the next one."""
    assert [message["id"] for message in messages(engine)] == [slot_message_id(ID, slot) for slot in slots]
    assert (outcomes(engine), found(engine).runs) == (["fired"] * len(slots), len(slots))
    assert (found(engine).next_ms or 0) > slots[-1]
    assert [lane.pending for lane in engine.call(Lanes(SCHEDULER))] == [1]


@pytest.mark.parametrize(("step", "after"), [(1, False), (3, False), (3, True)])
async def test_a_slot_whose_worker_is_killed_is_fired_once(
    log_url: str, engine: Engine, process_group: ProcessGroup, step: int, after: bool
) -> None:
    slots = await missed_slots(engine)
    first = start(process_group, log_url, "first", step, after)
    assert first.next_report() == {"at": step}
    sent = len(messages(engine))

    first.kill()
    start(process_group, log_url, "second")
    eventually(lambda: len(messages(engine)) == len(slots) and found(engine).runs == len(slots))

    assert sent == step - (not after)
    check(engine, slots)


async def test_a_frozen_worker_is_fenced_when_it_goes_on(
    log_url: str, engine: Engine, process_group: ProcessGroup
) -> None:
    slots = await missed_slots(engine)
    frozen = start(process_group, log_url, "frozen", 2)
    assert frozen.next_report() == {"at": 2}

    freeze_between_commits(frozen, engine)
    start(process_group, log_url, "second")
    eventually(lambda: found(engine).runs == len(slots))
    frozen.resume()
    frozen.write_line("go on")

    assert frozen.next_report() == {"fenced": True}
    check(engine, slots)
