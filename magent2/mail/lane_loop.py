"""The lane loop: claims lanes, keeps their lease, and works on many lanes at a time until it is drained.

The loop decides when to claim, how many lanes to hold and when to stop. A `LaneHandler` decides whose mail is claimed
and what is done with it: runs of agents are one handler, deliveries of the relay are another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeAlias, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import REFUSALS
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, CLAIM_LIMIT_MAX, Claim, Later, Leave, Renew
from magent2.bus.records import ClaimedLane, ClaimResult, Record
from magent2.bus.retry import retry_while_unavailable
from magent2.bus.watch import Watch
from magent2.errors import Fenced, LimitError, Magent2Error
from magent2.mail.dead_letters import burial_forms

log = logging.getLogger(__name__)

SWEEP_S = 30.0  # the longest time between two claims, notified or not
LEAVE_MAX_S = 5.0  # for giving lanes back to a bus that may not answer

LaneKey: TypeAlias = tuple[str, str]  # agent and conversation
BackgroundWork: TypeAlias = Coroutine[Any, Any, None]
W = TypeVar("W")


class UnreadableMail(Exception):
    """A handler cannot read the first mail of a lane. The loop moves that mail to the dead letters."""

    def __init__(self, mail: Record, reason: str) -> None:
        super().__init__(reason)
        self.mail = mail
        self.reason = reason


class LaneHandler(ABC, Generic[W]):
    """Decides what a lane loop claims and does. `W` is the work on one claimed lane.

    The loop calls all methods on its event loop. An exception from any of them ends the loop, apart from
    `UnreadableMail` and `Fenced` in `work_on`. Methods that are not abstract do nothing by default.
    """

    @property
    @abstractmethod
    def agents(self) -> tuple[str, ...]:
        """The agents whose mail the next claim takes."""

    @property
    @abstractmethod
    def topics(self) -> Iterable[str]:
        """The topics to watch from the start."""

    @abstractmethod
    def create_work(self, lane: ClaimedLane) -> W:
        """Create the work on a lane that was just claimed."""

    @abstractmethod
    async def work_on(self, work: W) -> bool:
        """Process the first mail of the lane and give the lane up. Return whether the lane becomes due later.

        The crash rule is the handler's: a lane whose worker died is claimed again with a higher `attempt`.
        """

    def background(self) -> Sequence[BackgroundWork]:
        """Return what runs beside the loop for as long as it runs."""
        return ()

    async def start(self) -> None:
        """Prepare, before the first lane is claimed."""

    def topics_changed(self, topics: frozenset[str]) -> None:
        """Note that watched topics have changed; a claim follows."""

    async def before_claim(self, watch: Watch) -> bool:
        """Read what the claim depends on. Return whether a claim is needed even without a free slot."""
        return False

    async def after_claim(self, more: bool) -> None:
        """Act on what was read before the claim. `more`: the claim left mail that is not in its lane yet."""

    async def lease_renewed(self, running: Sequence[W]) -> None:
        """Check work that was running at this renewal and at the one before it."""

    def give_back(self, work: W) -> bool:
        """Ask work to give its lane back because the drain time is over. If it cannot, the loop cancels it."""
        return False


class LaneLoop(Generic[W]):
    """Works on the lanes of a handler's agents, up to `concurrency` lanes at a time.

    A lane has one owner, so its mail is processed in order. Each claim of a lane processes one message; then the lane
    queues behind the others that are ready. So a lane with much mail does not starve the rest.
    The loop sleeps until a watched topic changes, a slot is free again, or a lane becomes due.
    """

    def __init__(
        self,
        bus: Engine,
        handler: LaneHandler[W],
        *,
        worker: str,
        concurrency: int,
        lease_s: float,
        drain_s: float,
        on_claim: Callable[[float], None] | None = None,
    ) -> None:
        if not 1 <= concurrency <= CLAIM_LIMIT_MAX:
            raise LimitError(f"concurrency must be between 1 and {CLAIM_LIMIT_MAX}, not {concurrency}")
        self.worker = worker
        self.concurrency = concurrency
        self.drain_s = drain_s
        self.draining = False
        self._bus = bus
        self._handler = handler
        self.lease_s = lease_s
        self._on_claim = on_claim  # is told how long each claim took, in seconds
        self._running: dict[asyncio.Task[bool], tuple[ClaimedLane, W]] = {}
        self._by_lane: dict[LaneKey, W] = {}
        self._waiting = 0  # lanes whose work waits for something else and has released its slot
        self._slots_full = False  # the last claim filled every slot, so more lanes may be ready
        self._has_claimed = False
        self._handing_back = False
        self._awake = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def by_lane(self) -> Mapping[LaneKey, W]:
        """The work in progress, by agent and conversation."""
        return self._by_lane

    async def run(self) -> None:
        """Work until drained or cancelled. Raises what a handler or the bus could not recover from."""
        background: list[asyncio.Task[None]] = []
        try:
            with self._bus.watch(self._handler.topics) as watch:
                for work in (self._listen(watch), self._renew_lease(), *self._handler.background()):
                    task = asyncio.create_task(work)
                    task.add_done_callback(self._background_ended)
                    background.append(task)
                await self._handler.start()
                while self._running or not self.draining:
                    self._raise_failure()
                    self._awake.clear()
                    wait_s = await self._claim_lanes(watch)
                    await self._sleep(wait_s)
                self._raise_failure()
        finally:
            await self._leave(background)
            self._ended.set()

    def begin_drain(self, timeout_s: float | None = None) -> None:
        """Claim nothing more. After `timeout_s`, work that is still running is asked to give its lane back."""
        if self.draining:
            return
        self.draining = True
        timeout_s = self.drain_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        loop.call_later(timeout_s, self._hand_back)
        loop.call_later(timeout_s + LEAVE_MAX_S, self._cancel_all)
        self.wake()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Begin to drain, and wait until `run` has ended."""
        self.begin_drain(timeout_s)
        await self._ended.wait()

    def wake(self) -> None:
        """Claim again soon."""
        self._awake.set()

    @asynccontextmanager
    async def slot_released(self) -> AsyncIterator[None]:
        """Let another lane use the slot of the calling work while it waits for something else."""
        self._waiting += 1
        self.wake()
        try:
            yield
        finally:
            self._waiting -= 1

    async def claim(self, limit: int, agents: Sequence[str] | None = None) -> ClaimResult:
        """Claim up to `limit` lanes; a claim of 0 only puts mail into lanes and says which agents are served.

        `retry_while_unavailable` repeats the same claim, with the same nonce, until the bus answers. The bus then
        returns the lanes of the first try again. With a new nonce, lanes of a claim whose reply was lost would be held
        and never worked on.
        """
        names = self._handler.agents if agents is None else tuple(agents)[:AGENTS_PER_WORKER_MAX]
        claim = Claim(worker=self.worker, agents=names, limit=limit, lease_s=self.lease_s)
        begun = time.perf_counter()
        result = await retry_while_unavailable(self._bus, claim, self.worker)
        self._has_claimed = True
        if self._on_claim is not None:
            self._on_claim(time.perf_counter() - begun)
        return result

    # --- claiming

    async def _claim_lanes(self, watch: Watch) -> float | None:
        """Claim as many lanes as there are free slots, and start on them. Return when the next lane becomes due.

        What the handler reads before the claim is in its lane after the claim, because a claim puts new mail into
        lanes first. So the handler may act on it in `after_claim`.
        """
        needed = await self._handler.before_claim(watch)
        slots = 0 if self.draining else self._free_slots()
        if not self._handler.agents or not (slots or needed):
            self._slots_full = True
            await self._handler.after_claim(more=False)
            return None
        result = await self.claim(slots)
        for lane in result.lanes:
            self._start(lane)
        await self._handler.after_claim(result.more)
        self._slots_full = len(result.lanes) == slots
        if result.more or (self._slots_full and self._free_slots()):
            self.wake()
        return result.wait_s if slots else None

    def _free_slots(self) -> int:
        """Free slots. Work that returns from a wait goes on at once, so more work may run than there are slots."""
        return min(CLAIM_LIMIT_MAX, max(0, self.concurrency - len(self._running) + self._waiting))

    async def _sleep(self, wait_s: float | None) -> None:
        delay = SWEEP_S if wait_s is None else min(wait_s, SWEEP_S)
        timer = asyncio.get_running_loop().call_later(delay, self.wake)
        await self._awake.wait()
        timer.cancel()

    # --- working

    def _start(self, lane: ClaimedLane) -> None:
        work = self._handler.create_work(lane)
        task = asyncio.create_task(self._work_on(lane, work), name=f"lane {lane.owner.agent}")
        self._running[task] = lane, work
        self._by_lane[lane.owner.agent, lane.owner.conversation] = work
        task.add_done_callback(self._lane_ended)
        if self._handing_back:
            self._give_back(task, work)

    async def _work_on(self, lane: ClaimedLane, work: W) -> bool:
        try:
            try:
                return await self._handler.work_on(work)
            except UnreadableMail as error:
                await self._bury(lane, error)
        except Fenced:
            log.warning("another worker has taken over a lane", extra={"owner": lane.owner.token})
        return False

    async def _bury(self, lane: ClaimedLane, error: UnreadableMail) -> None:
        """Move mail to the dead letters, or park the lane if the bus refuses every form of the dead letter."""
        facts = {"topic": error.mail.topic, "seq": error.mail.seq, "reason": error.reason}
        log.warning("mail cannot be read", extra=facts)
        for burial in burial_forms(lane.owner, error.mail, error.reason, lane.attempt):
            try:
                await retry_while_unavailable(self._bus, burial, self.worker)
            except REFUSALS as refusal:
                log.warning("a dead letter was refused", extra={**facts, "error": str(refusal)})
            else:
                return
        await retry_while_unavailable(self._bus, Later(owner=lane.owner, delay_s=None), self.worker)

    def _lane_ended(self, task: asyncio.Task[bool]) -> None:
        lane, work = self._running.pop(task)
        key = lane.owner.agent, lane.owner.conversation
        if self._by_lane.get(key) is work:  # a lane that was lost may have been claimed again meanwhile
            del self._by_lane[key]
        due_later = False
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._fail(error)
            due_later = error is None and task.result()
        # A lane that is ready again notifies the watch. One that becomes due later does not: only the next claim
        # says how long to sleep for it.
        if due_later or self._slots_full or self.draining:
            self.wake()

    def _hand_back(self) -> None:
        self._handing_back = True
        for task, (_, work) in list(self._running.items()):
            self._give_back(task, work)

    def _give_back(self, task: asyncio.Task[bool], work: W) -> None:
        if not self._handler.give_back(work):
            task.cancel()

    def _cancel_all(self) -> None:
        """The bus does not even take lanes back. Other workers get them when the lease has expired."""
        for task in self._running:
            task.cancel()

    # --- in the background

    async def _listen(self, watch: Watch) -> None:
        while True:
            self._handler.topics_changed(await watch.changed(None))
            self.wake()

    async def _renew_lease(self) -> None:
        """Renew at a third of the lease, so that two renewals may be late before the lanes go to others.

        A lease may have been lost between two renewals, and its lanes claimed by others. Work that ran at both is
        checked for that. Younger work was claimed after the loss, or is checked the next time.
        """
        known: set[asyncio.Task[bool]] = set()
        while True:
            await asyncio.sleep(self.lease_s / 3)
            if not self._has_claimed:
                continue
            await renew_lease(self._bus, self.worker, self.lease_s)
            running = dict(self._running)
            await self._handler.lease_renewed([work for task, (_, work) in running.items() if task in known])
            known = set(running)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- ending

    def _fail(self, error: BaseException) -> None:
        """End the loop with the first error of work or of a background task. The lanes go back to others."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _leave(self, background: list[asyncio.Task[None]]) -> None:
        tasks = [*background, *self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_MAX_S)
        await leave_bus(self._bus, self.worker)


async def renew_lease(bus: Engine, worker: str, lease_s: float) -> None:
    """Renew the lease of a worker. A lease that was lost is only logged: the bus fences the worker's lanes."""
    if not await retry_while_unavailable(bus, Renew(worker, lease_s), worker):
        log.warning("the lease was lost", extra={"worker": worker})


async def leave_bus(bus: Engine, worker: str) -> None:
    """Give all lanes of a worker back at once, so that other workers need not wait until its lease has expired."""
    try:
        async with asyncio.timeout(LEAVE_MAX_S):
            await bus.acall(Leave(worker))
    except (Magent2Error, TimeoutError) as error:
        log.warning("could not give lanes back; they are free when the lease has expired", extra={"error": str(error)})
