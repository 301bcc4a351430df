"""A simulated world: agents, conversations, clients, and workers that crash, all decided by one seed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.retention import RetentionPolicy, TopicRetention
from magent2.connectors.relay import running_relay
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.address import relay_agent
from magent2.runner.providers import model_info
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService
from tests.simulation.approvers import APPROVAL_MAX_S, Approvers
from tests.simulation.budget_operators import BudgetOperators
from tests.simulation.call_oracle import CallOracle
from tests.simulation.clients import SimulatedClients
from tests.simulation.compactions import compacted_runs
from tests.simulation.directory_fixture import CONNECTORS, populate_directory
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.fake_connectors import FakeReceivers, relay_maker
from tests.simulation.faulty_bus import FaultyBus, ProcessFault
from tests.simulation.outbox_operators import OutboxOperators
from tests.simulation.plain_runner import MailFaults, PlainRunner
from tests.simulation.preloaded_bus import PreloadedBus, database_image, leave_empty
from tests.simulation.sdk_runner import AlterContext, SdkRunner
from tests.simulation.small_histories import small_histories
from tests.simulation.virtual_loop import LoopClock, VirtualLoop, run_on_virtual_loop
from tests.simulation.webhook_audit import WEBHOOK, configured
from tests.simulation.world_audit import AuditInput, world_findings
from tests.simulation.world_kind import PLAIN_AGENTS, SDK_AGENTS, WorldKind

model_info.load()  # otherwise the first run would load it on a thread, which a virtual loop does not wait for

WORKERS = 2
FAULTS_MAX = 4
FAULT_CALLS_MAX = 40  # a fault hits one of this many first operations of a worker
LEASE_S, DIRECTORY_LEASE_S = 3.0, 6.0  # worlds with a directory run longer, so they renew less often
RELAY_LEASE_S = 9.0
FROZEN_MIN, FROZEN_MAX = 0.5, 3.0  # leases
EVENT_MAX_S = 8.0  # after the start of the world: clock jumps, drained workers
JUMPS_MAX, DRAINS_MAX = 4, 2
JUMP_MAX_S, LEAP_MAX_S = 20.0, 86_400.0  # in both directions
LEAPS = 0.4  # share of the jumps that are up to a day
RETRY = RetryPolicy(first_s=0.25, max_s=8.0, jitter=0.5, give_up_after_s=300.0)  # shorter than a world may take
DELIVERY_RETRY = RetryPolicy(first_s=1.0, max_s=20.0, jitter=0.5, give_up_after_s=90.0)
CIRCUIT_FAILURES = 2
DRAIN_MAX_S = 1.0
DEADLINE_S = 600.0  # virtual time; a world with pending mail after it has lost something
WORLD_MAX_S = 3600.0  # virtual time; in a broken world, a person may wait for a run that never goes on
DRAIN_S = 30.0
SWEEP_CALLS = 20  # operations of a sweeper among the first of a worker
SWEPT = 0.5  # share of worlds in which workers sweep
RETENTION = RetentionPolicy(tokens_after_s=1.0, mail=TopicRetention(max_age_s=3.0), sweep_every_s=2.0)


@dataclass(frozen=True)
class SimulationResult:
    """Findings, event counts and trace of one world."""

    findings: list[str]
    counts: Counter[str]
    steps: list[tuple[float, str, str, int, str]]

    @property
    def trace(self) -> list[str]:
        return [f"{now:.6f} {who} {what} {records} {outcome}" for now, who, what, records, outcome in self.steps]


@dataclass(frozen=True)
class WorkerProcess:
    """A simulated worker process: a service and its bus."""

    service: WorkerService
    bus: FaultyBus
    task: asyncio.Task[None]


@dataclass(frozen=True)
class Breakage:
    """What a test breaks in a world: the engine, or the context that a run gets."""

    engine: Callable[[Engine], Engine] = lambda engine: engine
    alter_context: AlterContext = lambda context: context


class World:
    def __init__(
        self, seed: int, kind: WorldKind, loop: VirtualLoop, bus: Engine, clock: LoopClock, breakage: Breakage
    ) -> None:
        self.rng = random.Random(f"world {seed}")
        self.agents, self.with_directory = kind.agents, kind.with_directory
        self._lease_s = DIRECTORY_LEASE_S if kind.with_directory else LEASE_S
        self.recorder = EngineRecorder(
            breakage.engine(bus), loop.time, (*self.agents, *map(relay_agent, (*CONNECTORS, WEBHOOK.connector)))
        )
        self.oracle = CallOracle(self.recorder)
        self.clients = SimulatedClients(self.recorder, self.rng, kind.written_to, SDK_AGENTS)
        self.approvers = Approvers(self.recorder, self.rng, self.clients.bus)
        self.operators = OutboxOperators(self.recorder, self.rng, self.clients.bus)
        self.treasury = BudgetOperators(seed, bool(set(SDK_AGENTS) & set(kind.agents)), self.recorder, self.clients.bus)
        self.receivers = FakeReceivers(self.recorder.counts, self.rng)
        self.recorder.on_pause, self.recorder.on_note = self.approvers.ask, self.receivers.note
        self._loop = loop
        self._clock = clock
        self._breakage = breakage
        self._workers: list[WorkerProcess] = []
        self._leaving: list[asyncio.Task[None]] = []
        self._over = False
        self._faults_left = self.rng.randint(0, FAULTS_MAX)
        self._relays = itertools.count(1)
        self._retention = (lambda: RETENTION) if self.rng.random() < SWEPT else None

    async def run(self) -> SimulationResult:
        self.recorder.counts["worlds with a model"] += len(self.agents) > len(PLAIN_AGENTS)
        self.recorder.counts["worlds with a directory"] += self.with_directory
        self.recorder.counts["worlds with sweeps"] += self._retention is not None
        for _ in range(WORKERS):
            self._hire()
        self._plan_events()
        raising = asyncio.create_task(self.treasury.run())
        findings: list[str] = []
        try:
            async with asyncio.timeout(WORLD_MAX_S):
                await asyncio.gather(self.clients.run(), *([self.operators.run()] if self.with_directory else []))
                await self._quiet()
                await self._resolve_open_items()
        except Exception as error:  # noqa: BLE001  any error of a client is a finding
            findings.append(f"a client failed: {error!r}")
        findings += [f"the operator of budgets failed: {raising.exception()!r}"] if _failed(raising) else []
        raising.cancel()
        await self._drain_all()
        findings += [f"a worker failed: {task.exception()!r}" for task in self._tasks() if _failed(task)]
        findings += [f"the loop was told: {context}" for context in self._loop.failures]
        findings += [*self.oracle.findings, *self.approvers.failures, *self.treasury.findings]
        findings += world_findings(self._audit_input())
        self._end()
        return SimulationResult(findings, self.recorder.counts, self.recorder.trace)

    # --- workers

    def _hire(self) -> None:
        if self._over:
            return
        bus = FaultyBus(self.recorder, self.rng, self._next_fault(), self._on_fault)
        name = f"worker-{len(self._workers) + 1}"
        faults = MailFaults(bus, self.rng, self.oracle.check_call)
        runners: dict[str, Runner] = {
            agent: SdkRunner(faults, self.oracle, self._breakage.alter_context)
            if agent in SDK_AGENTS
            else PlainRunner(faults)
            for agent in self.agents
        }
        service = WorkerService(
            bus,
            runners,
            concurrency=2,
            lease_s=self._lease_s,
            worker=name,
            retry=RETRY,
            circuit_failures=CIRCUIT_FAILURES,
            chance=self.rng.random,
        )
        service.retention = self._retention
        if self.with_directory:
            service.webhooks.configured = configured
        service.now_ms = service.budgets.now_ms = self._clock.wall_ms
        service.budgets.configured = lambda: self.treasury.configured
        service.approval_max_s = APPROVAL_MAX_S
        self._workers.append(WorkerProcess(service, bus, asyncio.create_task(self._serve(service, faults))))

    async def _serve(self, service: WorkerService, faults: MailFaults) -> None:
        """Run a worker process: the service, and the relay if the world has a directory."""
        if not self.with_directory:
            await service.run()
            return
        names, clock = (lambda: f"relay-{next(self._relays)}"), self._clock
        make = relay_maker(
            faults, self.receivers, RELAY_LEASE_S, names, lambda: clock.wall_ms() / 1000, DELIVERY_RETRY, configured
        )
        async with running_relay(faults.bus, make):
            await service.run()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [worker.task for worker in self._workers]

    def _next_fault(self) -> ProcessFault | None:
        if not self._faults_left:
            return None
        self._faults_left -= 1
        return ProcessFault(
            self.rng.choice(("crash", "freeze")),
            at=self.rng.randint(1, FAULT_CALLS_MAX * (1 + self.with_directory) + SWEEP_CALLS * bool(self._retention)),
            after=self.rng.random() < 0.5,
            frozen_s=self.rng.uniform(FROZEN_MIN, FROZEN_MAX) * self._lease_s,
        )

    def _on_fault(self, fault: ProcessFault) -> None:
        self.recorder.counts[fault.kind] += 1
        if fault.kind == "crash":
            self._loop.call_later(self.rng.uniform(0, self._lease_s), self._hire)

    # --- events

    def _plan_events(self) -> None:
        for _ in range(self.rng.choice((0, self.rng.randint(1, JUMPS_MAX)))):
            self._loop.call_later(self.rng.uniform(0, EVENT_MAX_S), self._jump)
        for _ in range(self.rng.choice((0, self.rng.randint(1, DRAINS_MAX)))):
            self._loop.call_later(self.rng.uniform(0, EVENT_MAX_S), self._replace_worker)

    def _jump(self) -> None:
        """Change the wall clock, by some seconds or by up to a day."""
        longest_s = LEAP_MAX_S if self.rng.random() < LEAPS else JUMP_MAX_S
        seconds = self.rng.uniform(-longest_s, longest_s)
        self._clock.jump_s(seconds)
        self.recorder.counts["clock set forward" if seconds > 0 else "clock set back"] += 1

    def _replace_worker(self) -> None:
        """Drain one worker while it works, and start another."""
        alive = [worker for worker in self._workers if not worker.bus.dead and not worker.task.done()]
        if alive and not self._over:
            drain = self.rng.choice(alive).service.drain(self.rng.uniform(0, DRAIN_MAX_S))
            self._leaving.append(asyncio.create_task(drain))
            self.recorder.counts["drained"] += 1
            self._hire()

    # --- the end

    async def _quiet(self) -> None:
        """Wait until all mail is settled and every frozen worker has gone on for at least one lease."""
        deadline = self._loop.time() + DEADLINE_S
        while self._loop.time() < deadline and not self._is_quiet():
            await asyncio.sleep(self._lease_s)

    async def _resolve_open_items(self) -> None:
        """Wait for all approvals, then retry or drop the stuck messages of the outboxes."""
        await self.approvers.done()
        if self.with_directory:
            await self.operators.resolve_open_items()
            await self._quiet()

    def _is_quiet(self) -> bool:
        now = self._loop.time()
        lines = [worker.bus for worker in self._workers]
        thawed = all(bus.dead or bus.frozen_until < now - self._lease_s for bus in lines)
        return thawed and not self.recorder.pending

    async def _drain_all(self) -> None:
        """Drain all workers that are alive, without further faults."""
        self._faults_left = 0
        for worker in self._workers:
            worker.bus.fault = None
        alive = [worker for worker in self._workers if not worker.bus.dead]
        await asyncio.gather(*(worker.service.drain(DRAIN_S) for worker in alive))
        await asyncio.gather(*(worker.task for worker in alive), return_exceptions=True)

    def _end(self) -> None:
        """Let the operations of crashed workers fail, now that the audit is done."""
        self._over = True
        for worker in self._workers:
            worker.bus.over = True

    def _audit_input(self) -> AuditInput:
        return AuditInput(
            self.recorder,
            self.clients,
            self.approvers,
            self.operators,
            self.receivers,
            self.agents,
            self.with_directory,
            self.treasury.configured,
        )


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def simulate(seed: int, breakage: Breakage | None = None) -> SimulationResult:
    """Run the world of this seed, from its first message to its audit."""
    loop = VirtualLoop(seed)
    clock, kind = LoopClock(loop), WorldKind.of(seed)
    bus = PreloadedBus(database_image(populate_directory if kind.with_directory else leave_empty), clock)
    try:
        with compacted_runs(), small_histories() if seed % 2 else nullcontext():
            return run_on_virtual_loop(loop, World(seed, kind, loop, bus, clock, breakage or Breakage()).run())
    finally:
        bus.close()
