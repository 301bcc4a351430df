"""The long-running worker: claims lanes of its agents and runs many at a time, until it is told to go home."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from magent2.bus.delivery import enlisting
from magent2.bus.flow import arun
from magent2.bus.interface import Engine
from magent2.bus.operations import CLAIM_LIMIT_MAX, Claim, Leave, Renew
from magent2.bus.patience import persist
from magent2.bus.records import Claimed, Claims, Record
from magent2.bus.watch import Watch
from magent2.errors import InvalidInput, LimitError, Magent2Error
from magent2.models.address import chat_topic
from magent2.sessions.history import Histories
from magent2.telemetry.runs import Observer
from magent2.worker.controls import Controls
from magent2.worker.drive import Runner
from magent2.worker.ending import DELAYED, Outcome
from magent2.worker.quarantine import Quarantine
from magent2.worker.run import RUN_MAX_S, LaneRun

log = logging.getLogger(__name__)

CONCURRENCY = 256  # lanes at a time
LEASE_S = 15.0
SWEEP_S = 30.0  # it looks again this often, woken or not
DRAIN_S = 30.0
LEAVE_MAX_S = 5.0  # for giving lanes back and saying goodbye to a bus that may not answer


def new_worker_id() -> str:
    return f"worker-{uuid.uuid4().hex[:12]}"


class WorkerService:
    """Serves the mail of agents, each with its runner.

    Order holds per lane, because a lane has one owner; lanes run side by side, up to `concurrency` of them. The service
    sleeps until mail or a command is published, a slot is free again, or something falls due.
    """

    def __init__(
        self,
        bus: Engine,
        runners: Mapping[str, Runner],
        *,
        concurrency: int = CONCURRENCY,
        lease_s: float = LEASE_S,
        run_max_s: float = RUN_MAX_S,
        worker: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        if not runners:
            raise InvalidInput("a worker needs at least one agent to serve")
        if not 1 <= concurrency <= CLAIM_LIMIT_MAX:
            raise LimitError(f"concurrency must be between 1 and {CLAIM_LIMIT_MAX}, not {concurrency}")
        self.worker = worker or new_worker_id()
        self.outcomes: Counter[Outcome] = Counter()
        self._observer = observer
        self._bus = bus
        self._runners = dict(runners)
        self._agents = tuple(self._runners)
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._run_max_s = run_max_s
        self._controls = Controls(bus, self._agents, self.worker)
        self._runs: dict[asyncio.Task[Outcome], LaneRun] = {}
        self._by_lane: dict[tuple[str, str], LaneRun] = {}
        self._quarantine = Quarantine()
        self._histories = Histories(bus)
        self._awake = asyncio.Event()
        self._waiting = 0  # runs that wait for an answer: others have their slots
        self._hungry = False  # the last claim filled every slot, so there may be more to have
        self._draining = False
        self._handing_back = False
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serve until drained. Raises `NameTaken` for an agent whose name is in use, and what a person must mend."""
        try:
            for agent in self._agents:
                await arun(self._bus, enlisting(agent))
            await self._work()
        finally:
            self._ended.set()

    async def drain(self, timeout_s: float = DRAIN_S) -> None:
        """Claim nothing more; give runs so much time, hand the rest back, and leave."""
        if not self._draining:
            self._draining = True
            loop = asyncio.get_running_loop()
            loop.call_later(timeout_s, self._hand_back)
            loop.call_later(timeout_s + LEAVE_MAX_S, self._abandon)
            self._awake.set()
        await self._ended.wait()

    # --- the loop

    async def _work(self) -> None:
        helpers: list[asyncio.Task[None]] = []
        try:
            with self._bus.watch((*map(chat_topic, self._agents), *self._controls.topics)) as watch:
                helpers += [self._help(self._listen(watch)), self._help(self._renew())]
                await self._sort_controls()
                await self._serve()
        finally:
            await self._go_home(helpers)

    async def _sort_controls(self) -> None:
        """Before a lane is taken, every command that is already there lies in its lane."""
        for _ in range(await self._controls.begin()):
            claims = await self._claim(0)
            if not claims.more:
                return

    async def _serve(self) -> None:
        while not (self._draining and not self._runs):
            self._check()
            self._awake.clear()
            wait_s = await self._look()
            await self._sleep(wait_s)
        self._check()

    async def _look(self) -> float | None:
        """Take what there is; when the next thing falls due."""
        commands = await self._controls.read()
        room = 0 if self._draining else self._room()
        if not room and not commands:
            self._hungry = True
            return None
        claims = await self._claim(room)
        for lane in claims.lanes:
            self._start(lane)
        for record in commands:
            await self._pass_on(record)
        self._hungry = len(claims.lanes) == room
        if claims.more or self._controls.waiting or (self._hungry and self._room()):
            self._awake.set()
        return claims.wait_s if room else None

    def _room(self) -> int:
        """Free slots. A run that comes back from a wait goes on at once, so there may be fewer than none."""
        return min(CLAIM_LIMIT_MAX, max(0, self._concurrency - len(self._runs) + self._waiting))

    @asynccontextmanager
    async def _without_slot(self) -> AsyncIterator[None]:
        """Around a wait of a run."""
        self._waiting += 1
        self._awake.set()
        try:
            yield
        finally:
            self._waiting -= 1

    async def _sleep(self, wait_s: float | None) -> None:
        delay = SWEEP_S if wait_s is None else min(wait_s, SWEEP_S)
        timer = asyncio.get_running_loop().call_later(delay, self._awake.set)
        await self._awake.wait()
        timer.cancel()

    async def _claim(self, limit: int) -> Claims:
        """The same claim is repeated until the bus answers, so that no lane is held without being known."""
        claim = Claim(worker=self.worker, agents=self._agents, limit=limit, lease_s=self._lease_s)
        begun = time.perf_counter()
        claims = await persist(self._bus, claim, self.worker)
        if self._observer is not None and self._observer.metrics is not None:
            self._observer.metrics.claimed(time.perf_counter() - begun)
        return claims

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- runs

    def _start(self, lane: Claimed) -> None:
        runner = self._runners[lane.owner.agent]
        run = LaneRun(
            self._bus,
            lane,
            runner,
            run_max_s=self._run_max_s,
            quarantine=self._quarantine,
            histories=self._histories,
            observer=self._observer,
            waits=(self._without_slot,),
        )
        task = asyncio.create_task(run.work(), name=f"lane {lane.owner.agent}")
        self._runs[task] = run
        self._by_lane[lane.owner.agent, lane.owner.conversation] = run
        task.add_done_callback(self._run_ended)
        if self._handing_back:
            run.give_back()

    def _run_ended(self, task: asyncio.Task[Outcome]) -> None:
        run = self._runs.pop(task)
        key = run.owner.agent, run.owner.conversation
        if self._by_lane.get(key) is run:
            del self._by_lane[key]
        if not task.cancelled():
            self._note_end(task)
        if self._hungry or self._draining:
            self._awake.set()

    def _note_end(self, task: asyncio.Task[Outcome]) -> None:
        error = task.exception()
        if error is not None:
            self._fail(error)
            return
        self.outcomes[task.result()] += 1
        if task.result() in DELAYED:
            self._awake.set()  # the next claim says when the lane falls due

    async def _pass_on(self, record: Record) -> None:
        agent = record.topic.partition(":")[2]
        run = self._by_lane.get((agent, str(record.payload.get("conversation_id", ""))))
        if run is not None and await self._controls.lies_in(run.owner, record):
            run.command(record)

    def _hand_back(self) -> None:
        self._handing_back = True
        for run in self._runs.values():
            run.give_back()

    def _abandon(self) -> None:
        """The bus does not even take lanes back; the lease will run out."""
        for task in self._runs:
            task.cancel()

    # --- helpers

    def _help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._helper_ended)
        return task

    def _helper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """What a run or a helper could not mend ends the service; the lanes go back to others."""
        if self._failure is None:
            self._failure = error
        self._awake.set()

    async def _listen(self, watch: Watch) -> None:
        while True:
            self._controls.note(await watch.changed(None))
            self._awake.set()

    async def _renew(self) -> None:
        """Keep the lease. Runs that were there the last time are asked for: a lease may have been lost in between."""
        renewal = Renew(self.worker, self._lease_s)
        known: set[LaneRun] = set()
        while True:
            await asyncio.sleep(self._lease_s / 3)
            if not await persist(self._bus, renewal, self.worker):
                log.warning("the lease was lost", extra={"worker": self.worker})
            running = list(self._runs.values())
            for run in running:
                if run in known:
                    await run.check_owner()
            known = set(running)

    async def _go_home(self, helpers: list[asyncio.Task[None]]) -> None:
        for task in [*helpers, *self._runs]:
            task.cancel()
        if helpers or self._runs:
            await asyncio.wait([*helpers, *self._runs], timeout=LEAVE_MAX_S)
        try:
            async with asyncio.timeout(LEAVE_MAX_S):
                await self._bus.acall(Leave(self.worker))
        except (Magent2Error, TimeoutError) as error:
            log.warning("left without a word; the lease will run out", extra={"error": str(error)})
