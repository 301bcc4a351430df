"""The basis of the simulation: virtual time, seeded randomness, and the same world for the same seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulation.run_worlds import EVENTS_PER_WORLD, check_event_counts
from tests.simulation.virtual_loop import LoopClock, LoopStuck, VirtualLoop, run_on_virtual_loop
from tests.simulation.world import simulate

SEEDS_AGAIN = range(12)  # with and without a model, a crashing message, a deletion
OTHER_HASHES = "4711"
PRINT_DIGEST = (
    "import logging; logging.disable();"
    "from tests.simulation.test_simulation import digest_of_worlds; print(digest_of_worlds())"
)


def digest_of_worlds() -> str:
    trace = "\n".join(line for seed in SEEDS_AGAIN for line in simulate(seed).trace)
    return hashlib.sha256(trace.encode()).hexdigest()


def test_the_same_seed_gives_the_same_world_in_another_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": OTHER_HASHES}
    other = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST], env=environment, capture_output=True, text=True, check=True
    )

    assert other.stdout.strip() == digest_of_worlds()
    assert simulate(7).trace != simulate(8).trace


def test_too_few_events_fail_the_simulation() -> None:
    check_event_counts(dict.fromkeys(EVENTS_PER_WORLD, 1), 0)
    with pytest.raises(AssertionError, match="too rare in 10 worlds"):
        check_event_counts({}, 10)


def test_a_clock_jump_changes_the_wall_clock_and_not_the_monotonic_clock() -> None:
    loop = VirtualLoop(1)
    clock = LoopClock(loop)
    wall, steady = clock.wall_ms(), clock.monotonic_ms()

    clock.jump_s(-60)
    loop.close()

    assert (clock.wall_ms(), clock.monotonic_ms()) == (wall - 60_000, steady)


def test_sleeping_an_hour_takes_no_real_time() -> None:
    loop = VirtualLoop(1)
    before = loop.time()

    run_on_virtual_loop(loop, asyncio.sleep(3600))

    assert loop.time() == before + 3600


def test_a_loop_on_which_every_task_waits_raises_loop_stuck() -> None:
    loop = VirtualLoop(1)
    never = loop.create_future()

    async def wait() -> None:
        await never

    task = loop.create_task(wait())
    with pytest.raises(LoopStuck):
        loop.run_until_complete(task)

    never.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


def test_the_seed_decides_the_order_of_ready_tasks() -> None:
    def order(seed: int) -> str:
        loop = VirtualLoop(seed)
        names: list[str] = []

        async def say(name: str) -> None:
            names.append(name)

        async def all_say() -> None:
            await asyncio.gather(*map(say, "abcd"))

        run_on_virtual_loop(loop, all_say())
        return "".join(names)

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(20)}) > 5
