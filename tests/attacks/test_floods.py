"""A user who floods a worker with slow runs does not keep another user waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.runners import AsyncRunner, Event, output
from tests.support.waiting import until
from tests.support.worker_fixture import envelope, outputs, run_worker

SLOTS = 8
FLOOD = 3 * SLOTS
SLOW = "slow"


class SlowRuns:
    """A runner whose runs of slow messages last until `gate` is set. All others are answered at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0
        self.runner = AsyncRunner(self._answer)

    async def _answer(self, asked: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        if asked.content == SLOW:
            self.begun += 1
            await self.gate.wait()
        yield output(asked, str(asked.content))


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


async def send(bus: Engine, user: str, text: str, conversation: str) -> None:
    await deliver(Log(bus), envelope(text, conversation, sender=user), SendOptions(principal=user))


async def test_a_flood_of_slow_runs_does_not_delay_the_answer_to_another_user(bus: Engine) -> None:
    slow = SlowRuns()
    for number in range(FLOOD):
        await send(bus, "user:mallory", SLOW, f"flood-{number}")
    async with run_worker(bus, slow.runner, concurrency=SLOTS):
        await until(lambda: slow.begun >= SLOTS // 2)

        await send(bus, "user:bob", "hello", "bobs")

        await until(lambda: outputs(bus, "bobs") == ["hello"])
        assert slow.begun == SLOTS // 2  # the flood goes on meanwhile
        slow.gate.set()
        await until(lambda: all(outputs(bus, f"flood-{number}") for number in range(FLOOD)))


async def test_a_message_does_not_wait_behind_the_backlog_of_another_user(bus: Engine) -> None:
    slow = SlowRuns()
    for number in range(FLOOD):
        await send(bus, "user:mallory", SLOW, f"flood-{number}")
    await send(bus, "user:bob", "hello", "bobs")

    async with run_worker(bus, slow.runner, concurrency=2):
        await until(lambda: outputs(bus, "bobs") == ["hello"])
        slow.gate.set()


async def test_two_floods_leave_a_slot_to_a_third_user(bus: Engine) -> None:
    slow = SlowRuns()
    for number in range(FLOOD):
        for user in ("mallory", "trudy"):
            await send(bus, f"user:{user}", SLOW, f"{user}-{number}")
    async with run_worker(bus, slow.runner, concurrency=SLOTS):
        await until(lambda: slow.begun >= 2 * (SLOTS // 3))

        await send(bus, "user:bob", "hello", "bobs")

        await until(lambda: outputs(bus, "bobs") == ["hello"])
        slow.gate.set()
