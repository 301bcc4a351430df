"""One user floods a worker with blocks that never end. The blocks of other users run all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from magent2.bus.memory import MemoryBus
from magent2.mail.delivery import SendOptions
from magent2.runner.team.runner import TeamRunner
from magent2.sandbox.monty import PROCESSES_MAX, PROCESSES_PER_PRINCIPAL_MAX, LoopSandbox, MontySandbox
from magent2.tools.default_tools import standard_tools
from magent2.tools.registry import tool
from tests.support.blocks import PATIENT
from tests.support.team import DESK, mail, replace_tools, roster
from tests.support.waiting import until
from tests.support.worker_fixture import outputs, run_worker

ENDLESS_BLOCKS = 40
FLOOD = [f"flood-{number}" for number in range(ENDLESS_BLOCKS)]
ENDLESS = "while True: pass"
# So long that half of the flood has not ended when the block of another user has been run on a busy machine.
ENDED = replace(PATIENT, run_s=2.0)
DEADLINE_S = 30.0  # the processes of the flood keep the machine busy


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
def released() -> asyncio.Event:
    """Releases the tool `wait`."""
    return asyncio.Event()


@pytest.fixture
async def runner(released: asyncio.Event) -> AsyncIterator[TeamRunner]:
    @tool
    async def wait() -> str:
        """Wait."""
        await released.wait()
        return "late"

    registry = standard_tools()
    registry.register(wait)
    runner = TeamRunner(roster(replace_tools(DESK, "run_python", "wait")), registry, kind="echo")
    yield runner
    await runner.aclose()


def run_block(bus: MemoryBus, code: str, principal: str, conversation: str) -> None:
    metadata = {"tool": "run_python", "args": {"code": code}}
    sending = SendOptions(kind="tool", principal=principal)
    mail(bus, "", "desk", conversation, sender=principal, metadata=metadata, sending=sending)


def count_ended(bus: MemoryBus) -> int:
    return sum(bool(outputs(bus, conversation)) for conversation in FLOOD)


async def test_endless_blocks_of_one_user_leave_processes_for_another(bus: MemoryBus, runner: TeamRunner) -> None:
    async with run_worker(bus, runner, "desk", concurrency=2 * ENDLESS_BLOCKS):
        for conversation in FLOOD:
            run_block(bus, ENDLESS, "user:mallory", conversation)
        await until(lambda: runner.sandbox.waiting)
        run_block(bus, "6 * 7", "user:ann", "one")

        assert await until(lambda: outputs(bus), DEADLINE_S) == ["42"]
        assert count_ended(bus) < ENDLESS_BLOCKS / 2


async def test_blocks_that_wait_for_a_slow_tool_leave_processes_for_another(
    bus: MemoryBus, runner: TeamRunner, released: asyncio.Event
) -> None:
    async with run_worker(bus, runner, "desk", concurrency=2 * ENDLESS_BLOCKS):
        for conversation in FLOOD:
            run_block(bus, "wait()", "user:mallory", conversation)
        await until(lambda: runner.sandbox.busy == PROCESSES_PER_PRINCIPAL_MAX)
        run_block(bus, "6 * 7", "user:ann", "one")

        assert await until(lambda: outputs(bus), DEADLINE_S) == ["42"]
        assert count_ended(bus) == 0
        released.set()
        await until(lambda: count_ended(bus) == ENDLESS_BLOCKS, DEADLINE_S)


async def test_when_all_processes_are_occupied_users_take_turns(bus: MemoryBus, runner: TeamRunner) -> None:
    runner.sandbox = LoopSandbox(lambda: MontySandbox(ENDED))
    async with run_worker(bus, runner, "desk", concurrency=2 * ENDLESS_BLOCKS):
        for number, conversation in enumerate(FLOOD):
            run_block(bus, ENDLESS, f"user:mallory-{number % 2}", conversation)
        await until(lambda: runner.sandbox.busy == PROCESSES_MAX)
        run_block(bus, "6 * 7", "user:ann", "one")

        assert await until(lambda: outputs(bus), DEADLINE_S) == ["42"]
        assert count_ended(bus) < ENDLESS_BLOCKS / 2
