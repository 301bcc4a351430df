"""Random blocks do what the model of them says, also when their worker dies on the way."""

from __future__ import annotations

import random

import pytest

from magent2.bus.memory import MemoryBus
from magent2.sandbox.monty import MontySandbox
from tests.support.blocks import Blocks, patient_sandbox
from tests.support.journaled_runs import CrashingBus, message_contents, work, work_until_crash
from tests.support.worker_fixture import outputs, send
from tests.unit.sandbox.scripts import Writer, code_of, expected

SEEDS = range(60)
SOAK_SEEDS = range(1000, 4000)
DEATHS_MAX = 3
WRITES = 8  # about as many as a block with some immediate sends makes


async def play(sandbox: MontySandbox, seed: int) -> int:
    """Play one script, with some deaths; how often its worker died."""
    steps = Writer(seed).steps()
    chance = random.Random(seed)
    bus, deaths = MemoryBus(), 0
    send(bus, "go", id="mail")
    blocks = Blocks(sandbox, code_of(steps) + "\nNone")
    for _ in range(chance.randint(0, DEATHS_MAX)):
        mortal = CrashingBus(bus, at=chance.randint(1, WRITES), after=chance.random() < 0.5)
        deaths += await work_until_crash(mortal, blocks.made)
        if outputs(bus):
            break
    else:
        await work(bus, blocks.made)

    want = expected(steps)
    assert message_contents(bus, "chat:Bea") == want.delivered, (seed, code_of(steps))
    assert blocks.text.endswith(want.status), (seed, blocks.text)
    assert ("[Messages" in blocks.text) == bool(want.status), (seed, blocks.text)
    bus.close()
    return deaths


async def test_random_blocks_deliver_what_the_model_says() -> None:
    sandbox = patient_sandbox()
    deaths = [await play(sandbox, seed) for seed in SEEDS]
    await sandbox.aclose()

    assert sum(deaths) > len(SEEDS) // 4


@pytest.mark.soak
async def test_very_many_random_blocks_deliver_what_the_model_says() -> None:
    sandbox = patient_sandbox()
    for seed in SOAK_SEEDS:
        await play(sandbox, seed)
    await sandbox.aclose()
