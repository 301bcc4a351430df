"""A run that waits for a person: what its lane does each time it is claimed. Pure, but for the clock that it is told.

While calls wait, the lane sleeps until the first of them expires, and only control mail wakes it: a decision or a stop.
A call that nobody has decided on in time is decided on by a letter like any other, so that the log says who was first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from magent2.bus.records import NewRecord
from magent2.sessions.approvals import Approval, apply_decision, run_approvals
from magent2.sessions.history import ApprovalRequest, RunRecord
from magent2.worker.run_events import RunEvents


@dataclass(frozen=True, slots=True)
class Waiting:
    """So many calls are left, and the next of them expires in so many seconds."""

    decided: tuple[Approval, ...]
    left: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """Nobody has decided on these in time."""

    calls: tuple[Approval, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """All are decided on: the run goes on."""

    decided: tuple[Approval, ...]


Paused: TypeAlias = Waiting | Overdue | Resume


def plan_paused(run: RunRecord, written: Mapping[str, Mapping[str, Any]], now_ms: int) -> Paused:
    """What a paused run is to do about the decisions that are written, by their ids."""
    waiting = [approval for approval in run_approvals(run) if approval.status == "pending"]
    known = tuple(apply_decision(call, written[call.decision_id]) for call in waiting if call.decision_id in written)
    left = [call for call in waiting if call.decision_id not in written]
    if not left:
        return Resume(known)
    overdue = tuple(call for call in left if call.expires_ms <= now_ms)
    if overdue:
        return Overdue(overdue)
    return Waiting(known, len(left), (min(call.expires_ms for call in left) - now_ms) / 1000)


def asked_call(approval: Approval) -> ApprovalRequest:
    """A call as the history has it while it waits."""
    return {
        "call_id": approval.call_id,
        "name": approval.name,
        "speaker": approval.speaker,
        "expires_ms": approval.expires_ms,
    }


def decision_records(report: RunEvents, approvals: Sequence[Approval]) -> list[NewRecord]:
    """Each decision in the history, and the event that tells it."""
    return [record for approval in approvals for record in (_decision(report, approval), report.approval(approval))]


def with_decisions(run: RunRecord, report: RunEvents, approvals: Sequence[Approval]) -> RunRecord:
    """The run as it is once these are recorded; the history's own is not changed."""
    known = run.copy()
    found: Mapping[tuple[int, str], Any] = {approval.key: _decision(report, approval).payload for approval in approvals}
    known.decisions.update(found)
    return known


def _decision(report: RunEvents, approval: Approval) -> NewRecord:
    by = approval.decided_by or ""
    return report.key.decision(approval.turn, approval.call_id, approval.status, by, approval.reason)
