"""A small world: agents, conversations, people who write, workers that die; all of it decided by one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.worker.drive import Runner
from magent2.worker.service import WorkerService
from tests.simulation.audit import world_findings
from tests.simulation.ledger import Ledger
from tests.simulation.line import Fate, Line
from tests.simulation.loop import LoopClock, VirtualLoop, run_virtually
from tests.simulation.minds import Minds, Remember, Witness
from tests.simulation.moods import Moods, Temper
from tests.simulation.people import People

PLAIN, JOURNALLED = ("Ada", "Bob"), ("Sol",)
MINDFUL = 0.3  # how often there is an agent that runs on the SDK
WORKERS = 2
FATES_MAX = 4
FATE_CALLS_MAX = 40  # a fate strikes at one of the first so many operations of a worker
LEASE_S = 2.0
FROZEN_MIN_S, FROZEN_MAX_S = LEASE_S / 2, 3 * LEASE_S
EVENT_MAX_S = 8.0  # after the beginning of the world: jumps of the clock, workers that go home
JUMPS_MAX, DRAINS_MAX = 4, 2
JUMP_MAX_S, LEAP_S = 20.0, 2 * 86_400.0  # either way; only forward
DRAIN_MAX_S = 1.0
DEADLINE_S = 600.0  # virtual; a world that is not quiet by then has lost something
DRAIN_S = 30.0


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


@dataclass(frozen=True)
class Breakage:
    """What is broken in a world, on purpose: the engine, or what a run is told of its past."""

    engine: Callable[[Engine], Engine] = lambda engine: engine
    remember: Remember = lambda context: context


class World:
    def __init__(self, seed: int, loop: VirtualLoop, bus: MemoryBus, clock: LoopClock, breakage: Breakage) -> None:
        self.dice = random.Random(f"world {seed}")
        self.agents = PLAIN + (JOURNALLED if self.dice.random() < MINDFUL else ())
        self.ledger = Ledger(breakage.engine(bus), loop.time, self.agents)
        self.witness = Witness(self.ledger)
        self.people = People(self.ledger, self.dice, self.agents, JOURNALLED)
        self._loop = loop
        self._clock = clock
        self._breakage = breakage
        self._workers: list[Hired] = []
        self._leaving: list[asyncio.Task[None]] = []
        self._over = False
        self._fates_left = self.dice.randint(0, FATES_MAX)

    async def live(self) -> Chronicle:
        self.ledger.counts["worlds with a model"] += len(self.agents) > len(PLAIN)
        for _ in range(WORKERS):
            self._hire()
        self._plan_events()
        findings: list[str] = []
        try:
            await self.people.live()
        except Exception as error:  # noqa: BLE001  whatever a client is told is a finding
            findings.append(f"a client failed: {error!r}")
        await self._quiet()
        await self._go_home()
        findings += [f"a worker failed: {task.exception()!r}" for task in self._tasks() if _failed(task)]
        findings += [f"the loop was told: {context}" for context in self._loop.failures]
        findings += self.witness.findings
        findings += world_findings(self.ledger, self.people, self.agents)
        self._end()
        return Chronicle(findings, self.ledger.counts, self.ledger.trace)

    # --- workers

    def _hire(self) -> None:
        if self._over:
            return
        line = Line(self.ledger, self.dice, self._fate(), self._strike)
        name = f"worker-{len(self._workers) + 1}"
        temper = Temper(line, self.dice)
        runners: dict[str, Runner] = {
            agent: Minds(temper, self.witness, self._breakage.remember) if agent in JOURNALLED else Moods(temper)
            for agent in self.agents
        }
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

    # --- events

    def _plan_events(self) -> None:
        for _ in range(self.dice.choice((0, self.dice.randint(1, JUMPS_MAX)))):
            self._loop.call_later(self.dice.uniform(0, EVENT_MAX_S), self._jump)
        for _ in range(self.dice.choice((0, self.dice.randint(1, DRAINS_MAX)))):
            self._loop.call_later(self.dice.uniform(0, EVENT_MAX_S), self._relieve)

    def _jump(self) -> None:
        """Nobody waits for a clock that was set back by days, so it is set so only forward."""
        seconds = LEAP_S if self.dice.random() < 0.1 else self.dice.uniform(-JUMP_MAX_S, JUMP_MAX_S)
        self._clock.jump_s(seconds)
        self.ledger.counts["clock set forward" if seconds > 0 else "clock set back"] += 1

    def _relieve(self) -> None:
        """A worker goes home in the middle of its work, and another comes."""
        alive = [worker for worker in self._workers if not worker.line.dead and not worker.task.done()]
        if alive and not self._over:
            drain = self.dice.choice(alive).service.drain(self.dice.uniform(0, DRAIN_MAX_S))
            self._leaving.append(asyncio.create_task(drain))
            self.ledger.counts["drained"] += 1
            self._hire()

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
        return thawed and not self.ledger.pending

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


def simulate(seed: int, breakage: Breakage | None = None) -> Chronicle:
    """The world of this seed, from its first message to its audit."""
    loop = VirtualLoop(seed)
    clock = LoopClock(loop)
    bus = MemoryBus(clock=clock)
    try:
        return run_virtually(loop, World(seed, loop, bus, clock, breakage or Breakage()).live())
    finally:
        bus.close()
