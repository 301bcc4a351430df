"""The worker service: many lanes at a time, notified instead of polling, stopped and drained."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import (
    Append,
    Claim,
    Describe,
    Lanes,
    Leave,
    Operation,
    Pending,
    Read,
    Renew,
    Settle,
    Workers,
)
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.errors import BusUnavailable, InvalidInput, LimitError, NameTaken, StorageCorrupt, TransientError
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import Event
from magent2.worker.lane_run import Outcome
from magent2.worker.service import OWNER_CHECKS_MAX, WorkerService
from tests.support.engine_wrappers import EngineWrapper
from tests.support.flaky_engine import FlakyEngine
from tests.support.manual_clock import ManualClock
from tests.support.runners import AsyncRunner, GatedRunner, SyncRunner, output
from tests.support.worker_fixture import (
    AGENT,
    claim_one,
    command,
    history,
    kinds,
    outputs,
    run_worker,
    send,
    stream,
    until,
)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


class Counting(EngineWrapper):
    """Counts operations, and fails selected ones."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.counts: Counter[str] = Counter()
        self.failing: dict[str, list[Exception]] = {}
        self.claims: list[Claim] = []

    def answer(self, operation: Operation[Any]) -> Any:
        name = type(operation).__name__
        self.counts[name] += 1
        if isinstance(operation, Claim):
            self.claims.append(operation)
        if self.failing.get(name):
            raise self.failing[name].pop(0)
        return self.inner.call(operation)


async def test_mail_is_answered_as_it_comes(bus: MemoryBus) -> None:
    send(bus, "before")
    async with run_worker(bus, EchoRunner()):
        await until(lambda: outputs(bus) == ["before"])
        send(bus, "while")
        await until(lambda: outputs(bus) == ["before", "while"])


async def test_mail_of_one_conversation_is_answered_in_order(bus: MemoryBus) -> None:
    for n in range(30):
        send(bus, str(n), f"c{n % 3}")
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 30)

    assert [outputs(bus, f"c{c}") for c in range(3)] == [[str(n) for n in range(c, 30, 3)] for c in range(3)]


async def test_runs_of_one_conversation_do_not_overlap(bus: MemoryBus) -> None:
    for n in range(20):
        send(bus, str(n))
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 20)

    assert kinds(stream(bus)) == ["started", "token", "output", "finished"] * 20


async def test_conversations_run_side_by_side_up_to_the_limit(bus: MemoryBus) -> None:
    runner = GatedRunner()
    for n in range(5):
        send(bus, str(n), f"c{n}")
    async with run_worker(bus, runner, concurrency=3) as service:
        await until(lambda: len(runner.begun) == 3)
        assert len(bus.call(Workers())) == 1
        assert bus.call(Workers())[0].lanes == 3
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 5)


async def test_a_slow_run_does_not_hold_up_the_others(bus: MemoryBus) -> None:
    slow = asyncio.Event()

    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        if mail.content == "slow":
            await slow.wait()
        yield output(mail, mail.content or "")

    send(bus, "slow", "c0")
    async with run_worker(bus, AsyncRunner(script), concurrency=2) as service:
        for n in range(1, 20):
            send(bus, str(n), f"c{n}")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 19)
        slow.set()


async def test_one_service_serves_several_agents(bus: MemoryBus) -> None:
    service = WorkerService(bus, {"Ada": EchoRunner(), "Bob": EchoRunner()})
    task = asyncio.create_task(service.run())
    for agent in ("Ada", "Bob"):
        send(bus, f"for {agent}", f"with-{agent}", recipient=f"agent:{agent}")
    await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)
    await service.drain(1.0)
    await task

    assert outputs(bus, "with-Bob") == ["for Bob"]


async def test_mail_of_an_agent_without_a_worker_waits(bus: MemoryBus) -> None:
    send(bus, "hello", "one", recipient="agent:Nobody")
    async with run_worker(bus, EchoRunner()) as service:
        send(bus, "hello", "two")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)
    assert stream(bus, "one") == []

    async with run_worker(bus, EchoRunner(), "Nobody") as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)
    assert outputs(bus, "one") == ["hello"]


async def test_a_backlog_costs_one_claim_per_batch_and_one_settle_per_message(bus: MemoryBus) -> None:
    counting = Counting(bus)
    for n in range(200):
        send(bus, str(n), f"c{n}")
    async with run_worker(counting, EchoRunner(), concurrency=50) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 200)

    assert counting.counts["Settle"] == 200
    assert counting.counts["OwnedAppend"] == 0
    assert counting.counts["Claim"] <= 12


async def test_a_service_without_mail_runs_no_operations(bus: MemoryBus) -> None:
    counting = Counting(bus)
    async with run_worker(counting, EchoRunner()) as service:
        send(bus, "hello")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)
        before = counting.counts["Claim"]
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert counting.counts["Claim"] - before <= 1


async def test_an_agent_named_like_a_conversation_is_refused(bus: MemoryBus) -> None:
    send(bus, "hello", "Bob")

    with pytest.raises(NameTaken, match="Bob"):
        await WorkerService(bus, {"Bob": EchoRunner()}).run()


async def test_the_names_of_agents_are_reserved(bus: MemoryBus) -> None:
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: bus.call(Workers()))
        with pytest.raises(NameTaken):
            send(bus, "hello", AGENT, recipient="agent:Bob")
        assert service.worker


async def test_an_unavailable_bus_at_the_start_is_an_error() -> None:
    moody = FlakyEngine(MemoryBus())
    moody.before.append(BusUnavailable("away"))

    with pytest.raises(BusUnavailable):
        await WorkerService(moody, {AGENT: EchoRunner()}).run()


def test_a_service_needs_agents_and_slots(bus: MemoryBus) -> None:
    with pytest.raises(InvalidInput):
        WorkerService(bus, {})
    with pytest.raises(LimitError):
        WorkerService(bus, {AGENT: EchoRunner()}, concurrency=0)


async def test_a_claim_is_repeated_as_it_was_when_the_bus_fails(bus: MemoryBus) -> None:
    counting = Counting(bus)
    async with run_worker(counting, EchoRunner()) as service:
        await until(lambda: len(counting.claims) >= 2)
        counting.failing["Claim"] = [BusUnavailable("away")]
        send(bus, "hello")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    nonces = Counter(claim.nonce for claim in counting.claims)
    assert max(nonces.values()) == 2


async def test_an_error_for_the_operator_ends_the_service_and_gives_the_lanes_back(bus: MemoryBus) -> None:
    counting = Counting(bus)
    runner = GatedRunner()
    send(bus, "slow", "c1")
    service = WorkerService(counting, {AGENT: runner})
    task = asyncio.create_task(service.run())
    await until(lambda: runner.begun)
    counting.failing["Claim"] = [StorageCorrupt("damaged")]
    send(bus, "hello", "c2")

    with pytest.raises(StorageCorrupt):
        await task
    assert bus.call(Workers()) == ()
    assert {lane.state for lane in bus.call(Lanes(AGENT))} == {"ready"}


async def test_an_error_for_the_operator_in_a_run_ends_the_service(bus: MemoryBus) -> None:
    counting = Counting(bus)
    counting.failing["Settle"] = [StorageCorrupt("damaged")]
    send(bus, "hello")

    with pytest.raises(StorageCorrupt):
        await WorkerService(counting, {AGENT: EchoRunner()}).run()


async def test_the_lease_is_renewed_while_it_works() -> None:
    clock = ManualClock()
    bus = MemoryBus(clock=clock)
    runner = GatedRunner()
    counting = Counting(bus)
    send(bus, "hello")
    async with run_worker(counting, runner, lease_s=0.1) as service:
        for number in range(1, 7):
            await renewed(counting, number)
            clock.pass_s(0.04)  # two steps are less than the lease, all of them are more
        await renewed(counting, 7)
        assert bus.call(Claim(worker="w2", agents=(AGENT,), limit=1, lease_s=60.0)).lanes == ()
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)


async def renewed(bus: Counting, times: int) -> None:
    await until(lambda: bus.counts["Renew"] >= times)


async def test_a_worker_that_lost_its_lease_cancels_its_runs_and_continues() -> None:
    bus = MemoryBus(clock=ManualClock())  # the lease is lost when the test says so, not when the machine is slow
    runner = GatedRunner()
    send(bus, "hello")
    async with run_worker(bus, runner, lease_s=0.1) as service:
        await until(lambda: runner.begun)
        bus.call(Leave(service.worker))
        other = claim_one(bus, "w2")
        await until(lambda: service.outcomes[Outcome.FENCED] == 1)
        assert runner.cancelled == ["hello"]
        assert other.attempt == 2
        bus.call(Leave("w2"))
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)


async def test_owner_checks_run_side_by_side_up_to_a_limit_and_one_that_fails_stops_no_other(bus: MemoryBus) -> None:
    class Checked:
        owner = SimpleNamespace(token="t")

        async def check_owner(self) -> None:
            running.append(self)
            most.append(len(running))
            await gate.wait()
            running.remove(self)
            done.append(self)
            raise KeyError("a bug")

    running: list[Checked] = []
    done: list[Checked] = []
    most: list[int] = []
    gate = asyncio.Event()
    runs: Any = [Checked() for _ in range(1000)]
    checks = asyncio.create_task(WorkerService(bus, {AGENT: EchoRunner()}).lease_renewed(runs))
    await until(lambda: len(running) == OWNER_CHECKS_MAX)
    gate.set()
    await checks

    assert (len(done), max(most)) == (1000, OWNER_CHECKS_MAX)


async def test_a_lost_lease_is_logged(bus: MemoryBus, caplog: pytest.LogCaptureFixture) -> None:
    async with run_worker(bus, EchoRunner(), lease_s=0.1) as service:
        await until(lambda: bus.call(Workers()))
        bus.call(Leave(service.worker))
        await until(lambda: "lease was lost" in caplog.text)


async def test_a_lane_of_a_worker_that_died_is_taken_over(bus: MemoryBus) -> None:
    send(bus, "hello")
    claim_one(bus, "dead", lease_s=0.05)
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    assert stream(bus)[0]["attempt"] == 2


async def test_a_stop_reaches_a_run_inside_a_model_call(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        command(bus, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)

    assert kinds(stream(bus))[-1] == "stopped"
    assert kinds(history(bus)) == ["start", "stopped"]
    assert bus.call(Lanes(AGENT)) == ()


async def test_a_stop_ends_the_run_under_way_and_not_the_mail_behind_it(bus: MemoryBus) -> None:
    runner = GatedRunner()
    for text in ("first", "second"):
        send(bus, text)
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        command(bus, "stop")
        await until(lambda: runner.begun == ["first", "second"])
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    assert outputs(bus) == ["second"]
    assert service.outcomes[Outcome.CLEARED] == 0


async def test_a_stop_reaches_its_run_when_every_slot_is_taken(bus: MemoryBus) -> None:
    runner = GatedRunner()
    for n in range(3):
        send(bus, str(n), f"c{n}")
    async with run_worker(bus, runner, concurrency=1) as service:
        await until(lambda: runner.begun)
        command(bus, "stop", "c0")
        await until(lambda: runner.begun == ["0", "1"])
        assert service.outcomes[Outcome.STOPPED] == 1


class Overtaken(EngineWrapper):
    """After a command was read, another worker settles it before the next claim."""

    def __init__(self, bus: MemoryBus, other: ClaimedLane) -> None:
        super().__init__(bus)
        self.other: ClaimedLane | None = other
        self.read_command = False

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Claim) and self.read_command and self.other is not None:
            owner, self.other = self.other.owner, None
            self.inner.call(Claim(worker=owner.worker, agents=(AGENT,), limit=0, lease_s=operation.lease_s))
            stop, first, _ = self.inner.call(Pending(owner))
            self.inner.call(Settle(owner=owner, mail=(first.ref, stop.ref)))
        answer = self.inner.call(operation)
        self.read_command |= (
            isinstance(operation, Read) and operation.topic == f"control:{AGENT}" and bool(answer.records)
        )
        return answer


async def test_a_stop_that_another_worker_has_settled_stops_nothing_more(bus: MemoryBus) -> None:
    send(bus, "first")
    send(bus, "second")
    overtaken = Overtaken(bus, claim_one(bus, "other"))
    async with run_worker(overtaken, EchoRunner()):
        await until(lambda: len(bus.call(Workers())) == 2)
        command(bus, "stop")
        await until(lambda: "finished" in kinds(stream(bus)) or "stopped" in kinds(stream(bus)))

    assert outputs(bus) == ["second"]


async def test_a_stop_of_another_conversation_leaves_this_one_alone(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        command(bus, "stop", "two")
        await until(lambda: service.outcomes[Outcome.CLEARED] == 1)
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)


async def test_a_stop_reaches_a_run_after_its_worker_died(bus: MemoryBus) -> None:
    send(bus, "hello")
    claim_one(bus, "dead", lease_s=0.05)
    command(bus, "stop")
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)

    assert outputs(bus) == []


async def test_commands_from_before_the_start_are_in_their_lanes(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    records = tuple(
        NewRecord(f"control:{AGENT}", {"conversation_id": f"x{n}", "content": "stop", "type": "control"})
        for n in range(600)
    )
    bus.call(Append(records=records))
    command(bus, "stop")
    async with run_worker(bus, runner) as service:
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)
    assert runner.begun == []


async def test_a_disconnect_cancels_a_run_whose_policy_is_cancel(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello", metadata={"on_disconnect": "cancel"})
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        command(bus, "disconnected")
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)


async def test_a_drained_service_lets_runs_end_and_claims_nothing_more(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "first", "c1")
    service = WorkerService(bus, {AGENT: runner})
    task = asyncio.create_task(service.run())
    await until(lambda: runner.begun)
    draining = asyncio.create_task(service.drain(60.0))
    await asyncio.sleep(0)
    send(bus, "second", "c2")
    runner.gate.set()
    await draining
    await task

    assert runner.begun == ["first"]
    assert outputs(bus, "c1") == ["first"]
    assert bus.call(Workers()) == ()


async def test_a_run_that_exceeds_the_drain_time_is_given_back(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    service = WorkerService(bus, {AGENT: runner})
    task = asyncio.create_task(service.run())
    await until(lambda: runner.begun)
    await service.drain(0.01)
    await task

    assert service.outcomes[Outcome.GIVEN_BACK] == 1
    assert bus.call(Workers()) == ()
    assert claim_one(bus, "w2").attempt == 1


async def test_a_stop_reaches_a_run_while_the_service_drains(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    service = WorkerService(bus, {AGENT: runner})
    task = asyncio.create_task(service.run())
    await until(lambda: runner.begun)
    draining = asyncio.create_task(service.drain(60.0))
    await asyncio.sleep(0)
    command(bus, "stop")
    await draining
    await task

    assert service.outcomes[Outcome.STOPPED] == 1


async def test_a_service_that_is_cancelled_gives_its_lanes_back_at_once(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    service = WorkerService(bus, {AGENT: runner})
    task = asyncio.create_task(service.run())
    await until(lambda: runner.begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert runner.cancelled == ["hello"]
    assert bus.call(Workers()) == ()
    assert claim_one(bus, "w2").attempt == 2


async def test_an_idle_service_drains_at_once(bus: MemoryBus) -> None:
    async with run_worker(bus, EchoRunner()):
        await until(lambda: bus.call(Describe((f"agent:{AGENT}",)))[0].last)


async def test_a_renewal_that_fails_for_good_ends_the_service(bus: MemoryBus) -> None:
    counting = Counting(bus)
    counting.failing["Renew"] = [StorageCorrupt("damaged")]

    with pytest.raises(StorageCorrupt):
        await WorkerService(counting, {AGENT: EchoRunner()}, lease_s=0.03).run()
    assert Renew.__name__ in counting.counts


async def test_a_run_that_failed_is_retried_when_it_is_due(bus: MemoryBus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        if len(runner.asked) == 1:
            raise TransientError("busy")
        yield output(mail, "done")

    runner = SyncRunner(script)
    send(bus, "hello")
    async with run_worker(bus, runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    assert service.outcomes[Outcome.RETRIED] == 1
