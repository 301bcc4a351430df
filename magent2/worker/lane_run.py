"""Work on one claimed lane: plan, run, and give the lane up with one append.

What happens to the lane is a run, a pause, a stop, a retry, or a settlement without a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from magent2 import __version__
from magent2.background import log_error
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import REFUSALS, LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import Pending, Settle
from magent2.bus.records import ClaimedLane, NewRecord, Record
from magent2.bus.retry import PERMANENT_ERRORS, retry_call, retry_while_unavailable
from magent2.errors import Fenced, Magent2Error, RunTimedOut
from magent2.failures import Failure, cause_of
from magent2.mail.dead_letters import burial_forms
from magent2.mail.headers import STOP
from magent2.models.address import history_topic, usage_topic
from magent2.runner.context import RunContext
from magent2.sessions.approvals import Approval
from magent2.sessions.history import (
    HistoryCache,
    WrittenRecord,
)
from magent2.sessions.usage.ledger import CHECKPOINT_EVERY, write_checkpoint
from magent2.telemetry.observation import ABANDONED, RunObserver
from magent2.worker.approvals import LaneApprovals
from magent2.worker.budgets import LaneBudgets
from magent2.worker.cancellation import InterruptReason, RunCancellation, StopCommand, SubagentStop
from magent2.worker.control_feed import LaneSteers
from magent2.worker.lane_mail import LaneMail, LanePlan, RunPlan, UnreadablePlan, is_meant_for, plan_lane
from magent2.worker.retry import (
    Bury,
    Defer,
    QuarantinePlace,
    after_crashes,
    after_failure,
    is_suspect,
    is_transient,
)
from magent2.worker.run_attempt import RunAttempt, RunServices, runs_needed
from magent2.worker.run_events import RunEvents, RunEventWriter
from magent2.worker.runner_adapter import Runner, write_run
from magent2.worker.settlement import LaneSettlement, Outcome
from magent2.worker.webhooks import RunReports

__all__ = ["RUN_MAX_S", "LaneRun", "Outcome"]

log = logging.getLogger(__name__)

RUN_MAX_S = 3600.0
BUDGET_BUSY_S = 2.0  # before a run is tried again whose budget was reserved by others
USER_LEDGERS = usage_topic("user")  # how their topics begin


class ClaimClock:
    """The log clock while a lane is held: its time at the claim, carried forward by the clock of the event loop.

    It does not jump when the wall clock is set, and the next owner of the lane goes on from about the same time.
    """

    def __init__(self, claimed: ClaimedLane) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_claim_ms = claimed.clock_ms
        self._claimed_s = self._loop.time()

    def now_ms(self) -> int:
        return self._at_claim_ms + round((self._loop.time() - self._claimed_s) * 1000)


class LaneRun:
    """Processes the first message of one claimed lane, then gives the lane up.

    Commands and steers reach it while it works. `catch_up` returns once every steer that the worker was notified of
    is in its lane. Without `catch_up`, steers are processed like other mail.
    """

    def __init__(
        self,
        bus: Engine,
        claimed: ClaimedLane,
        runner: Runner,
        *,
        run_max_s: float = RUN_MAX_S,
        services: RunServices | None = None,
        observer: RunObserver | None = None,
        release: str = __version__,
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.owner = claimed.owner
        self._bus = bus
        self._claimed = claimed
        self._plan: LanePlan | None = None
        self._runner = runner
        self._run_max_s = run_max_s
        self._services = services = services or RunServices(HistoryCache(bus))
        self._quarantine = services.quarantine
        self._place: QuarantinePlace | None = None  # set while the run is suspected
        self._release = release
        self._error: str | None = None  # the type of the error that ended the attempt
        metrics = None if observer is None else observer.metrics
        self._history_topic = history_topic(claimed.owner.conversation)
        self._written: list[WrittenRecord] = []  # what this run has added to the history
        self._checkpoint_due = ""  # the user whose ledger needs one
        on_append = None if metrics is None else metrics.appended
        self._writer = LaneWriter(bus, claimed.owner, on_append, self._keep_written)
        self._clock = ClaimClock(claimed)
        self._reports = RunReports(services.webhooks, claimed.principal, self._clock.now_ms)
        self._settlement = LaneSettlement(self._writer, claimed.attempt, self._reports)
        self._cancellation = RunCancellation()
        self._subagent_stop = SubagentStop(bus, claimed.owner)
        self._mail = LaneMail(bus, claimed, self._cancellation, self._subagent_stop)
        self._steers = LaneSteers(bus, claimed, catch_up) if catch_up is not None else None
        self._budgets = LaneBudgets(bus, self._writer, self._settlement, services.budgets, self._reports)
        self.approvals = LaneApprovals(bus, self._writer, self._settlement, self._clock.now_ms, self._reports)
        self._attempt = RunAttempt(
            bus=bus,
            claimed=claimed,
            runner=runner,
            writer=self._writer,
            services=services,
            cancellation=self._cancellation,
            steers=self._steers,
            observer=observer,
            release=release,
        )
        if is_suspect(claimed.attempt - 1):
            self._quarantine.expect(claimed.owner.token)

    def add_command(self, record: Record) -> None:
        """Apply a command that arrived after the claim."""
        self._mail.add_command(record)

    def note_steer(self) -> None:
        """Note that a steer may have arrived. The run reads it before its next turn."""
        if self._steers is not None:
            self._steers.note_arrival()

    def give_back(self) -> None:
        """Cancel the run and release the lane to other workers."""
        self._cancellation.cancel(InterruptReason.GIVE_BACK)

    async def check_owner(self) -> None:
        """Cancel the run if its lane has another owner: its next append would be refused, and the model call wasted."""
        try:
            await retry_while_unavailable(self._bus, Pending(self.owner, 1), self.owner.token)
        except Fenced:
            self._cancellation.cancel(InterruptReason.LOST)

    async def work(self) -> Outcome:
        """Process the mail of the lane and give the lane up. Return how that ended."""
        outcome: Outcome | None = None
        try:
            outcome = await self._process()
        except Fenced as error:
            log.info("a run was fenced", extra={"owner": self.owner.token, "error": str(error)})
            outcome = Outcome.FENCED
        finally:
            if self._place is not None:
                self._place.close()
            self._quarantine.leave(self.owner.token)
            await self._subagent_stop.close()
            if self._attempt.observed is not None:
                self._attempt.observed.end(ABANDONED if outcome is None else outcome.value, self._error)
        self._services.histories.add_written(self.owner.conversation, self._written)
        if self._checkpoint_due:
            await self._write_checkpoint(self._checkpoint_due)
        return outcome

    async def _write_checkpoint(self, topic: str) -> None:
        """Write a checkpoint of a user's ledger. If that fails, a later run writes one."""
        user = topic.removeprefix(USER_LEDGERS)
        try:
            await write_checkpoint(Log(self._bus), user, self._services.budgets.now_ms())
        except PERMANENT_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  the run has ended, and needs no checkpoint
            log_error("no checkpoint of a ledger was written", error, log, topic=topic)

    def _keep_written(self, records: Sequence[NewRecord], seqs: Sequence[int]) -> None:
        self._written += [
            WrittenRecord.of(record, seq)
            for record, seq in zip(records, seqs, strict=False)
            if record.topic == self._history_topic
        ]
        for record, seq in zip(records, seqs, strict=False):
            if seq % CHECKPOINT_EVERY == 0 and record.topic.startswith(USER_LEDGERS):
                self._checkpoint_due = record.topic

    def burials(self, failure: Failure) -> Iterator[Settle]:
        """Return settles that give up the mail, to be tried in turn, for a lane on which this object keeps failing.

        Commands stay in the lane: the next owner applies them, and passes stops on to subagents.
        """
        plan, attempt = self._plan, self._claimed.attempt
        if isinstance(plan, RunPlan):
            events = self._attempt.events(plan.parsed)
            shown = failure.named
            reports = self._reports.run_ended(events, "failed")
            records = (events.error(shown), events.key.end("failed"), events.run("failed", shown), *reports)
            heads = events.head("failed")
            yield from burial_forms(self.owner, plan.parsed.record, failure.cause, attempt, records, heads=heads)
        elif isinstance(plan, UnreadablePlan) or self._claimed.mail:
            record = plan.record if isinstance(plan, UnreadablePlan) else self._claimed.mail[0]
            yield from burial_forms(self.owner, record, failure.cause, attempt)

    async def _process(self) -> Outcome:
        plan = self._plan = plan_lane(self.owner.conversation, await self._mail.read())
        if isinstance(plan, RunPlan):
            return await self._answer(plan)
        if isinstance(plan, UnreadablePlan):
            return await self._settlement.unreadable(plan)
        for stop in plan.consumed.stops:  # no run is in progress, but an earlier one may have left subagents running
            await self._subagent_stop.pass_on(stop.command or STOP, stop.envelope.id)
        return await self._settlement.cleared(plan)

    async def _answer(self, plan: RunPlan) -> Outcome:
        """Continue or start the run that answers the mail."""
        events = self._attempt.events(plan.parsed)
        try:
            context = await self._attempt.prepare(plan.parsed, events.run_id)
            if context is None:
                return await self._settlement.postponed(plan, self._mail.of_run(plan))
            if context.attempt != events.attempt:
                events = replace(events, attempt=context.attempt)
            if context.run.superseded:
                return await self._end_superseded(plan, events)
            if (outcome := await self._check_paused(plan, events, context)) is not None:
                return outcome
            if is_newer(context.run.release, self._release):
                return await self._leave_to_newer_release(plan, events, context.run.release)
            return await self._start(plan, events, context)
        except Exception as error:
            # The writer's failure is the cause, whatever the runner made of it. A fenced owner may write no retry and
            # no dead letter, a broken store needs an operator, and after an unexpected error of the store it is unknown
            # what was written: the lane loop retries the lane, and the next attempt reads the log.
            failure = self._writer.failure
            if failure is not None and not isinstance(failure, REFUSALS):
                raise failure from error
            # The same holds for reads: only the runner may give its mail up by an error that is not of this package.
            of_run = isinstance(error, Magent2Error) or error is self._attempt.runner_error
            if not of_run or isinstance(error, PERMANENT_ERRORS):
                raise
            return await self._handle_failure(plan, events, error)

    async def _check_paused(self, plan: RunPlan, events: RunEvents, context: RunContext) -> Outcome | None:
        """Stop a paused run or release its lane again.

        Return None if it is not paused, or if it resumes: every call is decided, and there is budget again.
        """
        if not context.run.undecided and not context.run.budgets:
            return None
        if plan.stop_request is not None and plan.stop_request.is_final:
            return await self._stop(plan, events, plan.stop_request)
        if context.run.undecided:
            return await self.approvals.check(plan, self._mail.of_run(plan), events, context)
        return await self._budgets.wait(plan, self._mail.of_run(plan), events, context)

    async def _end_superseded(self, plan: RunPlan, events: RunEvents) -> Outcome:
        """Stop a failed run whose dead letter was retried although its answer was replaced: no view shows it."""
        self._mail.listen(plan)
        return await self._stop(plan, events, StopCommand("its answer was replaced"))

    async def _leave_to_newer_release(self, plan: RunPlan, events: RunEvents, release: str) -> Outcome:
        """Release the lane of a run that a newer release started: this worker may misread what that one recorded.

        A stop is applied all the same, because it does not depend on what the run recorded.
        """
        self._mail.listen(plan)
        if (stop := self._mail.final_stop) is not None:
            return await self._stop(plan, events, stop)
        facts = {"run_id": events.run_id, "agent": events.agent, "release": release, "own_release": self._release}
        log.warning("a run of a newer release is left to its workers", extra=facts)
        return await self._settlement.left(plan, self._mail.of_run(plan))

    async def _start(self, plan: RunPlan, events: RunEvents, context: RunContext) -> Outcome:
        """Start or restart the run.

        Mail that has crashed too many workers is given up here. Suspected mail waits until it can run alone. Suspected
        mail that is stopped or given up does not run; it stays undecided until its end is written. If another suspect
        ran before that and the worker died, the crash would count against this mail too.
        """
        crashes = self._attempt.crashes
        give_up = after_crashes(crashes)
        self._mail.listen(plan)
        if is_suspect(crashes) and give_up is None and self._cancellation.reason is None:
            if not await self._quarantine.enter(self.owner.token):
                if (stop := self._mail.final_stop) is not None:
                    return await self._stop(plan, events, stop)
                return await self._settlement.postponed(plan, self._mail.of_run(plan))
            self._release_while_waiting(context)
        elif not is_suspect(crashes):
            self._quarantine.decide(self.owner.token)
        await self._attempt.begin(context, events, plan.parsed)
        if give_up is not None:
            self._end_calls()
            mail = await self._mail.of_ended_run(plan)
            return await self._settlement.failed(plan, mail, events, Failure.plain(give_up.why), crashes)
        return await self._run(plan, events, context)

    def _release_while_waiting(self, context: RunContext) -> None:
        """Let the suspected run leave the quarantine while it waits."""

        async def record(waits: bool) -> None:
            await self._writer.commit(context.key.wait(context.attempt, waits))

        async def between_turns() -> None:
            await place.update()
            await self._cancellation.between_turns()

        place = self._place = QuarantinePlace(self._quarantine, self.owner.token, context.unfinished, record)
        context.waits = (*context.waits, place.released)
        context.calls_changed, context.between_turns = place.update, between_turns

    async def _run(self, plan: RunPlan, events: RunEvents, context: RunContext) -> Outcome:
        """Run the runner, and give the lane up according to how the run ended."""
        event_writer = RunEventWriter(events, self._writer, context.observed)
        work = write_run(self._runner, context.envelope, context, event_writer)
        try:
            has_ended = await self._drive(work)
        finally:
            if (cut_off_call := context.open_call()) and self._writer.failure is None:
                self._writer.put_nowait(*cut_off_call)
        if has_ended:
            if context.waiting and not context.ends_with_calls:
                if (stop := self._mail.final_stop) is not None:
                    return await self._stop(plan, events, stop)
                return await self.approvals.ask(plan, self._mail.of_run(plan), events, context)
            context.closing += _last_calls(events, context)
            # The run is over: a stop that arrives from here on is too late, and its receipt says so.
            mail = await self._mail.of_ended_run(plan, context.closing_mail)
            return await self._settlement.answered(plan, mail, events, context, event_writer)
        return await self._end_interrupted(plan, events, context)

    async def _end_interrupted(self, plan: RunPlan, events: RunEvents, context: RunContext) -> Outcome:
        """Give the lane up after the run was cancelled."""
        reason = self._cancellation.reason
        if reason is InterruptReason.LOST:
            return Outcome.FENCED
        if reason is InterruptReason.BUDGET:
            if (stop := self._mail.final_stop) is not None:
                return await self._stop(plan, events, stop)
            if (paused := await self._budgets.wait(plan, self._mail.of_run(plan), events, context)) is not None:
                return paused
            # Others have reserved the rest of the budget. One of them may wait for the place of this run.
            return await self._settlement.given_back(events, BUDGET_BUSY_S)
        if isinstance(reason, StopCommand):
            cut_off = [record for records_of_call in context.unfinished.values() for record in records_of_call()]
            return await self._stop(plan, events, reason, cut_off)
        return await self._settlement.given_back(events)

    async def _drive(self, work: Coroutine[object, None, None]) -> bool:
        """Await the runner. Return whether it ended by itself. An error is kept as that of the runner."""
        try:
            if await self._cancellation.drive(work, self._run_max_s):
                return True
            if self._cancellation.reason is InterruptReason.OVERDUE:
                raise RunTimedOut(f"the run took longer than {self._run_max_s:g} s")
        except Exception as error:
            self._attempt.runner_error = error
            raise
        return False

    async def _handle_failure(self, plan: RunPlan, events: RunEvents, error: Exception) -> Outcome:
        """Retry the run later, or move its mail to the dead letters."""
        self._error = type(error).__name__
        now_ms = self._clock.now_ms()
        failures, since_ms = await self._failing(events.run_id, now_ms) if is_transient(error) else (1, now_ms)
        decision = after_failure(
            error, failures, (now_ms - since_ms) / 1000, self._services.retry, self._services.chance()
        )
        failure = Failure.of(error, "the run failed", events.run_id, events.attempt)
        facts = {
            "run_id": events.run_id,
            "attempt": events.attempt,
            "decision": type(decision).__name__,
            "failure_id": failure.id,
        }
        if isinstance(decision, Defer):
            log.info("a run was deferred", extra={**facts, "error": cause_of(error)})
        else:
            log_error("a run failed", error, log, **facts)
        self._writer.forget_refusal()
        if isinstance(decision, Bury):
            self._end_calls()
            mail = await self._mail.of_ended_run(plan)
            return await self._settlement.failed(plan, mail, events, failure.because(decision.why), failures)
        # The run may have failed before `listen`, so the plan's own stop request counts too. A stop after the turn
        # applies now: the failed turn is over.
        stop_request = self._mail.stop_request or plan.stop_request
        if stop_request is not None and stop_request.is_final:
            return await self._stop(plan, events, stop_request)
        mail = self._mail.of_run(plan)
        try:
            return await self._settlement.retried(plan, mail, events, failure.named, decision, now_ms)
        except REFUSALS as refusal:
            self._writer.forget_refusal()
            mail = await self._mail.of_ended_run(plan)
            refused = Failure.plain(f"{type(refusal).__name__}: {refusal}")
            return await self._settlement.failed(plan, mail, events, refused, failures)

    async def _failing(self, run_id: str, now_ms: int) -> tuple[int, int]:
        """Return how often the run has failed in a row, with this attempt, and since when by the log clock.

        The history is read again: an answer that this attempt recorded ends the row of failures before it.
        """
        conversation = self.owner.conversation
        runs_max = runs_needed(self._runner)
        history = await retry_call(lambda: self._services.histories.read(conversation, runs_max), self.owner.token)
        run = history.runs.get(run_id)
        if run is None:  # it failed before its start was on the log
            return 1, now_ms
        return run.failures + 1, now_ms if run.failing_since_ms is None else run.failing_since_ms

    async def _stop(
        self, plan: RunPlan, events: RunEvents, stop_request: StopCommand, cut_off: Sequence[NewRecord] = ()
    ) -> Outcome:
        """End the run as stopped, and stop its subagents.

        Stops in the lane are passed on under their own ids. A stop because the client disconnected has no stop mail,
        so it is passed on under the id of the run.
        """
        self._end_calls()
        self._writer.close()  # a run that does not end at once must not write behind the record `stopped`
        if not any(is_meant_for(stop.record, plan.parsed) for stop in self._mail.of_run(plan).stops):
            await self._subagent_stop.pass_on(STOP, events.run_id)
        mail = await self._mail.of_ended_run(plan)
        return await self._settlement.stopped(plan, mail, events, stop_request.reason, cut_off)

    def _end_calls(self) -> None:
        """Add the records that close the model calls of a run that ends before its answer."""
        context = self._attempt.context
        if context is not None and (records := self._budgets.end(context)) and self._writer.failure is None:
            self._writer.put_nowait(*records)


def _last_calls(events: RunEvents, context: RunContext) -> list[NewRecord]:
    """The events of a run that ends with calls of tools whose client sends the outputs with its next message."""
    calls = [
        Approval(events.run_id, events.agent, call.turn, call.id, call.name, call.speaker, call.arguments, 0)
        for call in context.waiting
        if call.client
    ]
    return events.client_calls(calls, context.usage, waits=False)


def is_newer(release: str, own: str) -> bool:
    """Return whether a release is newer than `own`. An unreadable version counts as newer, a missing one does not."""
    if not release or release == own:
        return False
    try:
        return Version(release) > Version(own)
    except InvalidVersion:
        return True
