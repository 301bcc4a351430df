"""Regenerated and edited messages in a crowd, with workers that crash; and broken rules are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from magent2.bus.log import Log
from magent2.mail.conversation_state import ConversationState
from magent2.sessions import busy, superseding
from magent2.sessions.history import History, RunRecord
from tests.simulation.replacement_world import simulate_replacing
from tests.support.audit import assert_clean

SEEDS, SEEDS_SOAK = range(12), range(12, 400)
BROKEN_SEEDS = range(40)
HAPPENED = ("crash", "freeze", "lost", "edited", "regenerated", "ConversationBusy")


def run_world(seed: int) -> Counter[str]:
    world = simulate_replacing(seed)
    assert_clean(world.findings, f"in the world of seed {seed}")
    return world.counts


def test_answers_are_replaced_once_while_workers_crash() -> None:
    counts: Counter[str] = sum((run_world(seed) for seed in SEEDS), Counter())

    assert not [what for what in HAPPENED if not counts[what]], counts


def test_the_same_seed_gives_the_same_world() -> None:
    worlds = [simulate_replacing(seed).counts for _ in range(2) for seed in range(4)]

    assert worlds[:4] == worlds[4:]


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS_SOAK)
def test_many_worlds(seed: int) -> None:
    run_world(seed)


def first_red() -> int | None:
    return next((seed for seed in BROKEN_SEEDS if simulate_replacing(seed).findings), None)


def test_the_oracle_finds_replacements_in_a_busy_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_busy(log: Log, conversation: str, state: ConversationState) -> tuple[bool, tuple[Any, ...]]:
        return False, ()

    monkeypatch.setattr(superseding, "read_busy", never_busy)

    assert first_red() is not None


def test_the_oracle_finds_replacements_whose_append_has_no_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    right = busy.read_busy

    async def unconditional(log: Log, conversation: str, state: ConversationState) -> tuple[bool, tuple[Any, ...]]:
        is_busy, _ = await right(log, conversation, state)
        return is_busy, ()

    monkeypatch.setattr(superseding, "read_busy", unconditional)

    assert first_red() is not None


def test_the_oracle_finds_a_run_that_is_replaced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = superseding.supersedable_run

    def first_run(history: History, message_id: str | None = None) -> RunRecord:
        ended = [run for run in history.runs.values() if run.end is not None]
        return ended[0] if ended else right(history, message_id)

    monkeypatch.setattr(superseding, "supersedable_run", first_run)

    assert first_red() is not None
