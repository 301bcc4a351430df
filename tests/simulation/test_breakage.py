"""With one promise taken away, some world goes red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Delete, Operation
from magent2.bus.records import Owner, Record
from magent2.runner.context import RunContext
from magent2.worker import plan, retry
from magent2.worker.controls import Controls
from tests.simulation.world import Breakage, simulate
from tests.simulation.worlds import SEED, live_through
from tests.support.broken import AckBeforeAppend, Broken, SettlesOnClaim, WithoutCounter, WithoutDedupe, WithoutFence

SEEDS = 100  # so many worlds at most until a broken promise must have been noticed


class KeepsCopies(Broken):
    """A conversation is deleted where it is, and lives on in inboxes and lanes."""

    def answer(self, operation: Operation[Any]) -> Any:
        return self.inner.call(replace(operation, conversation=None) if isinstance(operation, Delete) else operation)


def forget(context: RunContext) -> RunContext:
    """A run that is taken over knows nothing of what was recorded."""
    return replace(context, run=replace(context.run, answers={}, tools={}))


def forget_results(context: RunContext) -> RunContext:
    return replace(context, run=replace(context.run, tools={}))


def first_red(breakage: Breakage) -> int | None:
    return next((seed for seed in range(SEEDS) if simulate(seed, breakage).findings), None)


@pytest.mark.parametrize(
    "engine", [WithoutDedupe, WithoutFence, WithoutCounter, SettlesOnClaim, AckBeforeAppend, KeepsCopies]
)
def test_a_broken_engine_turns_the_auditor_red(engine: Callable[[Engine], Engine]) -> None:
    assert first_red(Breakage(engine=engine)) is not None


@pytest.mark.parametrize("remember", [forget, forget_results])
def test_a_run_without_its_journal_turns_the_witness_red(remember: Callable[[RunContext], RunContext]) -> None:
    assert first_red(Breakage(remember=remember)) is not None


def test_a_worker_that_obeys_commands_twice_turns_the_auditor_red(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believe(controls: Controls, owner: Owner, record: Record) -> bool:
        return True

    monkeypatch.setattr(Controls, "lies_in", believe)

    assert first_red(Breakage()) is not None


def test_commands_that_are_compared_by_the_clock_turn_the_auditor_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAIL_SEEN", "a header that nobody writes")

    assert first_red(Breakage()) is not None


def test_mail_that_is_never_given_up_turns_the_auditor_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "CRASHES_MAX", 1000)

    assert first_red(Breakage()) is not None


def test_a_failing_seed_is_named_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED, raising=False)

    with pytest.raises(AssertionError, match=r'SIM_SEED=\d+ make test ARGS="-s tests/simulation/'):
        live_through(range(SEEDS), Breakage(engine=WithoutFence))


def test_a_seed_that_fails_fails_again_in_the_same_way() -> None:
    broken = Breakage(engine=WithoutFence)
    failing = first_red(broken)
    assert failing is not None

    assert simulate(failing, broken).findings == simulate(failing, broken).findings
