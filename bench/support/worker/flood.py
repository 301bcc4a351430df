"""How long one user waits for an instant answer, alone and beside another user's flood of slow runs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import quantiles

from bench.support.report import Connect, Pair, envelope, paired, run
from bench.support.worker.backlog import LOOK_AGAIN_S
from magent2.bus.base import EngineBase
from magent2.bus.log import Log
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.envelope import BaseStreamEvent, MessageEnvelope, OutputEvent
from magent2.runner.context import RunContext
from magent2.worker.service import CONCURRENCY, WorkerService

SLOW = "slow"
SETTLED_S = 0.5  # no further slow run has begun for this long
FLOOD_MAX_S = 60.0  # to answer a flood that is over
ANSWER_MAX_S = 10.0  # an answer that has not come by then counts as this late


@dataclass(frozen=True, slots=True)
class FloodScale:
    """How much is done per measurement."""

    rounds: int
    slots: int
    flood: int  # slow runs
    answers: int  # of the other user, one after another


FULL = FloodScale(rounds=5, slots=CONCURRENCY, flood=300, answers=60)
QUICK = FloodScale(rounds=1, slots=8, flood=20, answers=3)


class FloodedRunner:
    """Slow runs last until the flood is over. All others answer at once."""

    def __init__(self) -> None:
        self.flood_over = asyncio.Event()
        self.slow_runs = 0

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[BaseStreamEvent]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[BaseStreamEvent]:
        if envelope.content == SLOW:
            self.slow_runs += 1
            await self.flood_over.wait()
        yield OutputEvent(conversation_id=envelope.conversation_id, text="done")


@dataclass(slots=True)
class FloodedWorker:
    """A worker, and two users of its agent."""

    bus: EngineBase
    agent: str
    runner: FloodedRunner
    service: WorkerService

    async def send(self, user: str, text: str) -> str:
        """Send a message in a new conversation of the user."""
        conversation = f"{self.agent}-{uuid.uuid4().hex[:12]}"
        asked = {**envelope(conversation, f"agent:{self.agent}"), "sender": user, "content": text}
        await deliver(Log(self.bus), MessageEnvelope.model_validate(asked), SendOptions(principal=user))
        return conversation

    async def answer_ms(self) -> float:
        """Milliseconds from a send of the other user until the answer is read."""
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                conversation = await self.send("user:other", "hello")
                async for record in self.bus.follow(f"stream:{conversation}", 0):
                    if record.payload.get("event") == "output":
                        break
        except TimeoutError:
            return ANSWER_MAX_S * 1000
        return (time.perf_counter() - begun) * 1000

    async def answers_ms(self, count: int) -> tuple[float, float]:
        """The median and the 95th percentile of some answers."""
        await self.answer_ms()  # the first one warms up
        times = [await self.answer_ms() for _ in range(count)]
        cuts = quantiles(times, n=20, method="inclusive")
        return cuts[9], cuts[18]

    async def flood(self, count: int) -> None:
        """Send slow messages of one user, and wait until the worker starts no more of them."""
        for _ in range(count):
            await self.send("user:flood", SLOW)
        seen, since = -1, time.perf_counter()
        while time.perf_counter() - since < SETTLED_S:
            if self.runner.slow_runs != seen:
                seen, since = self.runner.slow_runs, time.perf_counter()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def end_flood(self, count: int) -> None:
        """Let the slow runs end. A missing answer is an error."""
        before = self.service.outcomes.total()
        self.runner.flood_over.set()
        async with asyncio.timeout(FLOOD_MAX_S):
            while self.service.outcomes.total() < before + count:
                await asyncio.sleep(LOOK_AGAIN_S)


@asynccontextmanager
async def flooded_worker(bus: EngineBase, slots: int) -> AsyncIterator[FloodedWorker]:
    agent, runner = f"Bench-{uuid.uuid4().hex[:12]}", FloodedRunner()
    service = WorkerService(bus, {agent: runner}, concurrency=slots)
    serving = asyncio.create_task(service.run())
    try:
        yield FloodedWorker(bus, agent, runner, service)
    finally:
        runner.flood_over.set()
        await service.drain()
        await serving


def flooded_answers(connect: Connect, scale: FloodScale) -> tuple[Pair, Pair, int]:
    """The p50 and the p95 of answers during a flood, each compared with those before it; and its runs at a time."""
    return run(_flooded_answers(connect(), scale))


async def _flooded_answers(bus: EngineBase, scale: FloodScale) -> tuple[Pair, Pair, int]:
    middle: list[tuple[float, float]] = []
    late: list[tuple[float, float]] = []
    slow_runs = 0
    try:
        for _ in range(scale.rounds):
            async with flooded_worker(bus, scale.slots) as worker:
                quiet = await worker.answers_ms(scale.answers)
                await worker.flood(scale.flood)
                slow_runs = worker.runner.slow_runs
                flooded = await worker.answers_ms(scale.answers)
                await worker.end_flood(scale.flood)
            middle.append((flooded[0], quiet[0]))
            late.append((flooded[1], quiet[1]))
    finally:
        await bus.aclose()
    return paired(middle), paired(late), slow_runs
