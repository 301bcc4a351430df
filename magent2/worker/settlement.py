"""The append that ends work on a lane: answered, stopped, tried again later, buried, or just cleared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from magent2.bus.lane_writer import REFUSALS, LaneWriter
from magent2.bus.operations import SetHead
from magent2.bus.records import MailRef, NewRecord, Record
from magent2.errors import Magent2Error
from magent2.mail.dead_letters import bury
from magent2.mail.headers import RUNNING
from magent2.runner.context import RunContext
from magent2.sessions.approvals import Approval
from magent2.worker.approvals import AwaitingDecisions, asked_call, decision_records
from magent2.worker.lane_plan import ConsumedMail, NothingToRun, ParsedMail, RunPlan, UnreadablePlan
from magent2.worker.retry import bounded
from magent2.worker.run_events import (
    MALFORMED_MAIL,
    UNKNOWN_COMMAND,
    RunEvents,
    RunEventWriter,
    StopOutcome,
    mail_error,
    stop_receipts,
)

log = logging.getLogger(__name__)

NO_MAIL_DELAY_S = 1.0
POSTPONED_S = 1.0
LEFT_S = 5.0  # so often a worker that is too old looks whether the run is still there


class Outcome(Enum):
    """How work on a lane has ended."""

    ANSWERED = "answered"
    STOPPED = "stopped"
    BURIED = "buried"
    RETRIED = "retried"
    CLEARED = "cleared"  # there was nothing to answer
    POSTPONED = "postponed"  # under suspicion, and not alone
    LEFT = "left"  # a newer release has begun it
    PAUSED = "paused"  # it waits for a person
    GIVEN_BACK = "given back"
    PARKED = "parked"  # it could not even be buried; a person must act
    FENCED = "fenced"


SETTLED = frozenset({Outcome.ANSWERED, Outcome.STOPPED, Outcome.BURIED})  # a message is off the list
# The lane may be waiting for its time.
DELAYED = frozenset({Outcome.RETRIED, Outcome.CLEARED, Outcome.POSTPONED, Outcome.LEFT, Outcome.PAUSED})


@dataclass(frozen=True, slots=True)
class LeavingMail:
    """The mail that leaves the lane with a run, and the stops among it."""

    refs: tuple[MailRef, ...]
    stops: tuple[ParsedMail, ...] = ()


class LaneSettlement:
    """Ends the work of one owner. Only the first end counts; the log sees to that."""

    def __init__(self, writer: LaneWriter, attempt: int) -> None:
        self._writer = writer
        self._owner = writer.owner
        self._attempt = attempt

    # --- without a run

    async def cleared(self, plan: NothingToRun) -> Outcome:
        if not plan.consumed.refs:
            await self._writer.later(NO_MAIL_DELAY_S, refund=True)
            return Outcome.CLEARED
        try:
            told = stop_receipts(self._owner.conversation, plan.consumed.stops, "nothing_to_stop")
            await self._writer.settle(plan.consumed.refs, *told, *self._complaints(plan.consumed))
        except REFUSALS as error:  # a conversation that was deleted hears no complaint
            self._note(error)
            await self._writer.settle(plan.consumed.refs)
        return Outcome.CLEARED

    async def unreadable(self, plan: UnreadablePlan) -> Outcome:
        reason = bounded(plan.reason)
        log.warning("mail cannot be read", extra={"topic": plan.record.topic, "seq": plan.record.seq})
        told = mail_error(self._owner.conversation, self._owner.agent, MALFORMED_MAIL, reason)
        decisions = {parsed.record.ref for parsed in plan.consumed.decisions}  # for the run behind it, which waits
        mail = (plan.record.ref, *(ref for ref in plan.consumed.refs if ref not in decisions))
        stops = stop_receipts(self._owner.conversation, plan.consumed.stops, "nothing_to_stop")
        told = (*stops, *self._complaints(plan.consumed), *told)
        return await self._bury(plan.record, mail, reason, self._attempt, told)

    async def postponed(self, plan: RunPlan, mail: LeavingMail) -> Outcome:
        await self._drop_commands(plan, mail)
        await self._writer.later(POSTPONED_S, refund=True)
        return Outcome.POSTPONED

    async def left(self, plan: RunPlan, mail: LeavingMail) -> Outcome:
        """Nothing of the run is touched, and the attempt does not count."""
        await self._drop_commands(plan, mail)
        await self._writer.later(LEFT_S, refund=True)
        return Outcome.LEFT

    # --- of a run

    async def given_back(self, report: RunEvents) -> Outcome:
        """The attempt does not count against the mail; that it was one is remembered, so that no number comes twice."""
        await self._writer.later(0, report.key.give_back(report.attempt), refund=True)
        return Outcome.GIVEN_BACK

    async def paused(
        self, plan: RunPlan, mail: LeavingMail, report: RunEvents, approvals: Sequence[Approval], max_s: float
    ) -> Outcome:
        """Calls wait for a person: they are asked about in the append that gives the lane up."""
        await self._drop_commands(plan, mail, report)
        turn, calls = approvals[0].turn, [asked_call(approval) for approval in approvals]
        told = [report.approval(approval) for approval in approvals]
        heads = report.head(RUNNING, paused=len(approvals))
        await self._writer.later(max_s, report.key.pause(turn, report.attempt, calls), *told, refund=True, heads=heads)
        return Outcome.PAUSED

    async def still_paused(
        self, plan: RunPlan, mail: LeavingMail, report: RunEvents, waiting: AwaitingDecisions
    ) -> Outcome:
        """Some calls are decided on, others wait."""
        records = decision_records(report, waiting.decided)
        if records:
            await self._writer.commit(*records, heads=report.head(RUNNING, paused=waiting.left))
        await self._drop_commands(plan, mail, report)
        await self._writer.later(waiting.delay_s, refund=True)
        return Outcome.PAUSED

    async def answered(
        self, plan: RunPlan, mail: LeavingMail, report: RunEvents, context: RunContext, written: RunEventWriter
    ) -> Outcome:
        last = written.close()
        await self._writer.settle(
            (*mail.refs, *context.closing_mail),
            *context.closing,
            *last,
            *self._receipts(mail, "too_late", plan, report),
            report.key.end("finished", written.text, written.usage),
            report.run("finished"),
            *self._complaints(plan.consumed),
            heads=report.head("finished", written.usage),
        )
        return Outcome.ANSWERED

    async def stopped(
        self, plan: RunPlan, mail: LeavingMail, report: RunEvents, reason: str, cut_off: Sequence[NewRecord] = ()
    ) -> Outcome:
        """`cut_off` is what there is to tell of calls that were at work."""
        await self._writer.settle(
            mail.refs,
            *cut_off,
            *self._receipts(mail, "stopped", plan, report),
            report.key.end("stopped"),
            report.run("stopped", reason),
            *self._complaints(plan.consumed),
            heads=report.head("stopped"),
        )
        return Outcome.STOPPED

    async def retried(self, plan: RunPlan, mail: LeavingMail, report: RunEvents, text: str, delay_s: float) -> Outcome:
        await self._drop_commands(plan, mail, report)
        await self._writer.later(delay_s, report.error(text, delay_s), report.key.retry(report.attempt))
        return Outcome.RETRIED

    async def failed(self, plan: RunPlan, mail: LeavingMail, report: RunEvents, reason: str, attempts: int) -> Outcome:
        told = (
            report.error(reason),
            *self._receipts(mail, "too_late", plan, report),
            report.key.end("failed"),
            report.run("failed", reason),
            *self._complaints(plan.consumed),
        )
        return await self._bury(plan.parsed.record, mail.refs, reason, attempts, told, report.head("failed"))

    # --- inside

    async def _drop_commands(self, plan: RunPlan, mail: LeavingMail, report: RunEvents | None = None) -> None:
        """Commands that were heard go before the lane does: a lane that holds any is not allowed to wait."""
        commands = tuple(ref for ref in mail.refs if ref != plan.parsed.record.ref)
        if commands:
            told = self._receipts(mail, "too_late", plan, report)
            await self._writer.commit(*told, *self._complaints(plan.consumed), mail=commands)

    async def _bury(
        self,
        record: Record,
        mail: tuple[MailRef, ...],
        reason: str,
        attempts: int,
        told: tuple[NewRecord, ...],
        heads: tuple[SetHead, ...] = (),
    ) -> Outcome:
        """Bury mail in sight; with less of it where the log refuses the whole: too large, or a topic deleted."""
        short = replace(record, payload={"left_out": f"too large to be kept here; see {record.topic} {record.seq}"})
        for parsed, records, head in ((record, told, heads), (record, (), ()), (short, (), ())):
            grave = bury(self._owner, parsed, reason, attempts, records)
            try:
                await self._writer.settle(mail, *grave.records, heads=head)
            except REFUSALS as error:
                self._note(error)
            else:
                return Outcome.BURIED
        await self._writer.commit(mail=tuple(ref for ref in mail if ref != record.ref))
        await self._writer.later(None)
        return Outcome.PARKED

    def _note(self, error: Magent2Error) -> None:
        log.error("the log refused to end a run", extra={"owner": self._owner.token, "error": str(error)})
        self._writer.forget_refusal()

    def _receipts(
        self, mail: LeavingMail, outcome: StopOutcome, plan: RunPlan, report: RunEvents | None = None
    ) -> tuple[NewRecord, ...]:
        fields = report.fields if report is not None else {}
        return stop_receipts(self._owner.conversation, mail.stops, outcome, plan.parsed, fields)

    def _complaints(self, consumed: ConsumedMail) -> tuple[NewRecord, ...]:
        """Return error events for unknown commands."""
        texts = (f"there is no command {(parsed.command or '')[:80]!r}" for parsed in consumed.unknown)
        conversation, agent = self._owner.conversation, self._owner.agent
        return tuple(record for text in texts for record in mail_error(conversation, agent, UNKNOWN_COMMAND, text))
