"""The append that ends work on a lane: answered, stopped, retried later, moved to the dead letters, or cleared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum

from magent2.bus.lane_writer import REFUSALS, LaneWriter
from magent2.bus.operations import SetHead
from magent2.bus.records import MailRef, NewRecord, Record
from magent2.errors import Magent2Error
from magent2.failures import Failure, bounded, mask_secrets
from magent2.mail.dead_letters import burial_forms
from magent2.mail.headers import RUNNING
from magent2.runner.context import RunContext
from magent2.worker.lane_mail import ConsumedMail, LeavingMail, NothingToRun, RunPlan, UnreadablePlan
from magent2.worker.retry import Defer, Retry
from magent2.worker.run_events import (
    MALFORMED_MAIL,
    UNKNOWN_COMMAND,
    RunEvents,
    RunEventWriter,
    StopOutcome,
    WaitingCalls,
    mail_error,
    stop_receipts,
)
from magent2.worker.webhooks import RunReports

log = logging.getLogger(__name__)

NO_MAIL_DELAY_S = 1.0
POSTPONED_S = 1.0
LEFT_S = 5.0  # between two checks of a worker that is too old for the run of a lane


class Outcome(Enum):
    """How work on a lane has ended."""

    ANSWERED = "answered"
    STOPPED = "stopped"
    BURIED = "buried"  # moved to the dead letters
    RETRIED = "retried"
    CLEARED = "cleared"  # there was nothing to answer
    POSTPONED = "postponed"  # its agent left the team, or it is suspected mail and another suspect was running
    DEFERRED = "deferred"  # the model was not called, because its provider does not answer
    LEFT = "left"  # a newer release started it
    PAUSED = "paused"  # calls wait for approval, or the run for more budget
    GIVEN_BACK = "given back"
    PARKED = "parked"  # the bus refused even the dead letter; an operator must act
    FENCED = "fenced"


SETTLED = frozenset({Outcome.ANSWERED, Outcome.STOPPED, Outcome.BURIED})  # a message has left the lane for good
# The lane may become due later, at a time that only the next claim reports.
DELAYED = frozenset(
    {Outcome.RETRIED, Outcome.DEFERRED, Outcome.CLEARED, Outcome.POSTPONED, Outcome.LEFT, Outcome.PAUSED}
)


class LaneSettlement:
    """Ends the work of one owner on its lane. Each method makes the last append of the owner.

    Only the first last append of an owner takes effect; the bus refuses another with `Fenced`. So a worker whose
    lease expired during a settlement cannot settle the mail a second time.
    """

    def __init__(self, writer: LaneWriter, attempt: int, reports: RunReports) -> None:
        self._writer = writer
        self._reports = reports
        self._owner = writer.owner
        self._attempt = attempt

    async def cleared(self, plan: NothingToRun) -> Outcome:
        """Remove control mail from a lane that has nothing to answer."""
        if not plan.consumed.refs:
            await self._writer.later(NO_MAIL_DELAY_S, refund=True)
            return Outcome.CLEARED
        try:
            receipts = stop_receipts(self._owner.conversation, plan.consumed.stops, "nothing_to_stop")
            await self._writer.settle(plan.consumed.refs, *receipts, *self._unknown_commands(plan.consumed))
        except REFUSALS as error:  # the conversation was deleted, so its stream takes no events
            self._note_refusal(error)
            await self._writer.settle(plan.consumed.refs)
        return Outcome.CLEARED

    async def unreadable(self, plan: UnreadablePlan) -> Outcome:
        """Move mail that is not an envelope to the dead letters. Decisions stay for the paused run behind it."""
        reason = bounded(mask_secrets(plan.reason))
        log.warning("mail cannot be read", extra={"topic": plan.record.topic, "seq": plan.record.seq})
        decisions = {parsed.record.ref for parsed in plan.consumed.decisions}
        mail = (plan.record.ref, *(ref for ref in plan.consumed.refs if ref not in decisions))
        events = (
            *stop_receipts(self._owner.conversation, plan.consumed.stops, "nothing_to_stop"),
            *self._unknown_commands(plan.consumed),
            *mail_error(self._owner.conversation, self._owner.agent, MALFORMED_MAIL, reason),
        )
        return await self._bury(plan.record, mail, reason, self._attempt, events)

    async def postponed(self, plan: RunPlan, mail: LeavingMail) -> Outcome:
        """Release the lane for a moment; the attempt does not count."""
        await self._remove_commands(plan, mail)
        await self._writer.later(POSTPONED_S, refund=True)
        return Outcome.POSTPONED

    async def left(self, plan: RunPlan, mail: LeavingMail) -> Outcome:
        """Release the lane to workers of a newer release; the attempt does not count."""
        await self._remove_commands(plan, mail)
        await self._writer.later(LEFT_S, refund=True)
        return Outcome.LEFT

    async def given_back(self, events: RunEvents, delay_s: float = 0.0) -> Outcome:
        """Release the lane of an interrupted run; the attempt does not count.

        The history records the attempt all the same, so that no two attempts have the same number.
        """
        await self._writer.later(delay_s, events.key.give_back(events.attempt), refund=True)
        return Outcome.GIVEN_BACK

    async def paused(
        self,
        plan: RunPlan,
        mail: LeavingMail,
        events: RunEvents,
        records: Sequence[NewRecord],
        calls: WaitingCalls,
        max_s: float,
    ) -> Outcome:
        """Release the lane while `calls` wait. `records` are the pause and the events that ask for it."""
        await self._remove_commands(plan, mail, events)
        await self._writer.later(max_s, *records, refund=True, heads=events.head(RUNNING, paused=calls))
        return Outcome.PAUSED

    async def still_paused(
        self,
        plan: RunPlan,
        mail: LeavingMail,
        events: RunEvents,
        records: Sequence[NewRecord],
        calls: WaitingCalls,
        max_s: float,
    ) -> Outcome:
        """Release the lane again while `calls` still wait. `records` are decisions on others.

        The decisions are committed before their mail leaves the lane: after a crash in between they are read again.
        """
        if records:
            await self._writer.commit(*records, heads=events.head(RUNNING, paused=calls))
        await self._remove_commands(plan, mail, events)
        await self._writer.later(max_s, refund=True)
        return Outcome.PAUSED

    async def waiting_for_budget(self, plan: RunPlan, mail: LeavingMail, events: RunEvents, delay_s: float) -> Outcome:
        """Release the lane while its run waits for more budget. That it waits is recorded already."""
        await self._remove_commands(plan, mail, events)
        await self._writer.later(delay_s, refund=True)
        return Outcome.PAUSED

    async def answered(
        self, plan: RunPlan, mail: LeavingMail, events: RunEvents, context: RunContext, event_writer: RunEventWriter
    ) -> Outcome:
        """End a run that finished, in one append: its last events, its end record, and its mail leaves the lane."""
        last = event_writer.close()
        await self._writer.settle(
            (*mail.refs, *context.closing_mail),
            *context.closing,
            *last,
            *self._receipts(mail, "too_late", plan, events),
            events.key.end("finished", event_writer.text, event_writer.usage),
            events.run("finished"),
            *self._unknown_commands(plan.consumed),
            *self._reports.run_ended(events, "finished"),
            heads=events.head("finished", event_writer.usage),
        )
        return Outcome.ANSWERED

    async def stopped(
        self, plan: RunPlan, mail: LeavingMail, events: RunEvents, reason: str, cut_off: Sequence[NewRecord] = ()
    ) -> Outcome:
        """End a run that was stopped. `cut_off` are records of tool calls that were in progress."""
        await self._writer.settle(
            mail.refs,
            *cut_off,
            *self._receipts(mail, "stopped", plan, events),
            events.key.end("stopped"),
            events.run("stopped", reason),
            *self._unknown_commands(plan.consumed),
            *self._reports.run_ended(events, "stopped"),
            heads=events.head("stopped"),
        )
        return Outcome.STOPPED

    async def retried(
        self,
        plan: RunPlan,
        mail: LeavingMail,
        events: RunEvents,
        text: str,
        decision: Retry | Defer,
        clock_ms: int,
    ) -> Outcome:
        """Release the lane of a run that failed or was deferred. A deferred attempt does not count."""
        await self._remove_commands(plan, mail, events)
        deferred = isinstance(decision, Defer)
        record = (events.key.defer if deferred else events.key.retry)(events.attempt, clock_ms)
        shown_s = round(decision.delay_s, 3)
        await self._writer.later(decision.delay_s, events.error(text, shown_s), record, refund=deferred)
        return Outcome.DEFERRED if deferred else Outcome.RETRIED

    async def failed(
        self, plan: RunPlan, mail: LeavingMail, events: RunEvents, failure: Failure, attempts: int
    ) -> Outcome:
        """End a run that failed for good, and move its mail to the dead letters.

        The events show what users may see. The dead letter, which only operators see, has the cause.
        """
        records = (
            events.error(failure.named),
            *self._receipts(mail, "too_late", plan, events),
            events.key.end("failed"),
            events.run("failed", failure.named),
            *self._unknown_commands(plan.consumed),
            *self._reports.run_ended(events, "failed"),
        )
        return await self._bury(plan.parsed.record, mail.refs, failure.cause, attempts, records, events.head("failed"))

    async def _remove_commands(self, plan: RunPlan, mail: LeavingMail, events: RunEvents | None = None) -> None:
        """Remove applied commands before the lane is released: a lane with control mail is due at once."""
        commands = tuple(ref for ref in mail.refs if ref != plan.parsed.record.ref)
        if commands:
            receipts = self._receipts(mail, "too_late", plan, events)
            await self._writer.commit(*receipts, *self._unknown_commands(plan.consumed), mail=commands)

    async def _bury(
        self,
        record: Record,
        mail: tuple[MailRef, ...],
        reason: str,
        attempts: int,
        records: tuple[NewRecord, ...],
        heads: tuple[SetHead, ...] = (),
    ) -> Outcome:
        """Move a record to the dead letters, or park the lane if the bus refuses every form of the dead letter."""
        for burial in burial_forms(self._owner, record, reason, attempts, records, leaving=mail, heads=heads):
            try:
                await self._writer.settle(burial.mail, *burial.records, heads=burial.heads)
            except REFUSALS as error:
                self._note_refusal(error)
            else:
                return Outcome.BURIED
        await self._writer.commit(mail=tuple(ref for ref in mail if ref != record.ref))
        await self._writer.later(None)
        return Outcome.PARKED

    def _note_refusal(self, error: Magent2Error) -> None:
        log.error("the bus refused the last append of a lane", extra={"owner": self._owner.token, "error": str(error)})
        self._writer.forget_refusal()

    def _receipts(
        self, mail: LeavingMail, outcome: StopOutcome, plan: RunPlan, events: RunEvents | None = None
    ) -> tuple[NewRecord, ...]:
        fields = events.fields if events is not None else {}
        return stop_receipts(self._owner.conversation, mail.stops, outcome, plan.parsed, fields)

    def _unknown_commands(self, consumed: ConsumedMail) -> tuple[NewRecord, ...]:
        """Return error events for unknown commands."""
        texts = (f"there is no command {(parsed.command or '')[:80]!r}" for parsed in consumed.unknown)
        conversation, agent = self._owner.conversation, self._owner.agent
        return tuple(record for text in texts for record in mail_error(conversation, agent, UNKNOWN_COMMAND, text))
