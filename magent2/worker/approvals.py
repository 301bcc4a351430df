"""Approvals of one lane: what happens each time the lane of a paused run is claimed.

While calls wait for approval, the lane is released until the first of them expires. Only control mail makes it due
earlier: a decision or a stop. A call that expires gets a decision like any other, written to the log, so that a person
and the expiry cannot both win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.records import NewRecord
from magent2.bus.retry import retry_call
from magent2.models.json_types import JsonMapping
from magent2.runner.context import RunContext
from magent2.sessions.approvals import APPROVAL_MAX_S, Approval, apply_decision, expire_approval, now_ms, run_approvals
from magent2.sessions.history import ApprovalRequest, DecisionRecord, DecisionStatus, RunRecord
from magent2.worker.lane_mail import LeavingMail, RunPlan
from magent2.worker.run_events import RunEvents, WaitingCalls
from magent2.worker.settlement import LaneSettlement, Outcome
from magent2.worker.webhooks import RunReports


@dataclass(frozen=True, slots=True)
class AwaitingDecisions:
    """`left` calls are undecided, and the first of them expires in `delay_s` seconds."""

    decided: tuple[Approval, ...]
    left: WaitingCalls
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


def plan_paused(run: RunRecord, decisions: Mapping[str, JsonMapping], now_ms: int, clock_ms: int) -> PausedPlan:
    """Decide how a paused run continues, given the decisions that are on the log, by their ids.

    `now_ms` is the wall clock, `clock_ms` the log clock. A call expires by the log clock, so that it neither expires
    early nor waits too long when the wall clock is set.
    """
    waiting = [approval for approval in run_approvals(run) if approval.status == "pending"]
    decided = tuple(
        apply_decision(call, decisions[call.decision_id]) for call in waiting if call.decision_id in decisions
    )
    left = [call for call in waiting if call.decision_id not in decisions]
    if not left:
        return ResumeRun(decided)
    left_ms = [call.expires_ms - now_ms if call.due_ms is None else call.due_ms - clock_ms for call in left]
    overdue = tuple(call for call, remains_ms in zip(left, left_ms, strict=True) if remains_ms <= 0)
    if overdue:
        return OverdueCalls(overdue)
    return AwaitingDecisions(decided, _counted(left), min(left_ms) / 1000)


def _counted(calls: Sequence[Approval]) -> WaitingCalls:
    return WaitingCalls(len(calls), sum(call.client for call in calls))


def with_decisions(run: RunRecord, events: RunEvents, approvals: Sequence[Approval]) -> RunRecord:
    """Return a copy of the run with these decisions. The history's own run is shared and is not changed."""
    copy = run.copy()
    for approval in approvals:
        copy.decisions[approval.key] = cast(DecisionRecord, _decision(events, approval).payload)
    return copy


def _decision_records(events: RunEvents, approvals: Sequence[Approval]) -> list[NewRecord]:
    """Return each decision as a history record, followed by its event."""
    return [
        record
        for approval in approvals
        for record in (
            _decision(events, approval),
            events.client_call(approval) if approval.client else events.approval(approval),
        )
    ]


def _decision(events: RunEvents, approval: Approval) -> NewRecord:
    status = cast(DecisionStatus, approval.status)  # the callers pass only calls that are decided
    by = approval.decided_by or ""
    return events.key.decision(approval.turn, approval.call_id, status, by, approval.reason, approval.output)


class LaneApprovals:
    """Releases the lane while calls of its run wait for approval, and resumes the run when all are decided."""

    def __init__(
        self,
        bus: Engine,
        writer: LaneWriter,
        settlement: LaneSettlement,
        clock_ms: Callable[[], int],
        reports: RunReports,
    ) -> None:
        self.max_s = APPROVAL_MAX_S
        self.now_ms: Callable[[], int] = now_ms  # the wall clock
        self._clock_ms = clock_ms  # the log clock
        self._bus = bus
        self._writer = writer
        self._owner = writer.owner
        self._settlement = settlement
        self._reports = reports

    async def ask(self, plan: RunPlan, mail: LeavingMail, events: RunEvents, context: RunContext) -> Outcome:
        """Ask for approval of the waiting calls in the append that releases the lane.

        One append, so that a crash leaves both or neither: a request for approval is only seen when its run is paused.
        """
        max_ms = round(self.max_s * 1000)
        expires_ms, due_ms = self.now_ms() + max_ms, self._clock_ms() + max_ms
        calls: list[ApprovalRequest] = []
        requests: list[NewRecord] = []
        client_calls: list[Approval] = []
        for call in context.waiting:
            approval = Approval(
                events.run_id, events.agent, call.turn, call.id, call.name, call.speaker, call.arguments, expires_ms
            )
            facts: ApprovalRequest = {
                "call_id": call.id,
                "name": call.name,
                "speaker": call.speaker,
                "expires_ms": expires_ms,
                "due_ms": due_ms,
            }
            if call.client:
                facts["client"] = True
                client_calls.append(approval)
            else:
                requests.append(events.approval(approval))
            calls.append(facts)
        requests += events.client_calls(client_calls, context.usage)
        asked = [call.id for call in context.waiting if not call.client]
        requests += self._reports.approval_requested(events, asked, expires_ms)
        pause = events.key.pause(context.waiting[0].turn, events.attempt, calls)
        waiting = WaitingCalls(len(calls), len(client_calls))
        return await self._settlement.paused(plan, mail, events, (pause, *requests), waiting, self.max_s)

    async def check(self, plan: RunPlan, mail: LeavingMail, events: RunEvents, context: RunContext) -> Outcome | None:
        """Return how the lane was released again, or None when every call is decided and the run resumes."""
        decisions: dict[str, JsonMapping] = {
            parsed.envelope.id: parsed.envelope.model_dump() for parsed in plan.consumed.decisions
        }
        now, clock = self.now_ms(), self._clock_ms()
        while isinstance(paused := plan_paused(context.run, decisions, now, clock), OverdueCalls):
            for call in paused.calls:
                decisions[call.decision_id] = await self._expire(call)
        records = _decision_records(events, paused.decided)
        if isinstance(paused, AwaitingDecisions):
            return await self._settlement.still_paused(plan, mail, events, records, paused.left, paused.delay_s)
        refs = tuple(parsed.record.ref for parsed in plan.consumed.decisions)
        await self._writer.commit(*records, mail=refs)
        context.run = with_decisions(context.run, events, paused.decided)
        return None

    async def _expire(self, call: Approval) -> JsonMapping:
        """Write that the call expired, and return the decision that counts: a person may have been faster."""
        conversation = self._owner.conversation
        return await retry_call(lambda: expire_approval(Log(self._bus), conversation, call), self._owner.token)
