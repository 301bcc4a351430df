"""Approvals of one lane: what a run that waits for a person does each time its lane is claimed.

While calls wait, the lane is released until the first of them expires. Only control mail wakes it earlier: a decision
or a stop. A call that expires gets a decision like any other, written to the log, so that the log says who was first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.records import NewRecord
from magent2.bus.retry import retry_call
from magent2.runner.context import RunContext
from magent2.sessions.approvals import APPROVAL_MAX_S, Approval, apply_decision, expire_approval, now_ms, run_approvals
from magent2.sessions.history import ApprovalRequest, DecisionRecord, DecisionStatus, RunRecord
from magent2.worker.lane_plan import RunPlan
from magent2.worker.run_events import RunEvents

if TYPE_CHECKING:  # settlement.py imports this module
    from magent2.worker.settlement import LaneSettlement, LeavingMail, Outcome


@dataclass(frozen=True, slots=True)
class AwaitingDecisions:
    """`left` calls are undecided, and the first of them expires in `delay_s` seconds."""

    decided: tuple[Approval, ...]
    left: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class OverdueCalls:
    """These calls expired without a decision."""

    calls: tuple[Approval, ...]


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Every call is decided; the run goes on."""

    decided: tuple[Approval, ...]


PausedPlan: TypeAlias = AwaitingDecisions | OverdueCalls | ResumeRun


def plan_paused(run: RunRecord, written: Mapping[str, Mapping[str, Any]], now_ms: int) -> PausedPlan:
    """Decide how a paused run goes on, given the decisions that are written, by their ids."""
    waiting = [approval for approval in run_approvals(run) if approval.status == "pending"]
    known = tuple(apply_decision(call, written[call.decision_id]) for call in waiting if call.decision_id in written)
    left = [call for call in waiting if call.decision_id not in written]
    if not left:
        return ResumeRun(known)
    overdue = tuple(call for call in left if call.expires_ms <= now_ms)
    if overdue:
        return OverdueCalls(overdue)
    return AwaitingDecisions(known, len(left), (min(call.expires_ms for call in left) - now_ms) / 1000)


def asked_call(approval: Approval) -> ApprovalRequest:
    """Return a waiting call as the history records it."""
    return {
        "call_id": approval.call_id,
        "name": approval.name,
        "speaker": approval.speaker,
        "expires_ms": approval.expires_ms,
    }


def decision_records(report: RunEvents, approvals: Sequence[Approval]) -> list[NewRecord]:
    """Return each decision as a history record, followed by its event."""
    return [record for approval in approvals for record in (_decision(report, approval), report.approval(approval))]


def with_decisions(run: RunRecord, report: RunEvents, approvals: Sequence[Approval]) -> RunRecord:
    """Return a copy of the run with these decisions; the history's own is not changed."""
    known = run.copy()
    for approval in approvals:
        known.decisions[approval.key] = cast(DecisionRecord, _decision(report, approval).payload)
    return known


def _decision(report: RunEvents, approval: Approval) -> NewRecord:
    status = cast(DecisionStatus, approval.status)  # the callers pass only calls that are decided
    return report.key.decision(approval.turn, approval.call_id, status, approval.decided_by or "", approval.reason)


class LaneApprovals:
    """Releases the lane while calls of its run wait for a person, and resumes the run when all are decided."""

    def __init__(self, bus: Engine, writer: LaneWriter, settlement: LaneSettlement) -> None:
        self.max_s = APPROVAL_MAX_S
        self.now_ms: Callable[[], int] = now_ms  # the wall clock
        self._bus = bus
        self._writer = writer
        self._owner = writer.owner
        self._settlement = settlement

    async def ask(self, plan: RunPlan, mail: LeavingMail, report: RunEvents, context: RunContext) -> Outcome:
        """Ask a person about the waiting calls, and release the lane meanwhile."""
        expires_ms = self.now_ms() + round(self.max_s * 1000)
        calls = [
            Approval(
                report.run_id, report.agent, call.turn, call.id, call.name, call.speaker, call.arguments, expires_ms
            )
            for call in context.waiting
        ]
        return await self._settlement.paused(plan, mail, report, calls, self.max_s)

    async def look(self, plan: RunPlan, mail: LeavingMail, report: RunEvents, context: RunContext) -> Outcome | None:
        """Return how the lane was released again, or None when every call is decided and the run goes on."""
        parsed_mail: dict[str, Mapping[str, Any]] = {
            parsed.envelope.id: parsed.envelope.model_dump() for parsed in plan.consumed.decisions
        }
        now = self.now_ms()
        while isinstance(paused := plan_paused(context.run, parsed_mail, now), OverdueCalls):
            for call in paused.calls:
                parsed_mail[call.decision_id] = await self._expire(call)
        if isinstance(paused, AwaitingDecisions):
            return await self._settlement.still_paused(plan, mail, report, paused)
        refs = tuple(parsed.record.ref for parsed in plan.consumed.decisions)
        await self._writer.commit(*decision_records(report, paused.decided), mail=refs)
        context.run = with_decisions(context.run, report, paused.decided)
        return None

    async def _expire(self, call: Approval) -> Mapping[str, Any]:
        """Write that the call expired, and return the decision that counts: a person may have been faster."""
        conversation = self._owner.conversation
        return await retry_call(lambda: expire_approval(Log(self._bus), conversation, call), self._owner.token)
