"""Budgets of runs: a run pauses when one is used up, and goes on when it is raised or the day ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from agents import Agent
from agents.testing import ModelStep, ScriptedModel, assistant_message

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe, Operation, Read, Write
from magent2.bus.retention import RetentionPolicy
from magent2.errors import ModelUnavailable
from magent2.mail.delivery import SendOptions
from magent2.models.budgets import Amount, Budgets, Limit, Price
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.history import HistoryCache
from magent2.sessions.store import create_session
from magent2.sessions.sweep import sweep_log
from magent2.sessions.usage.budgets import BudgetName, read_limits, set_limit
from magent2.sessions.usage.ledger import read_ledger
from magent2.sessions.usage.state import BudgetState
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.run_attempt import RunServices
from magent2.worker.service import WorkerService
from tests.support.budgets import INPUT, OUTPUT, USER, answers_of, budget_events, looking, used_by
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.journaled_runs import CrashingBus, work_until_crash
from tests.support.worker_fixture import AGENT, claim_one, command, history, outputs, run_worker, send, until

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
FAR_FUTURE_MS = 10**14  # everything is old then
FOREVER = 100  # crash points; a run makes far fewer writes


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    run_sync(engine, create_session, "one", USER)
    yield engine
    engine.close()


@pytest.fixture
def memory() -> Iterator[Engine]:
    engine = MemoryBus()
    run_sync(engine, create_session, "one", USER)
    yield engine
    engine.close()


def limited(service: WorkerService, **limits: Limit) -> None:
    service.budgets.configured = lambda: Budgets(**limits)  # type: ignore[arg-type]


def reached(service: WorkerService, times: int = 1) -> Callable[[], bool]:
    return lambda: service.outcomes[Outcome.PAUSED] >= times


def answered(service: WorkerService, times: int = 1) -> Callable[[], bool]:
    return lambda: service.outcomes[Outcome.ANSWERED] >= times


async def test_a_run_pauses_when_its_budget_is_used_up_and_goes_on_when_it_is_raised(bus: Engine) -> None:
    send(bus, "look around")
    async with run_worker(bus, looking(5)) as service:
        limited(service, run=Limit(calls=3))
        await until(reached(service))
        (waiting,) = run_sync(bus, read_limits).waiting.values()
        assert (used_by(bus).spent.calls, outputs(bus)) == (3, [])

        run_sync(bus, set_limit, BudgetName("run", waiting.run), Limit(calls=10), "user:root")
        await until(answered(service))

    assert (used_by(bus).spent, outputs(bus)) == (answers_of(bus, "one"), ["done"])
    assert used_by(bus).spent.calls == 6
    assert [event["status"] for event in budget_events(bus)] == ["reached"]
    assert not run_sync(bus, read_limits).waiting


async def test_a_sweep_keeps_the_ledger_of_a_run_that_waits_and_removes_it_when_the_run_has_ended(bus: Engine) -> None:
    def sweep() -> int:
        policy = RetentionPolicy(tokens_after_s=None, blobs_after_s=None, ledgers_after_s=0.0)
        return run_sync(bus, sweep_log, policy, FAR_FUTURE_MS).ledgers

    send(bus, "look around")
    async with run_worker(bus, looking(5)) as service:
        limited(service, run=Limit(calls=3))
        await until(reached(service))
        (waiting,) = run_sync(bus, read_limits).waiting.values()
        while_waiting = sweep()
        run_sync(bus, set_limit, BudgetName("run", waiting.run), Limit(calls=5), "user:root")
        await until(reached(service, 2))
        again = sweep()
        limit, calls = dict(run_sync(bus, read_limits).set), used_by(bus).spent.calls
        run_sync(bus, set_limit, BudgetName("run", waiting.run), Limit(calls=10), "user:root")
        await until(answered(service))
        await until(lambda: sweep() == 1)

    assert (while_waiting, again, calls) == (0, 0, 5)
    assert limit == {BudgetName("run", waiting.run): Limit(calls=5)}
    assert not run_sync(bus, read_limits).set
    assert used_by(bus).spent == answers_of(bus, "one")


async def test_a_paused_run_is_shown_and_can_be_stopped(bus: Engine) -> None:
    send(bus, "look around")
    async with run_worker(bus, looking(5)) as service:
        limited(service, conversation=Limit(tokens=150))
        await until(reached(service))
        (event,) = [event for event in budget_events(bus) if event["status"] == "reached"]
        (head,) = [info.head for info in bus.call(Describe(("stream:one",)))]
        command(bus, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED])

    assert (event["budgets"][0]["budget"], event["budgets"][0]["tokens"]) == ("conversation", 2 * (INPUT + OUTPUT))
    assert event["message"] == "the budget is used up; raise the budget or stop the run"
    assert "resumes_at" not in event
    assert head["budget"] == "conversation"
    assert not run_sync(bus, read_limits).waiting
    assert history(bus)[-1]["status"] == "stopped"


async def test_a_daily_budget_goes_on_by_itself_when_the_day_turns(memory: Engine) -> None:
    now = [NOON]
    send(memory, "look around")
    async with run_worker(memory, looking(3)) as service:
        limited(service, user_day=Limit(calls=2))
        service.budgets.now_ms = lambda: round(now[0].timestamp() * 1000)
        now[0] = NOON.replace(hour=23, minute=59, second=59, microsecond=900_000)
        await until(reached(service))
        (event,) = [event for event in budget_events(memory) if event["status"] == "reached"]
        assert event["resumes_at"] == "2026-11-18T00:00:00Z"
        now[0] += timedelta(days=1)
        await until(answered(service))

    assert (outputs(memory), used_by(memory).spent.calls) == (["done"], 4)


async def test_a_run_that_is_woken_while_nothing_has_changed_waits_again_without_a_further_event(
    memory: Engine,
) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(3)) as service:
        limited(service, run=Limit(calls=2))
        await until(reached(service))
        command(memory, "resume")
        await until(reached(service, 2))

    assert [event["status"] for event in budget_events(memory)].count("reached") == 1
    assert len(run_sync(memory, read_limits).waiting) == 1


async def test_a_raise_that_is_too_small_pauses_the_run_again(memory: Engine) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(5)) as service:
        limited(service, run=Limit(calls=2))
        await until(reached(service))
        (waiting,) = run_sync(memory, read_limits).waiting.values()
        run_sync(memory, set_limit, BudgetName("run", waiting.run), Limit(calls=3), "user:root")
        await until(reached(service, 2))
        assert used_by(memory).spent.calls == 3
        run_sync(memory, set_limit, BudgetName("run", waiting.run), Limit(), "user:root")
        await until(answered(service))

    assert used_by(memory).spent.calls == 6


async def test_at_four_fifths_one_event_says_so(memory: Engine) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(12)) as service:
        limited(service, user=Limit(calls=10, tokens=10_000))
        await until(reached(service))

    events = [(event["status"], event["budgets"][0]["calls"]) for event in budget_events(memory)]
    assert events == [("warning", 8), ("reached", 10)]


async def test_messages_and_steers_wait_while_the_run_is_paused(memory: Engine) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(2)) as service:
        limited(service, run=Limit(calls=2))
        await until(reached(service))
        send(memory, "and there", sending=SendOptions(steer=True))
        send(memory, "another question")
        (waiting,) = run_sync(memory, read_limits).waiting.values()
        run_sync(memory, set_limit, BudgetName("run", waiting.run), Limit(calls=20), "user:root")
        await until(lambda: outputs(memory))

    assert outputs(memory)[0] == "done"
    (seen,) = [record["steers"] for record in history(memory) if record["kind"] == "answer" and record.get("steers")]
    assert [steer["text"] for steer in seen] == ["and there"]


async def test_two_runs_at_once_share_the_budget_of_their_user(bus: Engine) -> None:
    run_sync(bus, create_session, "two", USER)
    send(bus, "look around")
    send(bus, "look around", "two")
    async with run_worker(bus, looking(20)) as service:
        limited(service, user=Limit(calls=7))
        await until(reached(service, 2))

    assert used_by(bus).spent.calls == 7
    assert used_by(bus).spent == answers_of(bus, "one", "two")


async def test_a_limit_that_is_set_later_counts_what_the_conversation_has_used_before(memory: Engine) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(2)) as service:
        await until(answered(service))
        run_sync(memory, set_limit, BudgetName("conversation", "one"), Limit(calls=4), "user:root")
        send(memory, "again")
        await until(reached(service))

    assert used_by(memory).spent.calls == 4
    assert run_sync(memory, read_ledger, "usage:conversation:one").used().spent.calls == 4


async def test_money_counts_by_the_price_of_the_configuration(memory: Engine) -> None:
    prices = {"looker": Price(Decimal(10), Decimal(20))}  # for 70 and 30 tokens: 0.0013
    send(memory, "look around")
    async with run_worker(memory, looking(5, "looker")) as service:
        service.budgets.configured = lambda: Budgets(run=Limit(cost_usd=Decimal("0.003")), prices=prices)
        await until(reached(service))

    assert used_by(memory).spent == Amount(3 * INPUT, 3 * OUTPUT, calls=3, cost_usd=Decimal("0.0039"))


async def test_a_call_of_unknown_price_costs_no_money_and_says_so(memory: Engine) -> None:
    send(memory, "look around")
    async with run_worker(memory, looking(2, "unheard-of")) as service:
        limited(service, run=Limit(cost_usd=Decimal("0.000001")))
        await until(answered(service))

    assert used_by(memory).spent == Amount(3 * INPUT, 3 * OUTPUT, calls=3, unpriced_calls=3)


async def test_a_call_that_the_provider_refuses_uses_nothing(memory: Engine) -> None:
    model = ScriptedModel([ModelUnavailable("busy"), [assistant_message("done")]])
    send(memory, "hello")
    async with run_worker(memory, OpenAIAgentsRunner(Agent(name=AGENT, model=model))) as service:
        limited(service, run=Limit(calls=1))
        await until(answered(service))

    assert used_by(memory).lost == Amount()
    assert used_by(memory).spent.calls == 1


async def test_a_call_that_is_cut_off_by_a_stop_counts_as_its_estimate(memory: Engine) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def stuck(_: object) -> list[object]:
        begun.set()
        await never.wait()
        return []

    model = ScriptedModel([ModelStep.respond(stuck)])  # type: ignore[arg-type]
    send(memory, "hello")
    async with run_worker(memory, OpenAIAgentsRunner(Agent(name=AGENT, model=model))) as service:
        limited(service, run=Limit(calls=3))
        await begun.wait()
        command(memory, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED])

    used = used_by(memory)
    assert (used.spent.calls, used.lost.calls) == (0, 1)
    assert used.lost.tokens > 0


@pytest.mark.parametrize("after", [False, True])
async def test_usage_is_exact_and_the_budget_holds_wherever_the_worker_dies(after: bool) -> None:
    limit, died, at = 4, True, 0
    while died:
        at += 1
        assert at < FOREVER
        engine = MemoryBus()
        run_sync(engine, create_session, "one", USER)
        send(engine, "look around")
        runner, died = looking(3), False
        died = await work_until_crash(CrashingBus(engine, at, after), runner, labour(limit))
        outcome = None
        while outcome is not Outcome.PAUSED and not outputs(engine):
            outcome = await labour(limit)(engine, runner, "second")

        used = used_by(engine)
        assert used.spent == answers_of(engine, "one"), at
        assert used.spent.calls + used.lost.calls <= limit, at
        # A call is lost only if its worker died between its reservation and its answer.
        assert used.lost.calls <= 1, at
        if outcome is Outcome.PAUSED:
            (waiting,) = run_sync(engine, read_limits).waiting.values()
            run_sync(engine, set_limit, BudgetName("run", waiting.run), Limit(calls=9), "user:root")
            await labour(limit)(engine, runner, "third")
        assert outputs(engine) == ["done"], at
        engine.close()


def labour(limit: int) -> Callable[..., Coroutine[Any, Any, Outcome]]:
    """Work on the pending lane, as a worker of its own with this limit of calls in a run."""

    async def work(bus: Engine, runner: OpenAIAgentsRunner, worker: str) -> Outcome:
        state = BudgetState(lambda: Budgets(run=Limit(calls=limit)))
        services = RunServices(HistoryCache(bus), budgets=state)
        return await LaneRun(bus, claim_one(bus, worker), runner, services=services).work()

    return work


async def test_without_a_limit_a_call_costs_one_record_and_no_append_of_its_own(memory: Engine) -> None:
    send(memory, "look around")
    watched = _WatchedBus(memory)
    await LaneRun(watched, claim_one(memory), looking(3)).work()

    assert used_by(memory).spent == Amount(4 * INPUT, 4 * OUTPUT, calls=4, unpriced_calls=4)
    kinds = [[record.payload.get("kind") for record in write.records] for write in watched.writes]
    assert [(found.count("answer"), found.count("spend")) for found in kinds if "spend" in found] == [(1, 1)] * 4
    assert not [topic for topic in watched.topics_read if topic.startswith(("usage:", "budgets:"))]


class _WatchedBus(EngineWrapper):
    """Keeps the writes, and the topics that are read."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.writes: list[Write] = []
        self.topics_read: list[str] = []

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Write):
            self.writes.append(operation)
        elif isinstance(operation, Read):
            self.topics_read.append(operation.topic)
        elif isinstance(operation, Describe):
            self.topics_read += operation.topics
        return self.inner.call(operation)
