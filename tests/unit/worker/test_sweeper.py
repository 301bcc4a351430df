"""The sweeper of a worker: one at a time, under a lease, resumed after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Compact, Describe, Lanes, Later, Leave, Operation, SetHead, Topics
from magent2.bus.records import NewRecord
from magent2.bus.retention import RetentionPolicy
from magent2.errors import AddressError
from magent2.models.address import SWEEP_LANE, SWEEPER, chat_topic, dead_topic, sweep_topic
from magent2.runner.echo import EchoRunner
from magent2.sessions.store import create_session
from magent2.telemetry.metrics import RunMetrics
from magent2.worker.sweeper import FULL_SWEEP_S, SweepProgress, keep_sweeping
from magent2.worker.team_selection import choose_team
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import ENGINES, new_engines
from tests.support.waiting import until
from tests.support.worker_fixture import AGENT, LEASE_S, run_worker, send, stream

POLICY = RetentionPolicy(tokens_after_s=0.0, sweep_every_s=0.05)
ONCE = RetentionPolicy(tokens_after_s=0.0, sweep_every_s=3600.0)


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def answer(bus: Engine, conversation: str, tokens: int = 3) -> None:
    topic = f"stream:{conversation}"
    pieces = [NewRecord(topic, {"event": "token", "n": n}, draft="run-1") for n in range(tokens)]
    bus.call(
        Append(
            records=(*pieces, NewRecord(topic, {"event": "output"}, closes="run-1")),
            heads=(SetHead(topic, {"run_status": "finished"}),),
        )
    )


def left(bus: Engine) -> int:
    """The number of drafts that are left in all conversations."""
    topics = [info.topic for info in bus.call(Topics("stream:")).topics]
    return sum(record.draft is not None for topic in topics for record in whole_log(bus, topic))


def progress(bus: Engine) -> SweepProgress:
    return SweepProgress.of(bus.call(Describe((sweep_topic(),)))[0].head)


@asynccontextmanager
async def sweeping(
    bus: Engine, policy: RetentionPolicy = POLICY, worker: str = "w1", **options: Any
) -> AsyncIterator[None]:
    task = asyncio.create_task(keep_sweeping(bus, lambda: policy, worker, LEASE_S, **options))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_with_a_policy_removes_the_tokens_of_its_answers(bus: Engine) -> None:
    send(bus, "one two three")

    async with run_worker(bus, EchoRunner()) as service:
        service.retention = lambda: POLICY
        await until(lambda: [event["event"] for event in stream(bus)] == ["run", "output", "run"])

    assert bus.call(Describe(("stream:one",)))[0].floor == 0


async def test_the_worker_of_a_team_sweeps_by_the_policy_of_its_environment() -> None:
    bus = MemoryBus()
    variables = {"MAGENT2_RETENTION_TOKENS_AFTER_S": "1", "MAGENT2_RETENTION_SWEEP_EVERY_S": "1"}
    team = choose_team((AGENT,), "demo", environ=variables)
    send(bus, "one two three")
    working = asyncio.create_task(team.service(bus).run())

    await until(lambda: any(event["event"] == "output" for event in stream(bus)))
    await until(lambda: not any(event["event"] == "token" for event in stream(bus)))

    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    bus.close()


async def test_a_sweep_reports_what_went_in_one_line_and_in_metrics(
    bus: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "magent2.worker.sweeper")
    answer(bus, "one")
    metrics = RunMetrics()

    async with sweeping(bus, ONCE, metrics=metrics):
        await until(lambda: progress(bus).ended_ms)
        await until(lambda: metrics.registry.get_sample_value("magent2_sweep_seconds_count"))

    (line,) = [record for record in caplog.records if record.message == "sweep finished"]
    assert (line.tokens, line.visited, line.full) == (3, 1, True)  # type: ignore[attr-defined]
    assert metrics.registry.get_sample_value("magent2_swept_total", {"kind": "tokens"}) == 3
    assert metrics.registry.get_sample_value("magent2_sweep_conversations_total") == 1


async def test_two_sweepers_take_turns_and_never_sweep_at_the_same_time(bus: Engine) -> None:
    first, second = ChecksOwner(bus, "sweeper-w1"), ChecksOwner(bus, "sweeper-w2")

    async with sweeping(first, POLICY, "w1"), sweeping(second, POLICY, "w2"):
        for n in range(6):
            answer(bus, f"c{n}")
            await until(lambda: left(bus) == 0)

    assert first.steps + second.steps >= 6
    assert first.unowned == second.unowned == 0


class ChecksOwner(EngineWrapper):
    """Counts the compactions of a worker, and those that it made without the lane of the sweep."""

    def __init__(self, engine: Engine, worker: str) -> None:
        super().__init__(engine)
        self.worker = worker
        self.steps = self.unowned = 0

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Compact):
            self.steps += 1
            self.unowned += [lane.worker for lane in self.inner.call(Lanes(SWEEPER))] != [self.worker]
        return super().answer(operation)


@pytest.mark.parametrize("bus", ["memory"], indirect=True)  # a bus that is dead costs `LEAVE_MAX_S` on every engine
async def test_a_sweep_that_was_cut_off_is_continued_where_it_stopped(
    bus: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magent2.worker.sweeper.RECORD_EVERY_S", 0.0)
    for n in range(6):
        answer(bus, f"c{n}")
    stuck = StopsAt(bus, step=4)
    task = asyncio.create_task(keep_sweeping(stuck, lambda: ONCE, "w1", LEASE_S))
    await until(lambda: stuck.reached)
    begun = progress(bus)
    stuck.dead = True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bus.call(Leave("sweeper-w1"))

    rest = StopsAt(bus, step=None)
    async with sweeping(rest, ONCE, "w2"):
        await until(lambda: progress(bus).ended_ms)

    assert begun.before is not None
    assert left(bus) == 0
    assert rest.steps < 6
    assert progress(bus).ended_ms == begun.begun_ms


class StopsAt(EngineWrapper):
    """Never returns from the n-th compaction, as a process that hangs. A dead one makes no further call."""

    def __init__(self, engine: Engine, step: int | None) -> None:
        super().__init__(engine)
        self.steps = 0
        self.reached = self.dead = False
        self._step = step

    async def acall(self, operation: Operation[Any]) -> Any:
        self.steps += isinstance(operation, Compact)
        if self.dead or (isinstance(operation, Compact) and self.steps == self._step):
            self.reached = True
            await asyncio.get_running_loop().create_future()
        return await self.inner.acall(operation)


async def test_a_sweeper_that_lost_its_lane_is_fenced_and_stops(bus: Engine, caplog: pytest.LogCaptureFixture) -> None:
    answer(bus, "one")
    answer(bus, "two")
    stolen = LosesLane(bus)

    async with sweeping(stolen, ONCE, "w1"):
        await until(lambda: "another worker has taken over a lane" in caplog.text)

    assert stolen.lost


class LosesLane(EngineWrapper):
    """Ends the lease of the sweeper during its first compaction, as if the process had been frozen for long."""

    lost = False

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Compact) and not self.lost:
            self.lost = True
            self.inner.call(Leave("sweeper-w1"))
        return super().answer(operation)

    async def acall(self, operation: Operation[Any]) -> Any:
        return self.call(operation)


async def test_a_sweep_that_fails_is_reported_and_made_again(
    bus: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magent2.worker.sweeper.RETRY_S", 0.01)
    answer(bus, "one")
    broken = FailsOnce(bus)

    async with sweeping(broken, ONCE):
        await until(lambda: left(bus) == 0)

    assert "a sweep has failed" in caplog.text


class FailsOnce(EngineWrapper):
    failed = False

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Compact) and not self.failed:
            self.failed = True
            raise ValueError("a foreign error")
        return await self.inner.acall(operation)


async def test_an_engine_that_refuses_to_take_the_lane_back_does_not_end_the_sweeps(
    bus: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane loop gives up the mail of a lane that keeps failing; the sweep gets new mail."""
    monkeypatch.setattr("magent2.mail.lane_loop.LANE_FAILURES_MAX", 2)
    monkeypatch.setattr("magent2.mail.lane_loop.LANE_RETRY_FIRST_S", 0.01)
    monkeypatch.setattr("magent2.worker.sweeper.RETRY_S", 0.01)
    answer(bus, "one")

    async with sweeping(FailsAtFirst(bus, Compact, 3), ONCE):
        await until(lambda: left(bus) == 0)

    assert len(whole_log(bus, chat_topic(SWEEPER))) == 2
    assert whole_log(bus, dead_topic(SWEEPER)) == []


class FailsAtFirst(EngineWrapper):
    """Raises a foreign error at the first operations of a kind, and while it does so at each `Later` with a refund."""

    def __init__(self, engine: Engine, kind: type[Operation[Any]], times: int) -> None:
        super().__init__(engine)
        self._kind = kind
        self._times = times

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, self._kind) and self._times:
            self._times -= 1
            raise ValueError("a foreign error")
        if isinstance(operation, Later) and operation.refund and self._times:
            raise ValueError("a foreign error")
        return await self.inner.acall(operation)


async def test_mail_to_the_sweeper_is_moved_to_the_dead_letters_and_sweeps_go_on(bus: Engine) -> None:
    mail = {"conversation_id": "one", "sender": "user:ann", "content": "hello"}
    bus.call(Append(records=(NewRecord(chat_topic(SWEEPER), mail),)))

    async with sweeping(bus):
        await until(lambda: whole_log(bus, dead_topic(SWEEPER)))
        answer(bus, "one")
        await until(lambda: left(bus) == 0)

    assert [lane.conversation for lane in bus.call(Lanes(SWEEPER))] == [SWEEP_LANE]


async def test_the_lane_has_one_piece_of_mail_however_many_workers_start(bus: Engine) -> None:
    for worker in ("w1", "w2", "w3"):
        async with sweeping(bus, ONCE, worker):
            await until(lambda: progress(bus).ended_ms)

    assert len(whole_log(bus, chat_topic(SWEEPER))) == 1
    with pytest.raises(AddressError, match="is reserved"):
        run_sync(bus, create_session, SWEEPER, "user:ann")


def test_a_sweep_is_full_at_first_and_once_a_day_and_after_the_clock_was_set_back() -> None:
    day_ms = round(FULL_SWEEP_S * 1000)
    first = SweepProgress().begin(1000)
    second = first.end().begin(2000)
    policy = RetentionPolicy(tokens_after_s=600.0)

    assert (first.full, second.full) == (True, False)
    assert second.end().begin(1000 + day_ms).full
    assert second.end().begin(1999).full
    assert first.since_ms(policy) == 0
    assert second.since_ms(policy) == 1000 - 660_000
    assert second.end() == SweepProgress(ended_ms=2000, full_ms=1000)


def test_progress_survives_its_head() -> None:
    begun = SweepProgress(1, 2, 3, True, (4, "stream:one"))
    (head,) = begun.head()

    assert SweepProgress.of({**head.fields, "before": [4, "stream:one"]}) == begun
    assert SweepProgress.of({}) == SweepProgress()
