"""A model server that does not answer: messages wait for it, and it is not asked again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Leave
from magent2.mail.retry_policy import RetryPolicy
from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.observation import RunObserver
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Call, Json, ModelServer, Reply
from tests.support.team import mail, team_on, work
from tests.support.worker_fixture import dead_letters, errors, history, outputs, stream, until

CONVERSATIONS = 20
OUTAGE_S = 3000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[MemoryBus]:
    bus = MemoryBus(clock=clock)
    yield bus
    bus.close()


class Outage:
    """Answers for a model server that can be down."""

    def __init__(self) -> None:
        self.is_down = True

    def __call__(self, request: Json) -> Reply:
        return Reply(status=503) if self.is_down else Reply("Hi.")


async def test_a_message_survives_an_outage_of_fifty_minutes_and_the_death_of_its_workers(
    bus: MemoryBus, clock: ManualClock
) -> None:
    outage, outcomes = Outage(), list[Outcome]()
    began_ms = clock.monotonic_ms()
    mail(bus, "hello")
    with ModelServer(outage) as server:
        runner = team_on(server.url)
        while clock.monotonic_ms() - began_ms < OUTAGE_S * 1000:
            outcomes.append(await work(bus, runner, worker=f"w{len(outcomes)}"))
            clock.pass_s(errors(bus)[-1]["retry_in_s"] + 0.001)
            if len(outcomes) % 10 == 0:  # the next worker dies
                bus.call(Claim(worker="dying", agents=("desk",), limit=1, lease_s=60.0))
                bus.call(Leave("dying"))
        outage.is_down = False
        assert await work(bus, runner) is Outcome.ANSWERED
        await runner.aclose()

    assert set(outcomes) == {Outcome.RETRIED}
    assert len(outcomes) > 40
    assert (outputs(bus), dead_letters(bus, "desk")) == (["Hi."], [])


async def test_a_failure_after_an_answer_begins_a_new_hour(bus: MemoryBus, clock: ManualClock) -> None:
    replies = iter(
        [Reply(status=503), Reply(calls=[Call("weather", {"city": "Oslo"})]), Reply(status=503), Reply("Hi.")]
    )
    mail(bus, "hello")
    with ModelServer(lambda request: next(replies)) as server:
        runner = team_on(server.url)
        assert await work(bus, runner) is Outcome.RETRIED
        clock.pass_s(4000)
        assert await work(bus, runner) is Outcome.RETRIED
        clock.pass_s(4000)
        assert await work(bus, runner) is Outcome.ANSWERED
        await runner.aclose()

    assert [record["kind"] for record in history(bus)].count("retry") == 2


async def test_a_provider_that_does_not_answer_is_not_asked_by_every_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, bus, metrics = Outage(), MemoryBus(), RunMetrics()
    slow = RetryPolicy(first_s=3600.0, max_s=3600.0, jitter=0.0, give_up_after_s=86_400.0)
    for number in range(CONVERSATIONS):
        mail(bus, "hello", conversation=f"c{number}")
    with ModelServer(outage) as server, caplog.at_level(logging.WARNING):
        runner = team_on(server.url)
        service = WorkerService(
            bus, {"desk": runner}, concurrency=1, retry=slow, circuit_failures=3, observer=RunObserver(metrics)
        )
        task = asyncio.create_task(service.run())
        await until(lambda: service.outcomes[Outcome.DEFERRED] == CONVERSATIONS - 3)
        await service.drain(1.0)
        await task
        await runner.aclose()

    assert len(server.requests) == 3
    assert service.outcomes[Outcome.RETRIED] == 3
    deferred = errors(bus, "c10")[0]
    assert deferred["message"].startswith("CircuitOpen: 127.0.0.1 does not answer; calls are suspended")
    assert deferred["retry_in_s"] > 3000
    assert [record.message for record in caplog.records].count(
        "a model provider does not answer; calls are suspended"
    ) == 1
    assert b'magent2_model_circuit_open{provider="127.0.0.1"} 1.0' in metrics_text(metrics)
    bus.close()


async def test_all_messages_are_answered_when_the_provider_comes_back() -> None:
    outage, bus, metrics = Outage(), MemoryBus(), RunMetrics()
    quick = RetryPolicy(first_s=0.01, max_s=0.05, jitter=0.5, give_up_after_s=3600.0)
    for number in range(CONVERSATIONS):
        mail(bus, "hello", conversation=f"c{number}")
    with ModelServer(outage) as server:
        runner = team_on(server.url)
        service = WorkerService(
            bus, {"desk": runner}, concurrency=2, retry=quick, circuit_failures=3, observer=RunObserver(metrics)
        )
        task = asyncio.create_task(service.run())
        await until(lambda: service.outcomes[Outcome.DEFERRED] > CONVERSATIONS)
        outage.is_down = False
        await until(lambda: service.outcomes[Outcome.ANSWERED] == CONVERSATIONS, 30.0)
        await service.drain(1.0)
        await task
        await runner.aclose()

    assert dead_letters(bus, "desk") == []
    assert b'magent2_model_circuit_open{provider="127.0.0.1"} 0.0' in metrics_text(metrics)
    assert all(event["attempt"] >= 1 for event in stream(bus, "c0"))
    bus.close()


def metrics_text(metrics: RunMetrics) -> bytes:
    return generate_latest(metrics.registry)


@pytest.mark.parametrize(("status", "outcome"), [(429, Outcome.RETRIED), (401, Outcome.BURIED), (400, Outcome.BURIED)])
async def test_which_answers_of_a_provider_are_retried(bus: MemoryBus, status: int, outcome: Outcome) -> None:
    mail(bus, "hello")
    with ModelServer([Reply(status=status, retry_after="7")]) as server:
        runner = team_on(server.url)
        assert await work(bus, runner) is outcome
        await runner.aclose()

    assert errors(bus)[0].get("retry_in_s") == (7.0 if outcome is Outcome.RETRIED else None)
