"""A small world: agents, conversations, people who write, workers that die; all of it decided by one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from magent2.bus.delivery import delivering
from magent2.bus.flow import arun
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.patience import insist
from magent2.errors import ModelRefused, ModelUnavailable
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import pieces
from magent2.worker.service import WorkerService
from tests.simulation.audit import Sent, world_findings
from tests.simulation.ledger import Ledger
from tests.simulation.line import Fate, Line
from tests.simulation.loop import LoopClock, VirtualLoop, run_virtually
from tests.support.runners import Event, output, token

AGENTS = ("Ada", "Bob")
CONVERSATIONS = ("one", "two", "three")
WORKERS = 2
MESSAGES = 8
CLIENTS = 2
FATES_MAX = 4
FATE_CALLS_MAX = 40  # a fate strikes at one of the first so many operations of a worker
LEASE_S = 2.0
FROZEN_MIN_S, FROZEN_MAX_S = LEASE_S / 2, 3 * LEASE_S
PAUSE_MAX_S = 0.8  # between messages of one client
THINK_MAX_S = 0.8  # per token
DEADLINE_S = 300.0  # virtual; a world that is not quiet by then has lost something
DRAIN_S = 30.0

FAILS, REFUSES = "fails", "refuses"  # metadata: how many attempts fail, and whether the model says no


class Moods:
    """A runner that streams, thinks, fails as often as the mail says, and refuses what the mail says."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        text = envelope.content or ""
        words = pieces(text)
        breaks_at = self._dice.randrange(len(words) + 1)
        for index, word in enumerate([*words, ""]):
            if index == breaks_at:
                self._break(envelope, context)
            await asyncio.sleep(self._dice.uniform(0, THINK_MAX_S))
            if word:
                yield token(envelope, word, index)
        yield output(envelope, text)

    def _break(self, envelope: MessageEnvelope, context: RunContext) -> None:
        if envelope.metadata[REFUSES]:
            raise ModelRefused("the model says no")
        if context.run.retries < envelope.metadata[FAILS]:
            raise ModelUnavailable("the model went away")


@dataclass(frozen=True)
class Chronicle:
    """What became of a world."""

    findings: list[str]
    counts: Counter[str]
    trace: list[str]


@dataclass(frozen=True)
class Hired:
    """A worker, as a process of its own would be: a service and its line to the log."""

    service: WorkerService
    line: Line
    task: asyncio.Task[None]


class World:
    def __init__(self, seed: int, loop: VirtualLoop, engine: Engine) -> None:
        self.dice = random.Random(f"world {seed}")
        self.ledger = Ledger(engine, loop.time)
        self.sent: list[Sent] = []
        self._loop = loop
        self._workers: list[Hired] = []
        self._over = False
        self._fates_left = self.dice.randint(0, FATES_MAX)

    async def live(self) -> Chronicle:
        for _ in range(WORKERS):
            self._hire()
        writing = [asyncio.create_task(self._write(number)) for number in range(CLIENTS)]
        await asyncio.wait(writing)
        findings = [f"a client failed: {task.exception()!r}" for task in writing if task.exception()]
        await self._quiet()
        await self._go_home()
        findings += [f"a worker failed: {task.exception()!r}" for task in self._tasks() if _failed(task)]
        findings += [f"the loop was told: {context}" for context in self._loop.failures]
        findings += world_findings(self.ledger, self.sent, AGENTS, CONVERSATIONS)
        self._end()
        return Chronicle(findings, self.ledger.counts, self.ledger.trace)

    # --- people

    async def _write(self, client: int) -> None:
        line = Line(self.ledger, self.dice, loses_appends=True)
        for number in range(client, MESSAGES, CLIENTS):
            await asyncio.sleep(self.dice.uniform(0, PAUSE_MAX_S))
            envelope = self._envelope(number)
            times = self.dice.choice((1, 1, 2, 3))
            await asyncio.gather(*(self._deliver(line, envelope) for _ in range(times)))
            self.sent.append(Sent.of(envelope, bool(envelope.metadata[REFUSES])))

    def _envelope(self, number: int) -> MessageEnvelope:
        metadata = {FAILS: self.dice.choice((0, 0, 0, 1, 2)), REFUSES: self.dice.random() < 0.1}
        return MessageEnvelope(
            id=f"m{number}",
            conversation_id=self.dice.choice(CONVERSATIONS),
            sender="user:ann",
            recipient=f"agent:{self.dice.choice(AGENTS)}",
            content=f"message {number} of few"[: self.dice.randint(5, 20)],
            metadata=metadata,
        )

    async def _deliver(self, line: Line, envelope: MessageEnvelope) -> None:
        await asyncio.sleep(self.dice.choice((0.0, self.dice.uniform(0, PAUSE_MAX_S))))
        await insist(lambda: arun(line, delivering(envelope)), "client")

    # --- workers

    def _hire(self) -> None:
        if self._over:
            return
        line = Line(self.ledger, self.dice, self._fate(), self._strike)
        name = f"worker-{len(self._workers) + 1}"
        runners = dict.fromkeys(AGENTS, Moods(self.dice))
        service = WorkerService(line, runners, concurrency=2, lease_s=LEASE_S, worker=name)
        self._workers.append(Hired(service, line, asyncio.create_task(service.run())))

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [worker.task for worker in self._workers]

    def _fate(self) -> Fate | None:
        if not self._fates_left:
            return None
        self._fates_left -= 1
        return Fate(
            self.dice.choice(("crash", "freeze")),
            at=self.dice.randint(1, FATE_CALLS_MAX),
            after=self.dice.random() < 0.5,
            frozen_s=self.dice.uniform(FROZEN_MIN_S, FROZEN_MAX_S),
        )

    def _strike(self, fate: Fate) -> None:
        self.ledger.counts[fate.kind] += 1
        if fate.kind == "crash":
            self._loop.call_later(self.dice.uniform(0, LEASE_S), self._hire)

    # --- the end

    async def _quiet(self) -> None:
        """Until all mail is settled, every zombie has had its say, and who died was replaced."""
        deadline = self._loop.time() + DEADLINE_S
        while self._loop.time() < deadline and not self._is_quiet():
            await asyncio.sleep(LEASE_S)

    def _is_quiet(self) -> bool:
        now = self._loop.time()
        lines = [worker.line for worker in self._workers]
        thawed = all(line.dead or line.frozen_until < now - LEASE_S for line in lines)
        return thawed and len(self.ledger.settled) >= len(self.sent)

    async def _go_home(self) -> None:
        """Who is alive goes home, and nobody dies on the way."""
        self._fates_left = 0
        for worker in self._workers:
            worker.line.fate = None
        alive = [worker for worker in self._workers if not worker.line.dead]
        await asyncio.gather(*(worker.service.drain(DRAIN_S) for worker in alive))
        await asyncio.gather(*(worker.task for worker in alive), return_exceptions=True)

    def _end(self) -> None:
        """The dead are sent home too, now that nobody looks."""
        self._over = True
        for worker in self._workers:
            worker.line.over = True


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def simulate(seed: int, breakage: Callable[[Engine], Engine] | None = None) -> Chronicle:
    """The world of this seed, from its first message to its audit."""
    loop = VirtualLoop(seed)
    bus = MemoryBus(clock=LoopClock(loop))
    try:
        world = World(seed, loop, bus if breakage is None else breakage(bus))
        return run_virtually(loop, world.live())
    finally:
        bus.close()
