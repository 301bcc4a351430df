"""A backlog of mail, and the time that one worker takes to answer it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from bench.support.report import Stopwatch, envelope
from magent2.bus.base import EngineBase
from magent2.bus.log import Log
from magent2.bus.operations import READ_LIMIT_MAX, Read
from magent2.mail.delivery import deliver
from magent2.models.envelope import MessageEnvelope
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService

SENDERS = 64  # deliveries under way at a time
LOOK_AGAIN_S = 0.002  # check interval: short compared with a measurement, long compared with the work of the loop


@dataclass(frozen=True, slots=True)
class WorkerScale:
    """How much is done per measurement."""

    rounds: int
    backlog: int  # conversations with one message each
    tokens: int  # of a streamed answer
    runs: int  # one after another
    paced_runs: int
    turns: int  # of a run that calls a tool in each; the SDK allows ten
    held: int  # conversations in the middle of a run


FULL = WorkerScale(rounds=5, backlog=2_000, tokens=200, runs=20, paced_runs=1, turns=8, held=1_000)
QUICK = WorkerScale(rounds=1, backlog=40, tokens=20, runs=2, paced_runs=1, turns=2, held=10)


@dataclass(frozen=True, slots=True)
class Backlog:
    """One message in each of some conversations, all to one agent."""

    agent: str
    text: str
    conversations: tuple[str, ...]

    def envelopes(self) -> Iterable[MessageEnvelope]:
        for conversation in self.conversations:
            asked = {**envelope(conversation, f"agent:{self.agent}"), "content": self.text}
            yield MessageEnvelope.model_validate(asked)


def new_backlog(text: str, count: int) -> Backlog:
    """Create a backlog for a new agent in new conversations."""
    agent = f"Bench-{uuid.uuid4().hex[:12]}"
    return Backlog(agent, text, tuple(f"{agent}-{number}" for number in range(count)))


async def deliver_all(bus: EngineBase, backlog: Backlog) -> None:
    left = iter(backlog.envelopes())

    async def sender() -> None:
        for item in left:
            await deliver(Log(bus), item)

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


async def answer_s(bus: EngineBase, backlog: Backlog, runner: Runner, concurrency: int) -> float:
    """Seconds from the start of a worker until all mail is answered. A missing answer is an error."""
    await deliver_all(bus, backlog)
    service = WorkerService(bus, {backlog.agent: runner}, concurrency=concurrency)
    count = len(backlog.conversations)
    with Stopwatch() as watch:
        serving = asyncio.create_task(service.run())
        while service.outcomes.total() < count and not serving.done():
            await asyncio.sleep(LOOK_AGAIN_S)
    await service.drain()
    await serving
    return watch.seconds


async def check_answers(bus: EngineBase, backlog: Backlog, text: str) -> None:
    """Every message has exactly one answer, and that is the right one."""
    for conversation in backlog.conversations:
        page = await bus.acall(Read(f"stream:{conversation}", 0, READ_LIMIT_MAX))
        outputs = [record.payload["text"] for record in page.records if record.payload.get("event") == "output"]
        if outputs != [text]:
            raise RuntimeError(f"{conversation} has {len(outputs)} answers, or not the right one")
