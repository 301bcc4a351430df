"""Runs that the history has dropped: their dead letters can be retried, and their messages and calls are found."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.errors import AlreadyDecided, ModelError, UnknownCall
from magent2.mail.dead_letters import list_dead_letters, retry_dead_letter
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext, WaitingCall
from magent2.sessions.approvals import decide_approval, find_approvals
from magent2.sessions.folds import session_usage
from magent2.sessions.history import History, read_history, settings_record
from magent2.sessions.message_outcome import find_message_progress
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.runner_adapter import Runner
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.flaky_engine import UnexpectedErrors
from tests.support.runners import AsyncRunner, Event, output
from tests.support.worker_fixture import AGENT, claim_one, history, kinds, outputs, send, stream

LATER = 6  # runs after which the first one is not in the history any more


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.worker.run_attempt.RUNS_MAX", 1)
    for name, value in (("RUNS_RESERVE", 0), ("DROP_EVERY", 2), ("SNAPSHOT_EVERY", 4)):
        monkeypatch.setattr(f"magent2.sessions.history.fold.{name}", value)


async def answers(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
    yield output(mail, f"{len(context.run.answers)} recorded")


async def fails_in_turn_two(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
    await context.writer.commit(context.key.answer(0, {"output": []}, context.agent))
    if context.run.run:
        raise ModelError("refused")
    yield output(mail, "")


async def asks(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
    if context.run.decisions:
        yield output(mail, "paid")
    else:
        context.waiting.append(WaitingCall(0, "call-1", "pay", "{}", context.agent))


async def work(bus: Engine, runner: Runner) -> Outcome:
    return await LaneRun(bus, claim_one(bus), runner).work()


async def answer_later_messages(bus: Engine) -> None:
    for number in range(LATER):
        send(bus, f"message {number}")
        assert await work(bus, AsyncRunner(answers)) is Outcome.ANSWERED


def read(bus: Engine) -> History:
    return run_sync(bus, read_history, "one", None, 1)


async def test_a_dropped_run_whose_dead_letter_is_retried_goes_on_after_its_last_record(bus: Engine) -> None:
    message = send(bus, "first")
    assert await work(bus, AsyncRunner(fails_in_turn_two)) is Outcome.BURIED
    await answer_later_messages(bus)
    (letter,) = run_sync(bus, list_dead_letters, AGENT)
    assert all(run.envelope["id"] != message for run in read(bus).runs.values())

    run_sync(bus, retry_dead_letter, AGENT, letter.seq)
    assert await work(bus, AsyncRunner(answers)) is Outcome.ANSWERED

    assert outputs(bus)[-1] == "1 recorded"
    events = [event for event in stream(bus) if event.get("event") == "run" and event["envelope_id"] == message]
    assert kinds(events) == ["started", "failed", "restarted", "finished"]
    assert session_usage(read(bus))["runs"] == LATER + 1


async def test_a_dropped_run_that_was_restarted_is_taken_over_with_its_journal(bus: Engine) -> None:
    send(bus, "first")
    await work(bus, AsyncRunner(fails_in_turn_two))
    await answer_later_messages(bus)
    (letter,) = run_sync(bus, list_dead_letters, AGENT)
    run_sync(bus, retry_dead_letter, AGENT, letter.seq)
    assert await work(bus, AsyncRunner(asks)) is Outcome.PAUSED

    (approval,) = await find_approvals(Log(bus), "one")
    await decide_approval(Log(bus), "one", approval.call_id, "approve", "user:ann")
    assert await work(bus, AsyncRunner(answers)) is Outcome.ANSWERED

    assert outputs(bus)[-1] == "1 recorded"
    assert sum(record["kind"] == "start" for record in history(bus)) == LATER + 2


async def test_a_snapshot_that_the_bus_refuses_does_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    bus = MemoryBus(payload_max_bytes=1024)
    bus.call(Append(records=(settings_record("one", {"overlay": "x" * 800}),)))
    for number in range(4):
        send(bus, f"message {number}")

        assert await work(bus, AsyncRunner(answers)) is Outcome.ANSWERED

    written = kinds(history(bus))
    bus.close()
    assert "snapshot" not in written
    assert "no snapshot of a history was written" in caplog.text


async def test_an_unexpected_error_of_a_snapshot_does_not_fail_the_run() -> None:
    bus = MemoryBus()
    broken = UnexpectedErrors(bus, Append, ())
    for number in range(4):
        send(bus, f"message {number}")
        broken.errors = deque([KeyError("conversation")])

        assert await work(broken, AsyncRunner(answers)) is Outcome.ANSWERED

    bus.close()
    assert broken.raised > 0


async def test_the_progress_of_a_message_of_a_dropped_run_is_found(bus: Engine) -> None:
    message = send(bus, "first")
    await work(bus, AsyncRunner(fails_in_turn_two))
    await answer_later_messages(bus)

    progress = await find_message_progress(Log(bus), "one", message)

    assert progress is not None
    assert (progress.status, progress.waiting) == ("dead", 0)


async def test_a_decision_on_a_call_of_a_dropped_run_is_refused_as_before(bus: Engine) -> None:
    for text in ("first", "second", "third"):
        send(bus, text)
        assert await work(bus, AsyncRunner(asks)) is Outcome.PAUSED
        await decide_approval(Log(bus), "one", "call-1", "approve", "user:ann")
        assert await work(bus, AsyncRunner(asks)) is Outcome.ANSWERED
    await answer_later_messages(bus)
    known = read(bus)
    assert known.dropped.asked

    async def small(log: Log, conversation: str) -> History:
        return History(dropped=known.dropped, last=known.last)

    again = await decide_approval(Log(bus), "one", "call-1", "approve", "user:ann", history_reader=small)
    with pytest.raises(AlreadyDecided):
        await decide_approval(Log(bus), "one", "call-1", "reject", "user:ann", history_reader=small)
    with pytest.raises(UnknownCall):
        await decide_approval(Log(bus), "one", "call-2", "approve", "user:ann", history_reader=small)

    assert again.status == "approved"
