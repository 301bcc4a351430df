"""Calls that need approval, on every engine: the run releases its lane, and resumes with the decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Describe, Lanes
from magent2.errors import AlreadyDecided, UnknownCall
from magent2.mail.delivery import deliver
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.approvals import Approval, ApprovalDecision, decide_approval, find_approvals
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.journaled_runs import CallbackModel, CrashingBus, Items, work_until_crash
from tests.support.steerable_run import pending_mail, receipts, steer
from tests.support.worker_fixture import AGENT, command, envelope, history, outputs, run_worker, send, stream, until


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


class PayingAgent:
    """An agent that calls `look` once and `pay` for each order in one turn. `pay` needs approval."""

    def __init__(self, orders: int = 1) -> None:
        self.paid: list[int] = []
        self.looked = 0
        self.requests: list[list[Mapping[str, Any]]] = []
        self._orders = orders

        @function_tool(needs_approval=True)
        def pay(order: int) -> str:
            """Pay for an order."""
            self.paid.append(order)
            return f"paid {order}"

        @function_tool
        def look() -> str:
            """Look something up."""
            self.looked += 1
            return "looked"

        self._agent = Agent[Any](name=AGENT, model=CallbackModel(self._say), tools=[pay, look])

    @property
    def runner(self) -> OpenAIAgentsRunner:
        return OpenAIAgentsRunner(self._agent)

    def _say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append([dict(item) for item in items])
        results = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        if results:
            return [assistant_message("; ".join(results))]
        calls = [function_call("pay", {"order": n}, call_id=f"pay-{n}") for n in range(self._orders)]
        return [function_call("look", {}, call_id="look"), *calls]


def decide(
    bus: Engine, call: str, decision: ApprovalDecision = "approve", reason: str | None = None, **more: Any
) -> Approval:
    return run_sync(bus, decide_approval, "one", call, decision, "user:ann", reason, **more)


def pending(bus: Engine) -> list[str]:
    return [call.call_id for call in run_sync(bus, find_approvals, "one") if call.status == "pending"]


def approval_events(bus: Engine) -> list[tuple[str, str]]:
    return [(event["tool_call_id"], event["status"]) for event in stream(bus) if event["event"] == "approval"]


def head(bus: Engine) -> Mapping[str, Any]:
    return bus.call(Describe(("stream:one",)))[0].head


async def pause(bus: Engine, agent: PayingAgent, **options: Any) -> None:
    """Work until the run waits for approval, then end the worker."""
    async with run_worker(bus, agent.runner, **options) as service:
        await until(lambda: service.outcomes[Outcome.PAUSED])


async def test_an_approved_call_is_made_by_another_worker_and_nothing_is_asked_or_done_twice(bus: Engine) -> None:
    agent = PayingAgent()
    send(bus, "pay")
    await pause(bus, agent)
    assert (agent.paid, agent.looked, pending(bus)) == ([], 1, ["pay-0"])
    assert head(bus)["paused"] == 1

    decide(bus, "pay-0")
    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert (agent.paid, agent.looked, len(agent.requests)) == ([0], 1, 2)
    assert outputs(bus) == ["looked; paid 0"]
    assert approval_events(bus) == [("pay-0", "requested"), ("pay-0", "approved")]
    assert "paused" not in head(bus)
    assert pending_mail(bus) == 0


async def test_a_rejected_call_is_not_made_and_the_model_is_told_why(bus: Engine) -> None:
    agent = PayingAgent()
    send(bus, "pay")
    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.PAUSED])
        decide(bus, "pay-0", "reject", "too dear")
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert agent.paid == []
    assert outputs(bus) == ["looked; The call was not made: user:ann has rejected it: too dear"]
    assert approval_events(bus) == [("pay-0", "requested"), ("pay-0", "rejected")]


async def test_a_call_without_a_decision_expires_as_rejected(bus: Engine) -> None:
    agent = PayingAgent()
    async with run_worker(bus, agent.runner) as service:
        service.approval_max_s = 0.1
        send(bus, "pay")
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert agent.paid == []
    assert outputs(bus) == ["looked; The call was not made: it was not approved in time."]
    assert approval_events(bus) == [("pay-0", "requested"), ("pay-0", "expired")]
    with pytest.raises(AlreadyDecided, match="expired already"):
        decide(bus, "pay-0")


async def test_the_first_decision_counts_the_same_again_changes_nothing_and_another_is_refused(bus: Engine) -> None:
    agent = PayingAgent()
    send(bus, "pay")
    await pause(bus, agent)

    first = decide(bus, "pay-0", "approve")
    assert decide(bus, "pay-0", "approve", "as I said") == first
    with pytest.raises(AlreadyDecided, match="approved already, by user:ann"):
        decide(bus, "pay-0", "reject")
    with pytest.raises(UnknownCall):
        decide(bus, "never")

    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])
    assert decide(bus, "pay-0", "approve").status == "approved"
    with pytest.raises(AlreadyDecided):
        decide(bus, "pay-0", "reject")
    assert agent.paid == [0]


async def test_a_run_resumes_when_all_its_calls_are_decided(bus: Engine) -> None:
    agent = PayingAgent(orders=2)
    send(bus, "pay")
    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.PAUSED])
        decide(bus, "pay-1", "reject")
        await until(lambda: head(bus).get("paused") == 1)
        assert (pending(bus), agent.paid) == (["pay-0"], [])
        decide(bus, "pay-0")
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert agent.paid == [0]
    assert outputs(bus) == ["looked; paid 0; The call was not made: user:ann has rejected it."]


async def test_a_stop_ends_a_run_that_waits(bus: Engine) -> None:
    agent = PayingAgent()
    send(bus, "pay")
    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.PAUSED])
        stop = command(bus, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED])

    assert [outcome for name, outcome in receipts(bus) if name == stop] == ["stopped"]
    assert (agent.paid, pending(bus), pending_mail(bus)) == ([], [], 0)
    assert "paused" not in head(bus)
    with pytest.raises(UnknownCall):
        decide(bus, "pay-0")


async def test_other_mail_waits_behind_the_decision_its_sender_is_told_and_a_steer_is_seen_after_it(
    bus: Engine,
) -> None:
    agent = PayingAgent()
    send(bus, "pay")
    async with run_worker(bus, agent.runner) as service:
        await until(lambda: service.outcomes[Outcome.PAUSED])
        assert run_sync(bus, deliver, envelope("another thing")).paused
        steer(bus, "hurry")
        assert 1 <= pending_mail(bus) <= 3  # a claim puts new mail into the lane, and answers none of it
        decide(bus, "pay-0")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    asked = [item.get("content") for item in agent.requests[1] if item.get("role") == "user"]
    assert ["hurry" in str(text) for text in asked] == [False, True], "the steer was not seen by the run that waited"
    assert [record["envelope"]["content"] for record in history(bus) if record["kind"] == "start"] == [
        "pay",
        "another thing",
    ]


WRITES_MAX = 12


@pytest.mark.parametrize("after", [False, True])
async def test_a_worker_may_crash_at_any_write_before_or_after_the_decision(after: bool) -> None:
    """Recorded model calls and tool calls are not repeated. There is one approval request, and one decision counts."""
    crashes = {"pause": 0, "resume": 0}
    for half in crashes:
        for at in range(1, WRITES_MAX):
            memory, agent = MemoryBus(), PayingAgent()
            send(memory, "pay")
            crashed = await _crash_in(half, memory, agent, at, after)
            crashes[half] += crashed
            assert outputs(memory) == ["looked; paid 0"], (half, at)
            assert approval_events(memory) == [("pay-0", "requested"), ("pay-0", "approved")], (half, at)
            assert (pending_mail(memory), head(memory).get("paused")) == (0, None), (half, at)
            assert len(agent.paid) <= 2, "made again though its result was on the log"
            memory.close()
            if not crashed:
                break

    assert all(1 < count < WRITES_MAX - 1 for count in crashes.values()), crashes


async def _crash_in(half: str, memory: MemoryBus, agent: PayingAgent, at: int, after: bool) -> bool:
    """Run everything, with a crash at write number `at` in one half. Return whether there was such a write."""
    if half == "pause":
        crashed = await work_until_crash(CrashingBus(memory, at, after), agent.runner)
        await _work_until(memory, agent, Outcome.PAUSED)
        decide(memory, "pay-0")
    else:
        await _work_until(memory, agent, Outcome.PAUSED)
        decide(memory, "pay-0")
        crashed = await work_until_crash(CrashingBus(memory, at, after), agent.runner)
    await _work_until(memory, agent, Outcome.ANSWERED)
    return crashed


async def _work_until(memory: MemoryBus, agent: PayingAgent, outcome: Outcome) -> None:
    """Work until the run has reached the outcome, unless it has already."""
    while not _has_reached(memory, outcome) or memory.call(Lanes(AGENT)):
        claims = memory.call(Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=60.0))
        if not claims.lanes:
            return
        await LaneRun(memory, claims.lanes[0], agent.runner).work()


def _has_reached(memory: MemoryBus, outcome: Outcome) -> bool:
    return bool(pending(memory)) if outcome is Outcome.PAUSED else bool(outputs(memory))
