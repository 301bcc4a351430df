"""Worlds by the hundred, each decided by its seed: workers die and freeze at any await, lines lose what they carry.

A failing seed is named; `SIM_SEED=n` runs that one alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from magent2.bus.interface import Engine
from tests.simulation.loop import Stuck, VirtualLoop, run_virtually
from tests.simulation.world import simulate
from tests.support.audit import assert_clean
from tests.support.broken import AckBeforeAppend, SettlesOnClaim, WithoutCounter, WithoutDedupe, WithoutFence

SEEDS, SEEDS_SOAK = 500, 20_000
BROKEN_SEEDS = 60  # so many worlds at most until a broken promise must have been noticed
SEED = "SIM_SEED"


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """What goes wrong on purpose need not be told thousands of times."""
    logger = logging.getLogger("magent2")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


def live_through(seeds: int) -> Counter[str]:
    """All that happened in so many worlds."""
    chosen = os.environ.get(SEED)
    happened: Counter[str] = Counter()
    for seed in range(seeds) if chosen is None else [int(chosen)]:
        chronicle = simulate(seed)
        if chosen is not None:
            print("\n".join(chronicle.trace))
        assert_clean(chronicle.findings, f"in the world of seed {seed}; {SEED}={seed} repeats it")
        happened += chronicle.counts
    print(dict(happened))
    return happened


def check_happened(happened: Counter[str], seeds: int) -> None:
    """Nothing is shown by worlds in which nothing happens."""
    if os.environ.get(SEED) is None:
        for what in ("crash", "freeze", "taken over", "fenced", "retried", "repeated", "lost", "reply was lost"):
            assert happened[what] >= seeds // 10, f"{what}: only {happened[what]} times in {seeds} worlds"


@pytest.mark.no_cover  # measuring would double what it takes
def test_every_message_of_500_worlds_is_answered_once_and_in_order() -> None:
    check_happened(live_through(SEEDS), SEEDS)


@pytest.mark.soak
@pytest.mark.no_cover
def test_every_message_of_20000_worlds_is_answered_once_and_in_order() -> None:
    check_happened(live_through(SEEDS_SOAK), SEEDS_SOAK)


@pytest.mark.parametrize("breakage", [WithoutDedupe, WithoutFence, WithoutCounter, SettlesOnClaim, AckBeforeAppend])
def test_a_broken_promise_turns_the_auditor_red(breakage: Callable[[Engine], Engine]) -> None:
    assert any(simulate(seed, breakage).findings for seed in range(BROKEN_SEEDS))


def test_the_same_seed_is_the_same_world() -> None:
    assert simulate(7).trace == simulate(7).trace
    assert simulate(7).trace != simulate(8).trace


def test_a_seed_that_fails_fails_again_in_the_same_way() -> None:
    failing = next(seed for seed in range(BROKEN_SEEDS) if simulate(seed, WithoutFence).findings)

    assert simulate(failing, WithoutFence).findings == simulate(failing, WithoutFence).findings


def test_an_hour_passes_in_no_time() -> None:
    loop = VirtualLoop(1)
    before = loop.time()

    run_virtually(loop, asyncio.sleep(3600))

    assert loop.time() == before + 3600


def test_a_loop_on_which_everybody_waits_says_so() -> None:
    loop = VirtualLoop(1)
    never = loop.create_future()

    async def wait() -> None:
        await never

    task = loop.create_task(wait())
    with pytest.raises(Stuck):
        loop.run_until_complete(task)

    never.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


def test_the_seed_decides_who_goes_first() -> None:
    def order(seed: int) -> str:
        loop = VirtualLoop(seed)
        names: list[str] = []

        async def say(name: str) -> None:
            names.append(name)

        async def all_say() -> None:
            await asyncio.gather(*map(say, "abcd"))

        run_virtually(loop, all_say())
        return "".join(names)

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(20)}) > 5
