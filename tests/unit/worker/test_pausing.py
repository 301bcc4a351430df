"""How a paused run continues, given the decisions on the log."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.sessions.approvals import Approval, ApprovalDecision, decision_envelope, run_approvals
from magent2.sessions.history import RunRecord
from magent2.worker.approvals import AwaitingDecisions, OverdueCalls, ResumeRun, plan_paused, with_decisions
from magent2.worker.run_events import RunEvents, WaitingCalls

NOW = 1_000_000  # by the wall clock
CLOCK = 7_000_000  # by the log clock
EVENTS = RunEvents("one", "Ada", "run-1", 1, "m1")


def paused(**expires_in_s: float) -> RunRecord:
    """Return a run whose calls wait for approval and expire after these seconds."""
    run = RunRecord("run-1", "Ada", {"id": "m1"}, {}, 0)
    output = [
        {"type": "function_call", "call_id": call, "name": "pay", "arguments": '{"n": 1}'} for call in expires_in_s
    ]
    run.answers[0] = {"turn": 0, "response": {"output": output}, "speaker": "Ada"}
    for call, seconds in expires_in_s.items():
        expires_ms = NOW + round(seconds * 1000)
        run.asked[0, call] = {"call_id": call, "name": "pay", "speaker": "Ada", "expires_ms": expires_ms}
    return run


def decisions_on(run: RunRecord, **decisions: ApprovalDecision) -> dict[str, Any]:
    calls = {call.call_id: call for call in run_approvals(run)}
    parsed_mail = [decision_envelope("one", calls[name], word, "user:ann", "so") for name, word in decisions.items()]
    return {parsed.id: parsed.model_dump() for parsed in parsed_mail}


def statuses(approvals: tuple[Approval, ...]) -> list[tuple[str, str]]:
    return [(approval.call_id, approval.status) for approval in approvals]


def test_without_a_decision_the_run_waits_until_the_first_call_expires() -> None:
    assert plan_paused(paused(a=5, b=3), {}, NOW, CLOCK) == AwaitingDecisions((), WaitingCalls(2), 3.0)


def test_with_one_of_two_decisions_the_run_waits_for_the_other() -> None:
    run = paused(a=5, b=3)

    plan = plan_paused(run, decisions_on(run, b="reject"), NOW, CLOCK)

    assert isinstance(plan, AwaitingDecisions)
    assert (statuses(plan.decided), plan.left.number, plan.delay_s) == ([("b", "rejected")], 1, 5.0)


def test_when_all_calls_are_decided_the_run_resumes_however_late() -> None:
    run = paused(a=-1, b=-1)

    plan = plan_paused(run, decisions_on(run, a="approve", b="expire"), NOW, CLOCK)

    assert isinstance(plan, ResumeRun)
    assert statuses(plan.decided) == [("a", "approved"), ("b", "expired")]
    assert [(call.decided_by, call.reason) for call in plan.decided] == [("user:ann", "so")] * 2


@pytest.mark.parametrize(("expires_in_s", "overdue"), [(0.0, True), (-1.0, True), (0.001, False)])
def test_a_call_is_overdue_from_the_moment_that_it_expires(expires_in_s: float, overdue: bool) -> None:
    assert isinstance(plan_paused(paused(a=expires_in_s), {}, NOW, CLOCK), OverdueCalls) == overdue


def test_only_calls_without_a_decision_are_overdue() -> None:
    run = paused(a=-1, b=-1)

    plan = plan_paused(run, decisions_on(run, a="approve"), NOW, CLOCK)

    assert isinstance(plan, OverdueCalls)
    assert [call.call_id for call in plan.calls] == ["b"]


def test_a_decision_under_another_id_decides_nothing() -> None:
    run = paused(a=5)
    forged = {"any-id": next(iter(decisions_on(run, a="approve").values()))}

    assert plan_paused(run, forged, NOW, CLOCK) == AwaitingDecisions((), WaitingCalls(1), 5.0)


def test_recorded_decisions_are_not_awaited_and_the_history_is_not_changed() -> None:
    run = paused(a=5)
    plan = plan_paused(run, decisions_on(run, a="approve"), NOW, CLOCK)
    assert isinstance(plan, ResumeRun)

    known = with_decisions(run, EVENTS, plan.decided)

    assert (known.undecided, run.undecided) == ([], [(0, "a")])
    assert known.decisions[0, "a"]["status"] == "approved"


def test_a_run_that_has_ended_waits_for_no_decision() -> None:
    run = paused(a=5)
    run.end = {"status": "stopped", "output": None, "usage": None}

    assert run.undecided == []


@pytest.mark.parametrize(("due_in_s", "overdue"), [(-1, True), (0, True), (3, False)])
@pytest.mark.parametrize("jump_s", [-86_400, 0, 86_400])
def test_a_call_expires_by_the_log_clock_when_the_wall_clock_is_set(
    due_in_s: float, overdue: bool, jump_s: float
) -> None:
    run = paused(a=due_in_s)
    run.asked[0, "a"]["due_ms"] = CLOCK + round(due_in_s * 1000)

    plan = plan_paused(run, {}, NOW + round(jump_s * 1000), CLOCK)

    assert isinstance(plan, OverdueCalls) == overdue
    if isinstance(plan, AwaitingDecisions):
        assert plan.delay_s == due_in_s
