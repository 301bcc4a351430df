"""One claimed lane: decided first, then done, and ended by one append."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from magent2 import __version__
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import REFUSALS, LaneWriter
from magent2.bus.operations import Pending
from magent2.bus.records import ClaimedLane, NewRecord, Record
from magent2.bus.retry import retry_while_unavailable
from magent2.errors import Fenced, StorageError
from magent2.runner.context import RunContext
from magent2.sessions.history import HistoryCache
from magent2.telemetry.observation import ABANDONED, RunObserver
from magent2.worker.approvals import LaneApprovals
from magent2.worker.attempt import RunAttempt, RunServices
from magent2.worker.cancellation import InterruptReason, RunCancellation
from magent2.worker.control_feed import LaneSteers
from magent2.worker.lane_mail import LaneMail
from magent2.worker.lane_plan import STOP, RunPlan, StopCommand, UnreadablePlan, is_meant, plan_lane
from magent2.worker.retry import Bury, after_crashes, after_failure, error_text, is_suspect
from magent2.worker.run_events import RunEvents, RunEventWriter
from magent2.worker.runner_adapter import Runner, write_run
from magent2.worker.settlement import LaneSettlement, Outcome
from magent2.worker.subagent_stop import SubagentStop

__all__ = ["RUN_MAX_S", "LaneRun", "Outcome"]

log = logging.getLogger(__name__)

RUN_MAX_S = 3600.0


class LaneRun:
    """Works one lane until it is given up. While it works, others may command it or take it away.

    `catch_up` is called when a steer has arrived, and returns once the steer is in the lane; without it a steer
    is mail like all mail.
    """

    def __init__(
        self,
        bus: Engine,
        claimed: ClaimedLane,
        runner: Runner,
        *,
        run_max_s: float = RUN_MAX_S,
        shared: RunServices | None = None,
        observer: RunObserver | None = None,
        release: str = __version__,
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.owner = claimed.owner
        self._bus = bus
        self._runner = runner
        self._run_max_s = run_max_s
        shared = shared or RunServices(HistoryCache(bus))
        self._quarantine = shared.quarantine
        self._release = release
        self._error: str | None = None  # the kind of error that the attempt has ended with
        metrics = None if observer is None else observer.metrics
        self._writer = LaneWriter(bus, claimed.owner, None if metrics is None else metrics.appended)
        self._settlement = LaneSettlement(self._writer, claimed.attempt)
        self._cancellation = RunCancellation()
        self._subagent_stop = SubagentStop(bus, claimed.owner)
        self._mail = LaneMail(bus, claimed, self._cancellation, self._subagent_stop)
        self._steers = LaneSteers(bus, claimed, catch_up) if catch_up is not None else None
        self.approvals = LaneApprovals(bus, self._writer, self._settlement)
        self._attempt = RunAttempt(
            bus=bus,
            claimed=claimed,
            runner=runner,
            writer=self._writer,
            shared=shared,
            cancellation=self._cancellation,
            steers=self._steers,
            observer=observer,
            release=release,
        )
        if is_suspect(claimed.attempt - 1):
            self._quarantine.expect(claimed.owner.token)

    # --- from outside

    def command(self, record: Record) -> None:
        """A command that came after the claim."""
        self._mail.add_command(record)

    def call(self) -> None:
        """A steer may have come."""
        if self._steers is not None:
            self._steers.call()

    def give_back(self) -> None:
        self._cancellation.cancel(InterruptReason.GIVE_BACK)

    async def check_owner(self) -> None:
        """End a run whose lane has another owner. Its model call would be wasted."""
        try:
            await retry_while_unavailable(self._bus, Pending(self.owner, 1), self.owner.token)
        except Fenced:
            self._cancellation.cancel(InterruptReason.LOST)

    # --- the work

    async def work(self) -> Outcome:
        outcome: Outcome | None = None
        try:
            outcome = await self._work()
        except Fenced as error:
            log.info("a run was fenced", extra={"owner": self.owner.token, "error": str(error)})
            outcome = Outcome.FENCED
        finally:
            self._quarantine.leave(self.owner.token)
            await self._subagent_stop.close()
            if self._attempt.observed is not None:
                self._attempt.observed.end(ABANDONED if outcome is None else outcome.value, self._error)
        return outcome

    async def _work(self) -> Outcome:
        plan = plan_lane(self.owner.conversation, await self._mail.read())
        if isinstance(plan, RunPlan):
            return await self._answer(plan)
        if isinstance(plan, UnreadablePlan):
            return await self._settlement.unreadable(plan)
        for stop in plan.consumed.stops:  # no run is under way, but it may have left others at work
            await self._subagent_stop.pass_on(stop.command or STOP, stop.envelope.id)
        return await self._settlement.cleared(plan)

    # --- a run

    async def _answer(self, plan: RunPlan) -> Outcome:
        report = self._attempt.report(plan.parsed)
        try:
            context = await self._attempt.context(plan.parsed, report.run_id)
            if context is None:
                return await self._settlement.postponed(plan, self._mail.of_run(plan))
            report = replace(report, attempt=context.attempt)
            if context.run.undecided and (outcome := await self._paused(plan, report, context)) is not None:
                return outcome
            if is_newer(context.run.release, self._release):
                return await self._leave(plan, report, context.run.release)
            return await self._start(plan, report, context)
        except Exception as error:
            if isinstance(self._writer.failure, Fenced | StorageError):
                raise self._writer.failure from error
            return await self._fail(plan, report, error)

    async def _leave(self, plan: RunPlan, report: RunEvents, release: str) -> Outcome:
        """A run that a newer release has begun is for its workers: what it recorded may mean more than is known here.

        To stop it, nothing of that has to be understood.
        """
        self._quarantine.decide(self.owner.token)
        self._mail.listen(plan)
        if self._mail.stop_request is not None and self._mail.stop_request.is_final:
            return await self._stop(plan, report, self._mail.stop_request)
        facts = {"run_id": report.run_id, "agent": report.agent, "release": release, "own_release": self._release}
        log.warning("a run of a newer release is left to its workers", extra=facts)
        return await self._settlement.left(plan, self._mail.of_run(plan))

    async def _paused(self, plan: RunPlan, report: RunEvents, context: RunContext) -> Outcome | None:
        """A run that waits for a person; nothing when it is to go on."""
        if plan.stop_request is not None and plan.stop_request.is_final:
            return await self._stop(plan, report, plan.stop_request)
        return await self.approvals.look(plan, self._mail.of_run(plan), report, context)

    async def _start(self, plan: RunPlan, report: RunEvents, context: RunContext) -> Outcome:
        crashes = self._attempt.crashes
        give_up = after_crashes(crashes)
        self._mail.listen(plan)
        if is_suspect(crashes) and give_up is None and self._cancellation.reason is None:
            if not await self._quarantine.enter(self.owner.token):
                return await self._postpone(plan, report)
        else:
            self._quarantine.decide(self.owner.token)
        await self._attempt.begin(context, report, plan.parsed)
        if give_up is not None:
            return await self._settlement.failed(plan, await self._mail.taken(plan), report, give_up.reason, crashes)
        return await self._run(plan, report, context)

    async def _postpone(self, plan: RunPlan, report: RunEvents) -> Outcome:
        """Wait for a time when it can run alone; what is to stop after its turn is in none."""
        if self._mail.stop_request is not None and self._mail.stop_request.is_final:
            return await self._stop(plan, report, self._mail.stop_request)
        return await self._settlement.postponed(plan, self._mail.of_run(plan))

    async def _run(self, plan: RunPlan, report: RunEvents, context: RunContext) -> Outcome:
        written = RunEventWriter(report, self._writer, context.observed)
        work = write_run(self._runner, context.envelope, context, written)
        if await self._cancellation.drive(work, self._run_max_s):
            if context.waiting:
                return await self._pause(plan, report, context)
            mail = await self._mail.taken(plan, context.closing_mail)
            return await self._settlement.answered(plan, mail, report, context, written)
        reason = self._cancellation.reason
        if reason is InterruptReason.LOST:
            return Outcome.FENCED
        if reason is InterruptReason.OVERDUE:
            raise TimeoutError(f"the run took longer than {self._run_max_s:g} s")
        if isinstance(reason, StopCommand):
            cut_off = [record for tell in context.unfinished.values() for record in tell()]
            return await self._stop(plan, report, reason, cut_off)
        return await self._settlement.given_back(report)

    async def _pause(self, plan: RunPlan, report: RunEvents, context: RunContext) -> Outcome:
        """Ask a person, and let the lane go meanwhile; what is to stop need not ask."""
        if self._mail.stop_request is not None and self._mail.stop_request.is_final:
            return await self._stop(plan, report, self._mail.stop_request)
        return await self.approvals.ask(plan, self._mail.of_run(plan), report, context)

    async def _fail(self, plan: RunPlan, report: RunEvents, error: Exception) -> Outcome:
        self._error = type(error).__name__
        failures = self._attempt.failures + 1
        decision = after_failure(error, failures)
        facts = {"run_id": report.run_id, "attempt": report.attempt, "decision": type(decision).__name__}
        log.warning("a run failed", extra=facts, exc_info=error)
        self._writer.forget_refusal()
        if isinstance(decision, Bury):
            return await self._settlement.failed(plan, await self._mail.taken(plan), report, decision.reason, failures)
        stop_request = self._mail.stop_request or plan.stop_request  # it may have failed before it listened
        if stop_request is not None and stop_request.is_final:  # the turn is over, though it failed
            return await self._stop(plan, report, stop_request)
        mail = self._mail.of_run(plan)
        try:
            return await self._settlement.retried(plan, mail, report, error_text(error), decision.delay_s)
        except REFUSALS as refusal:
            self._writer.forget_refusal()
            return await self._settlement.failed(
                plan, await self._mail.taken(plan), report, error_text(refusal), failures
            )

    async def _stop(
        self, plan: RunPlan, report: RunEvents, stop_request: StopCommand, cut_off: Sequence[NewRecord] = ()
    ) -> Outcome:
        """End the run, and with it what it has started. A reader that has gone is no letter; the run is the cause."""
        self._writer.close()  # what a run that does not end at once still writes must not stand before `stopped`
        if not any(is_meant(stop.record, plan.parsed) for stop in self._mail.of_run(plan).stops):
            await self._subagent_stop.pass_on(STOP, report.run_id)
        return await self._settlement.stopped(plan, await self._mail.taken(plan), report, stop_request.reason, cut_off)


def is_newer(release: str, own: str) -> bool:
    """Whether a release is newer than this one. An unreadable version counts as newer, a missing one does not."""
    if not release or release == own:
        return False
    try:
        return Version(release) > Version(own)
    except InvalidVersion:
        return True
