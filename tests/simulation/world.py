"""A small world: agents, conversations, people who write, workers that die; all of it decided by one seed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magent2.bus.interface import Engine
from magent2.models.address import relay_agent
from magent2.worker.relay import relaying
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService
from tests.simulation.audit import Scene, world_findings
from tests.simulation.clerks import Clerks
from tests.simulation.deciders import APPROVAL_MAX_S, Deciders
from tests.simulation.kinds import JOURNALLED, PLAIN, Kind
from tests.simulation.ledger import Ledger
from tests.simulation.line import Fate, Line
from tests.simulation.loop import LoopClock, VirtualLoop, run_virtually
from tests.simulation.minds import Minds, Remember
from tests.simulation.moods import Moods, Temper
from tests.simulation.outside import Outside, relay_maker
from tests.simulation.people import People
from tests.simulation.prepared import PreparedBus, image_of, nothing
from tests.simulation.town import CONNECTORS, settle
from tests.simulation.witness import Witness

WORKERS = 2
FATES_MAX = 4
FATE_CALLS_MAX = 40  # a fate strikes at one of the first so many operations of a worker; a relay beside it has more
LEASE_S, TOWN_LEASE_S = 3.0, 6.0  # where it takes longer until all is quiet, fewer renewals are enough
RELAY_LEASE_S = 9.0
FROZEN_MIN, FROZEN_MAX = 0.5, 3.0  # leases
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
    steps: list[tuple[float, str, str, int, str]]

    @property
    def trace(self) -> list[str]:
        return [f"{now:.6f} {who} {what} {records} {outcome}" for now, who, what, records, outcome in self.steps]


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
    def __init__(
        self, seed: int, kind: Kind, loop: VirtualLoop, bus: Engine, clock: LoopClock, breakage: Breakage
    ) -> None:
        self.dice = random.Random(f"world {seed}")
        self.agents, self.town = kind.agents, kind.town
        self._lease_s = TOWN_LEASE_S if kind.town else LEASE_S
        self.ledger = Ledger(breakage.engine(bus), loop.time, (*self.agents, *map(relay_agent, CONNECTORS)))
        self.witness = Witness(self.ledger)
        self.people = People(self.ledger, self.dice, kind.written_to, JOURNALLED)
        self.deciders = Deciders(self.ledger, self.dice, self.people.line)
        self.clerks = Clerks(self.ledger, self.dice, self.people.line)
        self.outside = Outside(self.ledger.counts, self.dice)
        self.ledger.on_pause, self.ledger.on_note = self.deciders.ask, self.outside.note
        self._loop = loop
        self._clock = clock
        self._breakage = breakage
        self._workers: list[Hired] = []
        self._leaving: list[asyncio.Task[None]] = []
        self._over = False
        self._fates_left = self.dice.randint(0, FATES_MAX)
        self._relays = itertools.count(1)

    async def live(self) -> Chronicle:
        self.ledger.counts["worlds with a model"] += len(self.agents) > len(PLAIN)
        self.ledger.counts["worlds with a town"] += self.town
        for _ in range(WORKERS):
            self._hire()
        self._plan_events()
        findings: list[str] = []
        try:
            await asyncio.gather(self.people.live(), *([self.clerks.live()] if self.town else []))
            await self._quiet()
            await self._tidy()
        except Exception as error:  # noqa: BLE001  whatever a client is told is a finding
            findings.append(f"a client failed: {error!r}")
        await self._go_home()
        findings += [f"a worker failed: {task.exception()!r}" for task in self._tasks() if _failed(task)]
        findings += [f"the loop was told: {context}" for context in self._loop.failures]
        findings += [*self.witness.findings, *self.deciders.failures]
        findings += world_findings(self._scene())
        self._end()
        return Chronicle(findings, self.ledger.counts, self.ledger.trace)

    # --- workers

    def _hire(self) -> None:
        if self._over:
            return
        line = Line(self.ledger, self.dice, self._fate(), self._strike)
        name = f"worker-{len(self._workers) + 1}"
        temper = Temper(line, self.dice, self.witness.see)
        runners: dict[str, Runner] = {
            agent: Minds(temper, self.witness, self._breakage.remember) if agent in JOURNALLED else Moods(temper)
            for agent in self.agents
        }
        service = WorkerService(line, runners, concurrency=2, lease_s=self._lease_s, worker=name)
        service.now_ms = self._clock.wall_ms
        service.approval_max_s = APPROVAL_MAX_S
        self._workers.append(Hired(service, line, asyncio.create_task(self._serve(service, temper))))

    async def _serve(self, service: WorkerService, temper: Temper) -> None:
        """What a process does: it serves agents, and in a town it relays what they say outside."""
        if not self.town:
            await service.run()
            return
        names, clock = (lambda: f"relay-{next(self._relays)}"), self._clock
        make = relay_maker(temper, self.outside, RELAY_LEASE_S, names, lambda: clock.wall_ms() / 1000)
        async with relaying(temper.line, make):
            await service.run()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [worker.task for worker in self._workers]

    def _fate(self) -> Fate | None:
        if not self._fates_left:
            return None
        self._fates_left -= 1
        return Fate(
            self.dice.choice(("crash", "freeze")),
            at=self.dice.randint(1, FATE_CALLS_MAX * (1 + self.town)),
            after=self.dice.random() < 0.5,
            frozen_s=self.dice.uniform(FROZEN_MIN, FROZEN_MAX) * self._lease_s,
        )

    def _strike(self, fate: Fate) -> None:
        self.ledger.counts[fate.kind] += 1
        if fate.kind == "crash":
            self._loop.call_later(self.dice.uniform(0, self._lease_s), self._hire)

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
            await asyncio.sleep(self._lease_s)

    async def _tidy(self) -> None:
        """Everybody has decided on everything, and what is stuck outside is sent again, or dropped."""
        await self.deciders.done()
        if self.town:
            await self.clerks.tidy()
            await self._quiet()

    def _is_quiet(self) -> bool:
        now = self._loop.time()
        lines = [worker.line for worker in self._workers]
        thawed = all(line.dead or line.frozen_until < now - self._lease_s for line in lines)
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

    def _scene(self) -> Scene:
        return Scene(self.ledger, self.people, self.deciders, self.clerks, self.outside, self.agents, self.town)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def simulate(seed: int, breakage: Breakage | None = None) -> Chronicle:
    """The world of this seed, from its first message to its audit."""
    loop = VirtualLoop(seed)
    clock, kind = LoopClock(loop), Kind.of(seed)
    bus = PreparedBus(image_of(settle if kind.town else nothing), clock)
    try:
        return run_virtually(loop, World(seed, kind, loop, bus, clock, breakage or Breakage()).live())
    finally:
        bus.close()
