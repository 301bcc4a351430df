"""A week of schedules: every slot by its policy, once; and broken schedulers are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.operations import Append, Later, Operation, Settle
from magent2.sessions.schedules import planning
from magent2.sessions.schedules.planning import Fire, Step
from magent2.sessions.schedules.store import DEFINITION_ID, Schedule
from magent2.worker import scheduler
from tests.simulation.schedule_world import simulate_week
from tests.support.audit import assert_clean
from tests.support.engine_wrappers import WithoutFence

SEEDS_SOAK = 30
BROKEN_SEEDS, BROKEN_DAYS = range(12), 2
HAPPENED = ("crash", "freeze", "lost", "fenced", "a schedule was taken over", "skipped", "fired all", "fired skip")


def run_week(seed: int) -> Counter[str]:
    week = simulate_week(seed)
    assert_clean(week.findings, f"in the week of seed {seed}")
    return week.counts


def test_a_week_with_three_workers_kills_and_a_clock_that_jumps() -> None:
    counts = run_week(0)

    assert not [what for what in HAPPENED if not counts[what]], counts


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, SEEDS_SOAK))
def test_many_weeks(seed: int) -> None:
    run_week(seed)


def first_red(seeds: range = BROKEN_SEEDS, **options: Any) -> int | None:
    return next((seed for seed in seeds if simulate_week(seed, BROKEN_DAYS, **options).findings), None)


class WithoutFenceOrIds(WithoutFence):
    """Accepts writes of workers that have lost their lane, and every message as a new one."""

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Later | Settle):
            nameless = (replace(one, id=None) if one.id != DEFINITION_ID else one for one in operation.records)
            operation = replace(operation, records=tuple(nameless), conditions=())
        return super().answer(operation)


def test_the_oracle_finds_a_log_that_neither_fences_nor_recognises_ids() -> None:
    assert first_red(range(2, 14), wrap=WithoutFenceOrIds) is not None


def test_the_oracle_finds_a_scheduler_that_releases_the_lane_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_two_steps(self: Any, delay_s: float | None, write: Any) -> None:
        bare = replace(write, records=(), conditions=())
        await self._run(Later(owner=self._lane.owner, delay_s=delay_s, refund=True, heads=bare.heads))
        if write.records:
            await self._bus.acall(Append(records=write.records))

    monkeypatch.setattr(scheduler._Look, "_give_back", in_two_steps)

    assert first_red() is not None


def test_the_oracle_finds_a_scheduler_that_forgets_missed_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(schedule: Schedule, now_ms: int, clock_ms: int) -> Step:
        step = planning.next_step(schedule, now_ms, clock_ms)
        if isinstance(step, Fire) and step.next_ms is not None:
            return replace(step, next_ms=schedule.timing.next_slot(now_ms, schedule.created_ms))
        return step

    monkeypatch.setattr(scheduler, "next_step", forgetful)

    assert first_red() is not None
