"""The long-running worker: claims lanes of its agents and runs many at a time, until it is told to go home."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from magent2 import __version__
from magent2.bus.interface import Engine
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, CLAIM_LIMIT_MAX, Claim, Leave, Renew
from magent2.bus.records import ClaimedLane, ClaimResult, Record
from magent2.bus.retry import persist
from magent2.bus.watch import Watch
from magent2.errors import InvalidInput, LimitError, Magent2Error
from magent2.sessions.approvals import APPROVAL_MAX_S, now_ms
from magent2.sessions.history import Histories
from magent2.telemetry.runs import Observer
from magent2.worker.control_feed import lanes_of, takes_steers
from magent2.worker.lane_run import RUN_MAX_S, LaneRun
from magent2.worker.served_agents import Roll, Runners, RunnersNow
from magent2.worker.settlement import DELAYED, Outcome
from magent2.worker.shared import Shared

log = logging.getLogger(__name__)

CONCURRENCY = 256  # lanes at a time
LEASE_S = 15.0
TEAM_LOOK_S = 0.5  # between two looks whether others are to be served
SWEEP_S = 30.0  # it looks again this often, woken or not
DRAIN_S = 30.0
LEAVE_MAX_S = 5.0  # for giving lanes back and saying goodbye to a bus that may not answer


def new_worker_id() -> str:
    return f"worker-{uuid.uuid4().hex[:12]}"


class WorkerService:
    """Serves the mail of agents, each with its runner; who they are may change while it does.

    Order holds per lane, because a lane has one owner; lanes run side by side, up to `concurrency` of them. The service
    sleeps until mail or a command is published, a slot is free again, or something falls due.
    """

    def __init__(
        self,
        bus: Engine,
        runners: Runners | RunnersNow,
        *,
        concurrency: int = CONCURRENCY,
        lease_s: float = LEASE_S,
        run_max_s: float = RUN_MAX_S,
        worker: str | None = None,
        observer: Observer | None = None,
        release: str = __version__,
    ) -> None:
        self.worker = worker or new_worker_id()
        self._roll = Roll(bus, runners, self.worker)
        if not self._roll.agents:
            raise InvalidInput("a worker needs at least one agent to serve")
        if not 1 <= concurrency <= CLAIM_LIMIT_MAX:
            raise LimitError(f"concurrency must be between 1 and {CLAIM_LIMIT_MAX}, not {concurrency}")
        self.drain_s = DRAIN_S
        self.approval_max_s = APPROVAL_MAX_S
        self.now_ms: Callable[[], int] = now_ms  # the clock on the wall, which approvals expire by
        self.outcomes: Counter[Outcome] = Counter()
        self._observer = observer
        self._bus = bus
        self.concurrency = concurrency
        self.lease_s = lease_s
        self.run_max_s = run_max_s
        self._release = release
        self._controls = self._roll.controls
        self._steers = self._roll.steers
        self._unsorted = False  # the last claim left mail that lies in no lane yet
        self._runs: dict[asyncio.Task[Outcome], LaneRun] = {}
        self._by_lane: dict[tuple[str, str], LaneRun] = {}
        self._shared = Shared(Histories(bus), waits=(self._without_slot,))
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
            await self._roll.enlist()
            await self._work()
        finally:
            self._ended.set()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Claim nothing more; give runs so much time, hand the rest back, and leave."""
        if not self._draining:
            timeout_s = self.drain_s if timeout_s is None else timeout_s
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
            with self._bus.watch(self._roll.topics) as watch:
                helpers += [self._help(self._listen(watch)), self._help(self._renew())]
                helpers += [self._help(self._follow_team())] if self._roll.may_change else []
                await self._steers.begin()
                await self._sort_controls(await self._controls.begin())
                await self._serve(watch)
        finally:
            await self._go_home(helpers)

    async def _sort_controls(self, claims_max: int) -> None:
        """Before a lane is taken, every command that is already there lies in its lane."""
        for _ in range(claims_max):
            claims = await self._claim(0)
            if not claims.more:
                return

    async def _serve(self, watch: Watch) -> None:
        while not (self._draining and not self._runs):
            self._check()
            self._awake.clear()
            await self._call_roll(watch)
            wait_s = await self._look(watch)
            await self._sleep(wait_s)
        self._check()

    async def _call_roll(self, watch: Watch) -> None:
        """Before the next claim: take up who joined, let go of who left."""
        busy = {agent for agent, _ in self._by_lane}
        if self._roll.changed and not self._draining:
            await self._sort_controls(max(1, await self._roll.change(watch, busy)))  # one tells whom it serves
        elif self._roll.leaving:
            self._roll.let_go(watch, busy)

    async def _look(self, watch: Watch) -> float | None:
        """Take what there is; when the next thing falls due. What was read before the claim lies in its lane after."""
        commands = await self._controls.read()
        steered = lanes_of(await self._steers.read(watch))
        if commands and self._roll.leaving:  # sorts theirs too; the claim below says again whom it takes mail for
            await self._claim(0, (*self._roll.agents, *self._roll.leaving))
        room = 0 if self._draining else self._room()
        if self._controls.waiting or self._steers.waiting:
            self._awake.set()
        if not room and not commands and not steered and not self._unsorted:
            self._hungry = True
            self._steers.passed_on()
            return None
        claims = await self._claim(room)
        for lane in claims.lanes:
            self._start(lane)
        for record in commands:
            await self._pass_on(record)
        self._call(steered, claims.more)
        self._hungry = len(claims.lanes) == room
        if claims.more or (self._hungry and self._room()):
            self._awake.set()
        return claims.wait_s if room else None

    def _call(self, steered: set[tuple[str, str]], more: bool) -> None:
        """Tell runs that a steer has come; all of them, when mail was sorted that nobody had counted on."""
        called = list(self._by_lane) if self._unsorted else steered
        self._unsorted = more
        for lane in called:
            run = self._by_lane.get(lane)
            if run is not None:
                run.call()
        self._steers.passed_on()

    def _room(self) -> int:
        """Free slots. A run that comes back from a wait goes on at once, so there may be fewer than none."""
        return min(CLAIM_LIMIT_MAX, max(0, self.concurrency - len(self._runs) + self._waiting))

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

    async def _claim(self, limit: int, agents: tuple[str, ...] | None = None) -> ClaimResult:
        """The same claim is repeated until the bus answers, so that no lane is held without being known."""
        chosen = self._roll.agents if agents is None else agents[:AGENTS_PER_WORKER_MAX]
        claim = Claim(worker=self.worker, agents=chosen, limit=limit, lease_s=self.lease_s)
        begun = time.perf_counter()
        claims = await persist(self._bus, claim, self.worker)
        if self._observer is not None and self._observer.metrics is not None:
            self._observer.metrics.claimed(time.perf_counter() - begun)
        return claims

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- runs

    def _start(self, lane: ClaimedLane) -> None:
        runner = self._roll.runner_of(lane.owner.agent)
        run = LaneRun(
            self._bus,
            lane,
            runner,
            run_max_s=self.run_max_s,
            shared=self._shared,
            observer=self._observer,
            release=self._release,
            catch_up=self._steers.catch_up if takes_steers(runner) else None,
        )
        run.approvals.max_s, run.approvals.now_ms = self.approval_max_s, self.now_ms
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
            changed = await watch.changed(None)
            self._controls.note(changed)
            self._steers.note(changed)
            self._awake.set()

    async def _follow_team(self) -> None:
        while True:
            await asyncio.sleep(TEAM_LOOK_S)
            if self._roll.look():
                self._awake.set()

    async def _renew(self) -> None:
        """Keep the lease. Runs that were there the last time are asked for: a lease may have been lost in between."""
        renewal = Renew(self.worker, self.lease_s)
        known: set[LaneRun] = set()
        while True:
            await asyncio.sleep(self.lease_s / 3)
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
