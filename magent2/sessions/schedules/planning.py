"""What to do with a schedule now: wait, fire one slot, or end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magent2.sessions.schedules.store import LATE_AFTER_S, Schedule
from magent2.sessions.schedules.timing import due_slots

# The delay of a lane is measured by the log clock, which does not jump (decision 28), but slots are times of the wall
# clock. So a lane does not sleep longer than this: after the wall clock was set, slots are late by no more.
LOOK_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Slots that do not fire: those from `first_ms` to before `before_ms`. `more`: there are more than `count`."""

    first_ms: int
    before_ms: int
    count: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be fired now. Look again after the delay."""

    next_ms: int
    delay_s: float
    skipped: Skipped | None = None


@dataclass(frozen=True, slots=True)
class Fire:
    """Send the message of this slot. `next_ms` is the slot after it; `None` if it is the last one."""

    slot_ms: int
    next_ms: int | None
    late_s: float
    skipped: Skipped | None = None


@dataclass(frozen=True, slots=True)
class End:
    """There is no further slot."""

    reason: str
    skipped: Skipped | None = None


Step: TypeAlias = Wait | Fire | End


def next_step(schedule: Schedule, now_ms: int, clock_ms: int) -> Step:
    """Return what to do with an active schedule.

    `now_ms` is the wall clock of the store, `clock_ms` the log clock, by which durations are measured.
    """
    first_ms = schedule.next_ms
    if first_ms is None:
        return End("it has no slot left")
    if schedule.timing.in_s is not None and schedule.due_clock_ms is not None:
        now_ms = first_ms + clock_ms - schedule.due_clock_ms
    if now_ms < first_ms:
        return Wait(first_ms, wait_s(first_ms, now_ms))
    due = due_slots(schedule.timing, first_ms, now_ms, schedule.created_ms)
    newest = due.newest[-1]
    fires = _slots_to_fire(schedule, due.newest, now_ms)
    left_out = due.count - len(fires)
    before_ms = fires[0] if fires else newest + 1
    skipped = Skipped(first_ms, before_ms, left_out, due.more) if left_out or due.more else None
    following = fires[1] if len(fires) > 1 else schedule.timing.next_slot(newest, schedule.created_ms)
    if not fires:
        if following is None:
            return End("its last slot was missed", skipped)
        return Wait(following, wait_s(following, now_ms), skipped)
    is_last = schedule.max_runs is not None and schedule.runs + 1 >= schedule.max_runs
    return Fire(fires[0], None if is_last else following, (now_ms - fires[0]) / 1000, skipped)


def _slots_to_fire(schedule: Schedule, due: Sequence[int], now_ms: int) -> Sequence[int]:
    """Return the due slots that fire, by the policy for missed ones."""
    if schedule.missed == "all":
        return due
    is_missed = now_ms - due[-1] > LATE_AFTER_S * 1000
    return () if schedule.missed == "skip" and is_missed else due[-1:]


def wait_s(next_ms: int, now_ms: int) -> float:
    """Return how long the lane of a schedule sleeps until its next slot, or until it is looked at again."""
    return min(max(next_ms - now_ms, 0) / 1000, LOOK_EVERY_S)
