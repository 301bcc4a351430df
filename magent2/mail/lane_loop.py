"""The lane loop: claims lanes, keeps their lease, and works on many lanes at a time until it is drained.

The loop decides when to claim, how many lanes to hold and when to stop. A `LaneHandler` decides whose mail is claimed
and what is done with it: runs of agents are one handler, deliveries of the relay are another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeAlias, TypeVar

from magent2.background import (
    STEP_RETRY_FIRST_S,
    STEP_RETRY_MAX_S,
    keep_running,
    log_error,
    raise_if_cancelled,
    start_task,
)
from magent2.bus.interface import Engine
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, CLAIM_LIMIT_MAX, Claim, Later, Leave, Renew, Settle
from magent2.bus.records import ClaimedLane, ClaimResult, Record
from magent2.bus.retry import PERMANENT_ERRORS, retry_call, retry_while_unavailable
from magent2.bus.watch import Watch
from magent2.errors import Fenced, LimitError
from magent2.failures import Failure
from magent2.mail.dead_letters import burial_forms

log = logging.getLogger(__name__)

SWEEP_S = 30.0  # the longest time between two claims, notified or not
LEAVE_MAX_S = 5.0  # for giving lanes back to a bus that may not answer
LANE_FAILURES_MAX = 8  # unexpected errors of one lane in a row; then its first mail becomes a dead letter
LANE_RETRY_FIRST_S, LANE_RETRY_MAX_S = 0.25, 30.0  # the delay doubles with every failure
FAILING_LANES_MAX = 10_000  # lanes whose failures are counted
REASON_MAX_CHARS = 500  # of an error, in a dead letter or an outbox

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

    The loop calls all methods on its event loop. An exception never reaches another lane:
    - In `create_work` and `work_on` it fails that lane only. The lane is retried later, and after `LANE_FAILURES_MAX`
      failures in a row its first mail becomes a dead letter. `UnreadableMail` makes it a dead letter at once, and
      `Fenced` means that the lane has another owner.
    - In `before_claim`, `after_claim` and `topics_changed` it is logged, and the loop continues with the next round.
    - In `start` it ends the loop, and so does an error that only a person can fix (`PERMANENT_ERRORS`) anywhere.
    Methods that are not abstract do nothing by default.
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

    def burials(self, lane: ClaimedLane, work: W | None, failure: Failure) -> Iterable[Settle]:
        """Return the settles that give up the first mail of a lane which keeps failing, to be tried in turn.

        `work` is `None` if it could not be created.
        """
        return burial_forms(lane.owner, lane.mail[0], failure.cause, lane.attempt) if lane.mail else ()

    def background(self) -> Sequence[BackgroundWork]:
        """Return what runs beside the loop for as long as it runs. The error of one is logged and ends only that one.

        Make it a loop with `keep_running`, which continues after errors.
        """
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
        """Check work that was running at this renewal and at the one before it.

        Runs beside the renewals, which do not wait for it, and never twice at a time.
        """

    def give_back(self, work: W) -> bool:
        """Ask work to give its lane back because the drain time is over. If it cannot, the loop cancels it."""
        return False


class LaneLoop(Generic[W]):
    """Works on the lanes of a handler's agents, up to `concurrency` lanes at a time.

    A lane has one owner, so its mail is processed in order. Each claim of a lane processes one message; then the lane
    queues behind the others that are ready. So a lane with much mail does not starve the rest.
    Ready lanes of different principals are claimed in turn, and one principal uses at most `principal_share` of the
    slots (`Claim.has_room`). So neither do many lanes of one principal, even if the work on them is slow.
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
        principal_share: float = 1.0,
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
        self._principal_share = principal_share
        self._on_claim = on_claim  # is told how long each claim took, in seconds
        self._running: dict[asyncio.Task[bool], tuple[ClaimedLane, W | None]] = {}
        self._by_lane: dict[LaneKey, W] = {}
        self._waiting = 0  # lanes whose work waits for something else and has released its slot
        self._slots: Counter[str] = Counter()  # in use, by principal; without those of work that waits
        self._lanes_left = False  # the last claim filled every slot or a share, so more lanes may be ready
        self._has_claimed = False
        self._handing_back = False
        self._failures: dict[LaneKey, int] = {}  # unexpected errors in a row, of lanes that failed last time
        self._failed_rounds = 0  # in a row
        self._background: set[asyncio.Task[None]] = set()
        self._known: set[asyncio.Task[bool]] = set()  # work that was running at the last renewal
        self._owner_check: asyncio.Task[None] | None = None
        self._rounds: asyncio.Timeout | None = None  # ends the rounds some time after the drain began
        self._awake = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def by_lane(self) -> Mapping[LaneKey, W]:
        """The work in progress, by agent and conversation."""
        return self._by_lane

    async def run(self) -> None:
        """Work until drained or cancelled. Raises what `start` raises, and errors that only a person can fix."""
        try:
            with self._bus.watch(self._handler.topics) as watch:
                for work in (
                    keep_running(f"{self.worker} watch", lambda: self._listen(watch), fatal=PERMANENT_ERRORS),
                    keep_running(f"{self.worker} lease", self._renew_lease, fatal=PERMANENT_ERRORS),
                    *self._handler.background(),
                ):
                    task = start_task(work, f"{self.worker} background", self._background)
                    task.add_done_callback(self._background_ended)
                await self._handler.start()
                await self._run_rounds(watch)
                self._raise_failure()
        finally:
            await self._leave()
            self._ended.set()

    async def _run_rounds(self, watch: Watch) -> None:
        """Claim and work until the loop is drained. A claim that the bus does not answer must not delay the end."""
        rounds = asyncio.timeout(None)
        try:
            async with rounds:
                self._rounds = rounds
                while self._running or not self.draining:
                    self._raise_failure()
                    self._awake.clear()
                    wait_s = await self._run_round(watch)
                    await self._sleep(wait_s)
        except TimeoutError:
            if not rounds.expired():
                raise
            log.warning("the drain ended without a claim that was under way", extra={"worker": self.worker})
        finally:
            self._rounds = None

    def begin_drain(self, timeout_s: float | None = None) -> None:
        """Claim nothing more. After `timeout_s`, work that is still running is asked to give its lane back."""
        if self.draining:
            return
        self.draining = True
        timeout_s = self.drain_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        loop.call_later(timeout_s, self._hand_back)
        if self._rounds is not None:
            self._rounds.reschedule(loop.time() + timeout_s + 2 * LEAVE_MAX_S)
        self.wake()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Begin to drain, and wait until `run` has ended."""
        self.begin_drain(timeout_s)
        await self._ended.wait()

    def wake(self) -> None:
        """Claim again soon."""
        self._awake.set()

    @asynccontextmanager
    async def slot_released(self, principal: str) -> AsyncIterator[None]:
        """Let another lane use the slot of the calling work, a lane of this principal, while it waits.

        The slot does not count for the principal meanwhile: the work may wait for another lane of the same principal.
        """
        self._waiting += 1
        self._count_slots(principal, -1)
        self.wake()
        try:
            yield
        finally:
            self._waiting -= 1
            self._count_slots(principal, 1)

    async def claim(self, limit: int, agents: Sequence[str] | None = None) -> ClaimResult:
        """Claim up to `limit` lanes; a claim of 0 only puts mail into lanes and says which agents are served.

        The same claim, with the same nonce, is repeated until the bus answers, also after an unexpected error. The bus
        then returns the lanes of the first try again. With a new nonce, lanes of a claim whose reply was lost would be
        held and never worked on.
        """
        names = self._handler.agents if agents is None else tuple(agents)[:AGENTS_PER_WORKER_MAX]
        claim = Claim(
            worker=self.worker,
            agents=names,
            limit=limit,
            lease_s=self.lease_s,
            share=self._principal_share,
            slots={principal: slots for principal, slots in self._slots.items() if principal and slots > 0},
        )
        begun = time.perf_counter()
        result = await retry_call(lambda: self._bus.acall(claim), self.worker, unexpected=True)
        self._has_claimed = True
        if self._on_claim is not None:
            self._on_claim(time.perf_counter() - begun)
        return result

    # --- claiming

    async def _run_round(self, watch: Watch) -> float | None:
        """Claim lanes. After an error, pause: the next round reads what this one did not come to."""
        try:
            wait_s = await self._claim_lanes(watch)
        except PERMANENT_ERRORS:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the last handler
            raise_if_cancelled(error)
            pause_s = min(STEP_RETRY_FIRST_S * 2**self._failed_rounds, STEP_RETRY_MAX_S)
            self._failed_rounds += 1
            log_error("a round of the lane loop failed; it continues", error, worker=self.worker, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            return 0.0
        self._failed_rounds = 0
        return wait_s

    async def _claim_lanes(self, watch: Watch) -> float | None:
        """Claim as many lanes as there are free slots, and start on them. Return when the next lane becomes due.

        What the handler reads before the claim is in its lane after the claim, because a claim puts new mail into
        lanes first. So the handler may act on it in `after_claim`.
        """
        needed = await self._handler.before_claim(watch)
        slots = 0 if self.draining else self._free_slots()
        if not self._handler.agents or not (slots or needed):
            self._lanes_left = True
            await self._handler.after_claim(more=False)
            return None
        result = await self.claim(slots)
        for lane in result.lanes:
            self._start(lane)
        await self._handler.after_claim(result.more)
        slots_full = len(result.lanes) == slots
        self._lanes_left = slots_full or result.over_share
        if result.more or (slots_full and self._free_slots()):
            self.wake()
        return result.wait_s if slots else None

    def _free_slots(self) -> int:
        """Free slots. Work that returns from a wait goes on at once, so more work may run than there are slots."""
        return min(CLAIM_LIMIT_MAX, max(0, self.concurrency - len(self._running) + self._waiting))

    def _count_slots(self, principal: str, change: int) -> None:
        self._slots[principal] += change
        if not self._slots[principal]:
            del self._slots[principal]

    async def _sleep(self, wait_s: float | None) -> None:
        delay = SWEEP_S if wait_s is None else min(wait_s, SWEEP_S)
        timer = asyncio.get_running_loop().call_later(delay, self.wake)
        await self._awake.wait()
        timer.cancel()

    # --- working

    def _start(self, lane: ClaimedLane) -> None:
        work: W | None = None
        try:
            work = self._handler.create_work(lane)
        except Exception as error:  # noqa: BLE001  any error of a handler fails its lane only
            steps = self._fail_lane(lane, None, error)
        else:
            steps = self._work_on(lane, work)
            self._by_lane[_key(lane)] = work
        task = asyncio.create_task(steps, name=f"lane {lane.owner.agent}")
        self._running[task] = lane, work
        self._count_slots(lane.principal, 1)
        task.add_done_callback(self._lane_ended)
        if self._handing_back:
            self._give_back(task, work)

    async def _work_on(self, lane: ClaimedLane, work: W) -> bool:
        try:
            due_later = await self._handler.work_on(work)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the last handler
            raise_if_cancelled(error)
            return await self._fail_lane(lane, work, error)
        self._failures.pop(_key(lane), None)
        return due_later

    async def _fail_lane(self, lane: ClaimedLane, work: W | None, error: BaseException) -> bool:
        """Give up a lane whose work raised: retry it later, or give up its first mail. Return whether it is due later.

        Only the lane fails. An error that a person has to fix ends the loop: no other lane would work either.
        """
        if isinstance(error, PERMANENT_ERRORS):
            raise error
        try:
            if isinstance(error, Fenced):
                raise error
            if isinstance(error, UnreadableMail):
                await self._bury(lane, burial_forms(lane.owner, error.mail, error.reason, lane.attempt), error.reason)
                return False
            failures = self._count_failure(lane)
            failure = Failure.of(error, "the run failed", lane.owner.token, failures)
            facts = {"agent": lane.owner.agent, "conversation_id": lane.owner.conversation, "failures": failures}
            log_error("the work on a lane failed", error, failure_id=failure.id, **facts)
            if failures < LANE_FAILURES_MAX:
                delay_s = min(LANE_RETRY_FIRST_S * 2 ** (failures - 1), LANE_RETRY_MAX_S)
                if any(record.topic.startswith("control:") for record in lane.mail):
                    await asyncio.sleep(delay_s)  # a lane with control mail is ready at once, whatever the delay
                await self._release(lane, delay_s)
                return True
            final = failure.because(f"gave up after {failures} failures")
            await self._bury(lane, self._burials(lane, work, final), final.cause)
        except Fenced:
            log.warning("another worker has taken over a lane", extra={"owner": lane.owner.token})
        self._failures.pop(_key(lane), None)
        return False

    def _count_failure(self, lane: ClaimedLane) -> int:
        failures = self._failures.pop(_key(lane), 0) + 1
        self._failures[_key(lane)] = failures
        if len(self._failures) > FAILING_LANES_MAX:
            del self._failures[next(iter(self._failures))]  # the lane that has not failed for the longest time
        return failures

    def _burials(self, lane: ClaimedLane, work: W | None, failure: Failure) -> Iterable[Settle]:
        try:
            return tuple(self._handler.burials(lane, work, failure))
        except Exception as error:  # noqa: BLE001  the mail becomes a dead letter, though its conversation is not told
            log_error("the end of failed work cannot be reported", error, owner=lane.owner.token)
            return LaneHandler.burials(self._handler, lane, work, failure)

    async def _bury(self, lane: ClaimedLane, burials: Iterable[Settle], reason: str) -> None:
        """Give up the first mail of a lane, or park the lane if the bus takes none of the settles."""
        facts = {"agent": lane.owner.agent, "conversation_id": lane.owner.conversation, "reason": reason}
        log.warning("mail becomes a dead letter", extra=facts)
        for burial in burials:
            try:
                await retry_while_unavailable(self._bus, burial, self.worker)
            except (Fenced, *PERMANENT_ERRORS):
                raise
            except Exception as error:  # noqa: BLE001  the next form has less in it
                log_error("a dead letter was refused", error, **facts)
            else:
                return
        await self._release(lane, None)

    async def _release(self, lane: ClaimedLane, delay_s: float | None) -> None:
        """Give the lane back with its mail, and try until the bus has taken it.

        A lane that is not given back belongs to this worker for as long as its lease is renewed. If the last append of
        the work took effect although it raised, the bus recognises the owner and changes nothing.
        """
        later = Later(owner=lane.owner, delay_s=delay_s)
        await retry_call(lambda: self._bus.acall(later), self.worker, unexpected=True)

    def _lane_ended(self, task: asyncio.Task[bool]) -> None:
        lane, work = self._running.pop(task)
        self._count_slots(lane.principal, -1)
        key = _key(lane)
        if work is not None and self._by_lane.get(key) is work:
            del self._by_lane[key]  # a lane that was lost may have been claimed again meanwhile, with other work
        due_later = False
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._fail(error)
            due_later = error is None and task.result()
        # A lane that is ready again notifies the watch. One that becomes due later does not: only the next claim
        # says how long to sleep for it.
        if due_later or self._lanes_left or self.draining:
            self.wake()

    def _hand_back(self) -> None:
        self._handing_back = True
        for task, (_, work) in list(self._running.items()):
            self._give_back(task, work)
        # From now on: the loop may be late, and work that is asked and cancelled at once cannot give its lane back.
        asyncio.get_running_loop().call_later(LEAVE_MAX_S, self._cancel_all)

    def _give_back(self, task: asyncio.Task[bool], work: W | None) -> None:
        given_back = False
        try:
            given_back = work is not None and self._handler.give_back(work)
        except Exception as error:  # noqa: BLE001  the others have to be asked too
            log_error("work cannot give its lane back; it is cancelled", error, worker=self.worker)
        if not given_back:
            task.cancel()

    def _cancel_all(self) -> None:
        """The bus does not even take lanes back. Other workers get them when the lease has expired."""
        for task in self._running:
            task.cancel()

    # --- in the background

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), PERMANENT_ERRORS):
            self._fail(error)

    async def _listen(self, watch: Watch) -> None:
        try:
            self._handler.topics_changed(await watch.changed(None))
        finally:  # there may be mail to claim, also if the handler or the watch failed
            self.wake()

    async def _renew_lease(self) -> None:
        """Renew at a third of the lease, so that there is time to try again before the lanes go to others."""
        await asyncio.sleep(self.lease_s / 3)
        if self._has_claimed:
            await renew_lease(self._bus, self.worker, self.lease_s)
            self._check_owners()

    def _check_owners(self) -> None:
        """Start to check work that ran at this renewal and at the one before, unless the last check still runs.

        A lease may have been lost between two renewals, and its lanes claimed by others. Younger work was claimed after
        the loss, or is checked the next time. The renewal does not wait for the checks: on a slow store, those of many
        runs would take longer than the lease.
        """
        known, self._known = self._known, set(self._running)
        if self._owner_check is not None and not self._owner_check.done():
            return
        running = [work for task, (_, work) in self._running.items() if task in known and work is not None]
        if running:
            checks = self._handler.lease_renewed(running)
            self._owner_check = start_task(checks, f"{self.worker} owner checks", self._background)

    # --- ending

    def _fail(self, error: BaseException) -> None:
        """End the loop with the first error of work or of a background task. The lanes go back to others."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _leave(self) -> None:
        tasks = [*self._background, *self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_MAX_S)
        await leave_bus(self._bus, self.worker)


def _key(lane: ClaimedLane) -> LaneKey:
    return lane.owner.agent, lane.owner.conversation


RENEWAL_TRY_SHARE, RENEWAL_PAUSE_SHARE = 1 / 8, 1 / 60  # of the lease: for one try to renew it, and between two tries


async def renew_lease(bus: Engine, worker: str, lease_s: float) -> None:
    """Renew the lease of a worker, and try again until the bus answers.

    A reply that does not come must not use up the time of the next try, so every try has a time limit. A lease that was
    lost is only logged: the bus fences the worker's lanes.
    """
    renew, pause_s = Renew(worker, lease_s), RENEWAL_PAUSE_SHARE * lease_s
    while True:
        try:
            async with asyncio.timeout(RENEWAL_TRY_SHARE * lease_s):
                renewed = await bus.acall(renew)
        except PERMANENT_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the lease runs out if it is not renewed
            log_error("the lease was not renewed; it is tried again", error, worker=worker)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RENEWAL_TRY_SHARE * lease_s)
            continue
        if not renewed:
            log.warning("the lease was lost", extra={"worker": worker})
        return


async def leave_bus(bus: Engine, worker: str) -> None:
    """Give all lanes of a worker back at once, so that other workers need not wait until its lease has expired."""
    try:
        async with asyncio.timeout(LEAVE_MAX_S):
            await bus.acall(Leave(worker))
    except Exception as error:  # noqa: BLE001  this is the end of the worker, and must not hide why it ends
        log_error("could not give lanes back; they are free when the lease has expired", error, worker=worker)
