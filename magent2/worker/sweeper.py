"""The sweeper: applies the retention policy in the background, in one worker at a time.

The right to sweep is a lane of the bus. It belongs to an agent name that is internal to the runtime, and its one piece
of mail is never settled. So the lease and the fencing of lanes decide who sweeps: when a sweep ends, its owner gives
the lane back until the next one is due; when a worker dies, another one claims the lane and goes on where it stopped.

A session that is not to be stored has mail to the same agent, written with its message. Its lane becomes due from time
to time until the run has ended; then the session is deleted. Usually the gateway has deleted it before, when the client
had the answer: the mail is for a client that left, and for a gateway that died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from magent2.background import keep_running, log_error
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import Append, Lanes, LastSeqIs, Later, Operation, SetHead, Settle
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.retention import RetentionPolicy
from magent2.bus.retry import PERMANENT_ERRORS, retry_call, retry_while_unavailable
from magent2.errors import ConditionFailed, Fenced
from magent2.failures import Failure
from magent2.mail.headers import RUN_ENVELOPE, RUN_STATUS, RUNNING
from magent2.mail.lane_loop import LaneHandler, LaneLoop, UnreadableMail
from magent2.mail.registration import register_agent
from magent2.models.address import SWEEP_LANE, SWEEPER, chat_topic, stream_topic, sweep_topic
from magent2.sessions.store import FORGET_AFTER, delete_session
from magent2.sessions.sweep import Sweep, SweepResult

if TYPE_CHECKING:
    from magent2.telemetry.metrics import RunMetrics

log = logging.getLogger(__name__)

RECORD_EVERY_S = 1.0  # time between two records of the progress, each of which fails if another worker took the lane
STEP_PAUSE_MAX_S = 1.0  # after one step
RETRY_S = 60.0  # after a sweep that failed
FORGET_CHECK_S = 60.0  # between two looks at a session that is not to be stored
FORGET_AFTER_S = 60.0  # after the end of its run, for a client that is still reading
FULL_SWEEP_S = 86_400.0  # time between two sweeps that visit every conversation, not only those that were active
# A conversation is visited while it may still have drafts that became old enough after the last sweep began. The margin
# covers an append that was stamped before the sweep began and committed after it.
MARGIN_S = 60.0

R = TypeVar("R")


class RetryingLog(Log):
    """The log of a sweep: each operation is repeated until the bus answers. All of them may be."""

    __slots__ = ("who",)

    def __init__(self, bus: Engine, who: str) -> None:
        super().__init__(bus)
        self.who = who

    async def run(self, operation: Operation[R]) -> R:
        return await retry_while_unavailable(self.bus, operation, self.who)


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The head of the progress topic: the last sweep that ended and the one that has begun. Times are the log's.

    `begun_ms` is None between two sweeps. `before` is where an interrupted sweep goes on.
    """

    ended_ms: int | None = None  # when the last sweep that ended had begun
    full_ms: int | None = None  # the same of the last sweep that visited every conversation
    begun_ms: int | None = None
    full: bool = False
    before: tuple[int, str] | None = None

    @classmethod
    def of(cls, head: Mapping[str, object]) -> SweepProgress:
        before = head.get("before")
        return cls(
            _time(head.get("ended_ms")),
            _time(head.get("full_ms")),
            _time(head.get("begun_ms")),
            head.get("full") is True,
            (int(before[0]), str(before[1])) if isinstance(before, list) else None,
        )

    def begin(self, now_ms: int) -> SweepProgress:
        """Begin a sweep: a full one if the last is a day old, or if the clock was set back since."""
        ended, full_ms = self.ended_ms, self.full_ms
        full = ended is None or full_ms is None or now_ms < ended or now_ms - full_ms >= FULL_SWEEP_S * 1000
        return SweepProgress(ended, full_ms, now_ms, full)

    def since_ms(self, policy: RetentionPolicy) -> int:
        """Return the last activity from which on a conversation is visited."""
        if self.full or self.ended_ms is None:
            return 0
        return self.ended_ms - round(((policy.tokens_after_s or 0) + MARGIN_S) * 1000)

    def end(self) -> SweepProgress:
        return SweepProgress(self.begun_ms, self.begun_ms if self.full else self.full_ms)

    def at(self, before: tuple[int, str] | None) -> SweepProgress:
        return SweepProgress(self.ended_ms, self.full_ms, self.begun_ms, self.full, before)

    def head(self) -> tuple[SetHead, ...]:
        return (SetHead(sweep_topic(), asdict(self)),)


def _time(value: object) -> int | None:
    return value if isinstance(value, int) else None


def sweep_mail(number: int) -> NewRecord:
    """Return the mail that keeps the lane of the sweep in existence."""
    return NewRecord(chat_topic(SWEEPER), {"conversation_id": SWEEP_LANE, "sender": "system"}, id=f"sweep-{number}")


class Sweeper(LaneHandler[ClaimedLane]):
    """Sweeps the log of a bus whenever a sweep is due and no other worker does. `policy` is asked before each sweep."""

    def __init__(
        self,
        bus: Engine,
        policy: Callable[[], RetentionPolicy],
        *,
        worker: str,
        lease_s: float,
        metrics: RunMetrics | None = None,
    ) -> None:
        self.worker = worker
        self._bus = bus
        self._policy = policy
        self._metrics = metrics
        self._lane_loop = LaneLoop(bus, self, worker=self.worker, concurrency=1, lease_s=lease_s, drain_s=0.0)

    async def run(self) -> None:
        """Sweep until cancelled. Another worker goes on with a sweep that is cut off."""
        await self._lane_loop.run()

    @property
    def agents(self) -> tuple[str, ...]:
        return (SWEEPER,)

    @property
    def topics(self) -> tuple[str, ...]:
        return (chat_topic(SWEEPER),)

    async def start(self) -> None:
        """Make sure that the lane exists. It has mail for ever, unless a person has deleted it."""
        await retry_call(lambda: register_agent(Log(self._bus), SWEEPER, {"hidden": True}), self.worker)
        await self._lane_loop.claim(0)  # puts mail that was sent before into the lane
        await retry_call(self._ensure_mail, self.worker)

    async def _ensure_mail(self) -> None:
        inbox = chat_topic(SWEEPER)
        if any(lane.conversation == SWEEP_LANE for lane in await self._bus.acall(Lanes(SWEEPER))):
            return
        (info,) = await Log(self._bus).describe(inbox)
        try:
            await self._bus.acall(Append(records=(sweep_mail(info.last),), conditions=(LastSeqIs(inbox, info.last),)))
        except ConditionFailed:  # another worker was quicker
            return

    def create_work(self, lane: ClaimedLane) -> ClaimedLane:
        return lane

    async def work_on(self, work: ClaimedLane) -> bool:
        """Sweep, and give the lane back until the next sweep is due. A sweep that fails is continued later."""
        if work.owner.conversation != SWEEP_LANE and work.mail and FORGET_AFTER in work.mail[0].payload:
            await self._forget(work)
            return True
        if work.owner.conversation != SWEEP_LANE:
            raise UnreadableMail(work.mail[0], "this agent is internal: it sweeps the log and answers no messages")
        try:
            await self._sweep(LaneWriter(self._bus, work.owner))
        except (Fenced, *PERMANENT_ERRORS):
            raise
        except Exception as error:  # noqa: BLE001  the sweep must go on, whatever an engine raises
            log_error("a sweep has failed; it is continued later", error, worker=self.worker)
            later = Later(owner=work.owner, delay_s=RETRY_S, refund=True)
            await retry_while_unavailable(self._bus, later, self.worker)
        return True

    async def _forget(self, work: ClaimedLane) -> None:
        """Delete the session of the lane if the run of its message has ended, else look again later."""
        log, session_id = RetryingLog(self._bus, self.worker), work.owner.conversation
        (info,) = await log.describe(stream_topic(session_id))
        if info.deleted:
            await retry_while_unavailable(self._bus, Settle(owner=work.owner, mail=(work.mail[0].ref,)), self.worker)
            return
        ended = info.head.get(RUN_STATUS) not in (None, RUNNING)
        of_message = info.head.get(RUN_ENVELOPE) == work.mail[0].payload[FORGET_AFTER]
        if ended and of_message and time.time() * 1000 - info.active_ms >= FORGET_AFTER_S * 1000:
            await delete_session(log, session_id, scrub=False)  # with its lanes, this one too
            return
        later = Later(owner=work.owner, delay_s=FORGET_CHECK_S, refund=True)
        await retry_while_unavailable(self._bus, later, self.worker)

    def burials(self, lane: ClaimedLane, work: ClaimedLane | None, failure: Failure) -> Iterable[Settle]:
        """Replace the mail of the sweep instead of giving it up: without mail there would be no further sweep."""
        if lane.owner.conversation != SWEEP_LANE or not lane.mail:
            return super().burials(lane, work, failure)
        mail = lane.mail[0]
        return (Settle(owner=lane.owner, mail=(mail.ref,), records=(sweep_mail(mail.seq),)),)

    async def _sweep(self, writer: LaneWriter) -> None:
        policy, begun = self._policy(), time.perf_counter()
        progress = await self._begin(writer)
        swept = Sweep(
            RetryingLog(self._bus, self.worker),
            policy,
            progress.begun_ms or 0,
            progress.since_ms(policy),
            progress.before,
        )
        loop = asyncio.get_running_loop()
        step_begun = recorded = loop.time()
        async for _ in swept.steps():
            # A pause as long as the step leaves half of the time to others, however slow the store is.
            await asyncio.sleep(min(loop.time() - step_begun, STEP_PAUSE_MAX_S))
            step_begun = loop.time()
            if step_begun - recorded >= RECORD_EVERY_S:
                await writer.commit(heads=progress.at(swept.before).head())
                recorded = loop.time()
        await writer.later(policy.sweep_every_s, refund=True, heads=progress.end().head())
        self._report(swept.result, progress.full, time.perf_counter() - begun)

    async def _begin(self, writer: LaneWriter) -> SweepProgress:
        """Return the progress of an interrupted sweep, or begin a new one at the time of the log."""
        topic = sweep_topic()
        (info,) = await RetryingLog(self._bus, self.worker).describe(topic)
        progress = SweepProgress.of(info.head)
        if progress.begun_ms is not None:
            return progress
        # Setting a head stamps the topic with the time of the log. The clock of this worker may differ from it.
        await writer.commit(heads=progress.head())
        (info,) = await RetryingLog(self._bus, self.worker).describe(topic)
        return progress.begin(info.active_ms)

    def _report(self, result: SweepResult, full: bool, taken_s: float) -> None:
        counts = asdict(result)
        log.info("sweep finished", extra={"full": full, "taken_s": round(taken_s, 3), **counts})
        if self._metrics is not None:
            visited = counts.pop("visited")
            self._metrics.count_sweep(visited, counts, taken_s)


async def keep_sweeping(
    bus: Engine,
    policy: Callable[[], RetentionPolicy],
    worker: str,
    lease_s: float,
    metrics: RunMetrics | None = None,
) -> None:
    """Run the sweeper of a worker until cancelled, and start it again after a failure.

    It has a lease of its own, because a lease says which agents its worker claims.
    """
    name = f"sweeper-{worker}"
    await keep_running(
        name, lambda: Sweeper(bus, policy, worker=name, lease_s=lease_s, metrics=metrics).run(), fatal=PERMANENT_ERRORS
    )
