"""Work on one claimed lane, from the claim to the append that gives the lane up."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from magent2.bus.interface import BusMessage, Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Compact, Delete, Describe, Erase, Lanes, Leave, OwnedAppend, Read, Settle
from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    ModelRefused,
    ModelUnavailable,
    StorageCorrupt,
    TransientError,
)
from magent2.mail.dead_letters import list_dead_letters
from magent2.mail.delivery import SendOptions
from magent2.mail.retry_policy import RUN_RETRY, RetryPolicy
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import Event
from magent2.sessions.history import HistoryCache
from magent2.sessions.stream import stream_record
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.retry import (
    CRASHES_MAX,
    SUSPECT_AFTER,
    Quarantine,
)
from magent2.worker.run_attempt import RunServices
from magent2.worker.runner_adapter import Runner
from magent2.worker.settlement import POSTPONED_S
from tests.support.flaky_engine import FlakyEngine, UnexpectedErrors
from tests.support.manual_clock import ManualClock
from tests.support.runners import AsyncRunner, FailingRunner, GatedRunner, SyncRunner, output, token
from tests.support.steerable_run import receipts
from tests.support.worker_fixture import (
    AGENT,
    claim_one,
    command,
    dead_letters,
    errors,
    history,
    kinds,
    outputs,
    run_worker,
    send,
    stream,
    until,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[MemoryBus]:
    bus = MemoryBus(clock=clock)
    yield bus
    bus.close()


async def work(bus: Engine, runner: Runner, worker: str = "w1", **options: Any) -> Outcome:
    return await LaneRun(bus, claim_one(bus, worker), runner, **options).work()


def lanes(bus: Engine) -> int:
    return len(bus.call(Lanes(AGENT)))


async def test_a_message_is_answered_and_settled(bus: MemoryBus) -> None:
    send(bus, "hello you")

    assert await work(bus, EchoRunner()) is Outcome.ANSWERED

    assert kinds(stream(bus)) == ["started", "token", "token", "output", "finished"]
    assert outputs(bus) == ["hello you"]
    assert kinds(history(bus)) == ["start", "finished"]
    assert lanes(bus) == 0


async def test_a_run_that_never_waits_is_one_append() -> None:
    bus = FlakyEngine(MemoryBus())
    send(bus, "hello you")
    bus.writes.clear()

    await work(bus, EchoRunner())

    assert [type(write) for write in bus.writes] == [Settle]


async def test_a_run_that_waits_is_on_the_log_before_it_ends(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    working = asyncio.create_task(work(bus, runner))

    await until(lambda: kinds(stream(bus)) == ["started", "token"])
    assert kinds(history(bus)) == ["start"]
    assert bus.call(Describe(("stream:one",)))[0].head["run_status"] == "running"
    runner.gate.set()
    await working

    assert bus.call(Describe(("stream:one",)))[0].head["run_status"] == "finished"


async def test_every_event_says_which_run_it_belongs_to(bus: MemoryBus) -> None:
    envelope_id = send(bus, "hello")

    await work(bus, EchoRunner())

    events = stream(bus)
    assert len({event["run_id"] for event in events}) == 1
    assert {(event["attempt"], event["agent"], event["conversation_id"]) for event in events} == {(1, AGENT, "one")}
    assert events[0]["envelope_id"] == envelope_id
    assert events[1]["message_id"] == events[2]["message_id"] == f"{events[0]['run_id']}/0"


async def test_the_output_closes_its_tokens(bus: MemoryBus) -> None:
    send(bus, "one two three")

    await work(bus, EchoRunner())

    assert bus.call(Compact("stream:one", min_age_s=0)).dropped == 3
    assert kinds(stream(bus)) == ["started", "output", "finished"]


async def test_the_end_of_a_stopped_run_closes_its_tokens(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    async with run_worker(bus, runner):
        await until(lambda: kinds(stream(bus)) == ["started", "token"])
        command(bus, "stop")
        await until(lambda: kinds(stream(bus))[-1] == "stopped")

    assert bus.call(Compact("stream:one", min_age_s=0)).dropped == 1
    assert "token" not in kinds(stream(bus))


async def test_the_end_of_a_failed_run_closes_the_tokens_of_all_attempts(bus: MemoryBus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield token(mail, "he")
        raise ModelRefused("the model refuses")

    send(bus, "hello")
    await work(bus, SyncRunner(script))

    assert kinds(stream(bus)) == ["started", "token", "error", "failed"]
    assert bus.call(Compact("stream:one", min_age_s=0)).dropped == 1


async def test_a_restarted_run_closes_the_tokens_of_the_attempt_before(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    lost = asyncio.create_task(LaneRun(bus, claim_one(bus), runner).work())
    await until(lambda: kinds(stream(bus)) == ["started", "token"])
    bus.call(Leave("w1"))
    again = asyncio.create_task(LaneRun(bus, claim_one(bus, "w2"), runner).work())
    await until(lambda: kinds(stream(bus)) == ["started", "token", "restarted", "token"])

    assert bus.call(Compact("stream:one", min_age_s=0)).dropped == 1
    assert kinds(stream(bus)) == ["started", "restarted", "token"]
    runner.gate.set()
    await asyncio.gather(lost, again)


async def test_the_history_records_input_and_output_of_the_run(bus: MemoryBus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield output(mail, "fine", usage={"total_tokens": 3})

    envelope_id = send(bus, "how are you?")

    await work(bus, SyncRunner(script))

    start, end = history(bus)
    assert (start["envelope"]["id"], start["envelope"]["content"], start["seen"]) == (envelope_id, "how are you?", 0)
    assert (end["output"], end["usage"]) == ("fine", {"total_tokens": 3})
    assert bus.call(Describe(("stream:one",)))[0].head["usage"] == {"total_tokens": 3}


async def test_a_usage_too_long_for_a_head_stays_in_its_event(bus: MemoryBus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield output(mail, "fine", usage={"details": "x" * 5000})

    send(bus, "hello")

    assert await work(bus, SyncRunner(script)) is Outcome.ANSWERED
    assert "usage" not in bus.call(Describe(("stream:one",)))[0].head


async def test_a_runner_without_an_output_gets_one_made_of_its_tokens(bus: MemoryBus) -> None:
    send(bus, "hello")

    await work(bus, SyncRunner(lambda mail: [token(mail, "good "), token(mail, "day", 1)]))

    assert outputs(bus) == ["good day"]


async def test_a_runner_without_events_gives_an_empty_output(bus: MemoryBus) -> None:
    send(bus, "hello")

    assert await work(bus, SyncRunner(lambda _: [])) is Outcome.ANSWERED
    assert outputs(bus) == [""]


async def test_events_after_an_output_keep_their_order(bus: MemoryBus) -> None:
    send(bus, "hello")

    await work(bus, SyncRunner(lambda mail: [output(mail, "first"), token(mail, "x"), output(mail, "last")]))

    assert kinds(stream(bus)) == ["started", "output", "token", "output", "finished"]
    assert history(bus)[-1]["output"] == "last"


async def test_events_may_be_dicts_and_need_not_name_the_conversation(bus: MemoryBus) -> None:
    send(bus, "hello")

    await work(
        bus, SyncRunner(lambda _: [{"event": "token", "text": "hi", "index": 0}, {"event": "output", "text": "hi"}])
    )

    assert outputs(bus) == ["hi"]
    assert {event["conversation_id"] for event in stream(bus)} == {"one"}


async def test_a_runner_cannot_write_into_another_conversation(bus: MemoryBus) -> None:
    send(bus, "hello")

    await work(bus, SyncRunner(lambda _: [{"event": "output", "text": "hi", "conversation_id": "two"}]))

    assert outputs(bus) == ["hi"]
    assert stream(bus, "two") == []


async def test_closing_records_are_part_of_the_last_append(bus: MemoryBus) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        context.closing.append(context.key.answer(0, {"output": []}, context.agent))
        yield output(mail, "done")

    send(bus, "hello")

    await work(bus, AsyncRunner(script))

    assert kinds(history(bus)) == ["start", "answer", "finished"]


async def test_a_run_knows_its_principal(bus: MemoryBus) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield output(mail, "done")

    runner = AsyncRunner(script)
    send(bus, "hello", sending=SendOptions(principal="ann", hops=3))

    await work(bus, runner)

    (context,) = runner.contexts
    assert (context.agent, context.conversation_id, context.attempt) == (AGENT, "one", 1)
    assert (context.hops, context.principal) == (3, "ann")


async def test_the_second_run_sees_the_first(bus: MemoryBus) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield output(mail, str(len(context.history.runs)))

    runner = AsyncRunner(script)
    for text in ("first", "second"):
        send(bus, text)
        await work(bus, runner)

    assert outputs(bus) == ["0", "1"]
    assert history(bus)[2]["seen"] == 2


async def test_a_run_that_is_taken_over_keeps_its_id_and_is_restarted(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    first = asyncio.create_task(work(bus, runner))
    await until(lambda: len(stream(bus)) == 2)
    bus.call(Leave("w1"))

    runner.gate.set()
    outcomes = [await work(bus, runner, "w2"), await first]

    assert outcomes == [Outcome.ANSWERED, Outcome.FENCED]
    events = stream(bus)
    assert kinds(events) == ["started", "token", "restarted", "token", "output", "finished"]
    assert [event["attempt"] for event in events] == [1, 1, 2, 2, 2, 2]
    assert len({event["run_id"] for event in events}) == 1
    assert kinds(history(bus)) == ["start", "finished"]


def crash(bus: MemoryBus, times: int, conversation: str = "one") -> None:
    """Let workers claim the lane, start the run and crash."""
    for n in range(times):
        lane = claim_one(bus, f"dead-{conversation}-{n}")
        assert lane.owner.conversation == conversation
        bus.call(Leave(f"dead-{conversation}-{n}"))


async def test_mail_that_crashes_its_workers_goes_to_the_dead_letters(bus: MemoryBus) -> None:
    send(bus, "poison")
    crash(bus, CRASHES_MAX)

    assert await work(bus, EchoRunner()) is Outcome.BURIED

    (parsed,) = dead_letters(bus)
    assert parsed["attempts"] == CRASHES_MAX
    assert f"gave up after {CRASHES_MAX} attempts" in parsed["reason"]
    assert kinds(stream(bus)) == ["started", "error", "failed"]
    assert kinds(history(bus)) == ["start", "failed"]
    assert lanes(bus) == 0


async def test_suspected_mail_is_answered_when_it_runs_alone(bus: MemoryBus) -> None:
    send(bus, "innocent")
    crash(bus, SUSPECT_AFTER + 1)

    assert await work(bus, EchoRunner()) is Outcome.ANSWERED


async def test_suspected_mail_does_not_run_beside_other_suspects(bus: MemoryBus, clock: ManualClock) -> None:
    quarantine = Quarantine()
    assert await quarantine.enter("another")
    send(bus, "innocent")
    crash(bus, SUSPECT_AFTER + 1)

    assert await work(bus, EchoRunner(), services=RunServices(HistoryCache(bus), quarantine)) is Outcome.POSTPONED
    assert stream(bus) == []
    quarantine.leave("another")
    clock.pass_s(POSTPONED_S)

    assert await work(bus, EchoRunner(), services=RunServices(HistoryCache(bus), quarantine)) is Outcome.ANSWERED
    assert stream(bus)[0]["attempt"] == SUSPECT_AFTER + 2, "a postponement costs no attempt"


async def test_a_stop_applies_to_suspected_mail_at_once(bus: MemoryBus) -> None:
    quarantine = Quarantine()
    assert await quarantine.enter("another")
    send(bus, "innocent")
    crash(bus, SUSPECT_AFTER + 1)
    command(bus, "stop")

    assert await work(bus, EchoRunner(), services=RunServices(HistoryCache(bus), quarantine)) is Outcome.STOPPED


@pytest.mark.parametrize(
    ("crashes", "commands", "expected"),
    [(SUSPECT_AFTER + 1, ["stop"], Outcome.STOPPED), (CRASHES_MAX, [], Outcome.BURIED)],
)
async def test_another_suspect_waits_until_the_end_of_stopped_or_given_up_mail_is_written(
    bus: MemoryBus, crashes: int, commands: list[str], expected: Outcome
) -> None:
    engine, quarantine = FlakyEngine(bus), Quarantine()
    send(bus, "innocent")
    crash(bus, crashes)
    for name in commands:
        command(bus, name)
    lane = LaneRun(engine, claim_one(bus, "w1"), EchoRunner(), services=RunServices(HistoryCache(bus), quarantine))
    engine.gate.clear()
    working = asyncio.create_task(lane.work())
    entering = asyncio.create_task(quarantine.enter("killer"))

    await until(lambda: engine.in_flight == 1)
    assert not entering.done(), "a crash now would count against mail that does not run any more"
    engine.gate.set()

    assert await working is expected
    assert await entering


async def test_a_failed_attempt_does_not_count_as_a_crash(bus: MemoryBus, clock: ManualClock) -> None:
    quarantine = Quarantine()
    assert await quarantine.enter("another")
    runner = FailingRunner(TransientError("busy"))
    send(bus, "hello")
    for _ in range(2 * CRASHES_MAX):
        assert await work(bus, runner, services=RunServices(HistoryCache(bus), quarantine)) is Outcome.RETRIED
        clock.pass_s(RUN_RETRY.max_s)


@pytest.mark.parametrize("jump_s", [-86_400, 0, 86_400])
async def test_a_run_that_fails_for_longer_than_the_policy_allows_is_buried(
    bus: MemoryBus, clock: ManualClock, jump_s: float
) -> None:
    policy = RetryPolicy(first_s=1.0, max_s=10.0, jitter=0.0, give_up_after_s=95.0)
    runner, outcomes = FailingRunner(ModelUnavailable("away")), list[Outcome]()
    send(bus, "hello")
    while Outcome.BURIED not in outcomes:
        clock.jump_s(jump_s)
        outcomes.append(await work(bus, runner, services=RunServices(HistoryCache(bus), retry=policy)))
        clock.pass_s(policy.max_s)

    assert outcomes == [Outcome.RETRIED] * 10 + [Outcome.BURIED]
    reason = dead_letters(bus)[0]["reason"]
    found = re.match(r"gave up after 11 attempts in (\d+) s: ModelUnavailable: away \(failure id ", reason)
    assert found is not None
    assert int(found[1]) >= policy.give_up_after_s  # 100 s between the first and the last attempt, and what these took


async def test_the_time_of_failing_goes_on_when_another_worker_takes_over(bus: MemoryBus, clock: ManualClock) -> None:
    policy = RetryPolicy(first_s=1.0, max_s=1.0, jitter=0.0, give_up_after_s=100.0)
    runner = FailingRunner(ModelUnavailable("away"))
    send(bus, "hello")
    await work(bus, runner, services=RunServices(HistoryCache(bus), retry=policy))
    clock.pass_s(60)
    crash(bus, 1)
    clock.pass_s(60)

    services = RunServices(HistoryCache(bus), retry=policy)
    assert await work(bus, runner, "w2", services=services) is Outcome.BURIED


async def test_a_crash_does_not_count_as_a_failed_attempt(bus: MemoryBus) -> None:
    send(bus, "hello")
    crash(bus, CRASHES_MAX - 1)

    assert await work(bus, FailingRunner(TransientError("busy"))) is Outcome.RETRIED
    assert 0 < errors(bus)[0]["retry_in_s"] <= RUN_RETRY.first_s


async def test_a_bug_is_buried_at_once_with_an_error_and_a_dead_letter(bus: MemoryBus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield token(mail, "half")
        raise LookupError("no such page")

    send(bus, "hello")

    assert await work(bus, SyncRunner(script)) is Outcome.BURIED

    assert kinds(stream(bus)) == ["started", "token", "error", "failed"]
    (error,) = errors(bus)
    assert error["code"] == "run_failed"
    assert error["message"].startswith("LookupError: the run failed; the operator's log has the cause (failure id ")
    assert "retry_in_s" not in error
    (parsed,) = run_sync(bus, list_dead_letters, AGENT)
    assert parsed.reason.startswith("LookupError: no such page (failure id ")
    assert parsed.reason[-14:] == error["message"][-14:]
    assert (parsed.attempts, parsed.mail["payload"]["content"]) == (1, "hello")
    assert kinds(history(bus)) == ["start", "failed"]
    assert lanes(bus) == 0


async def test_a_transient_failure_is_retried_after_a_delay(bus: MemoryBus, clock: ManualClock) -> None:
    tries = 0

    def script(mail: MessageEnvelope) -> Iterator[Event]:
        nonlocal tries
        tries += 1
        yield token(mail, "half")
        if tries == 1:
            raise TransientError("the model is busy")
        yield output(mail, "whole")

    runner = SyncRunner(script)
    send(bus, "hello")

    assert await work(bus, runner, services=RunServices(HistoryCache(bus), chance=lambda: 0.0)) is Outcome.RETRIED
    (error,) = errors(bus)
    assert error["message"].startswith("TransientError: the model is busy (failure id ")
    assert error["retry_in_s"] == RUN_RETRY.first_s
    (lane,) = bus.call(Lanes(AGENT))
    assert (lane.state, lane.attempt) == ("later", 1)

    clock.pass_s(RUN_RETRY.first_s)
    assert await work(bus, runner) is Outcome.ANSWERED
    assert kinds(stream(bus)) == ["started", "token", "error", "restarted", "token", "output", "finished"]
    assert outputs(bus) == ["whole"]


async def test_an_applied_command_does_not_shorten_the_delay(bus: MemoryBus) -> None:
    send(bus, "hello")
    command(bus, "disconnected")
    command(bus, "dance")

    assert await work(bus, FailingRunner(TransientError("busy"))) is Outcome.RETRIED

    (lane,) = bus.call(Lanes(AGENT))
    assert (lane.state, lane.pending) == ("later", 1)
    assert [error["code"] for error in errors(bus)] == ["unknown_command", "run_failed"]


async def test_a_run_that_takes_too_long_is_retried(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")

    assert await work(bus, runner, run_max_s=0.01) is Outcome.RETRIED

    assert runner.cancelled == ["hello"]
    assert errors(bus)[0]["message"].startswith("RunTimedOut: the run took longer than 0.01 s (failure id ")


async def test_the_stream_shows_no_stack_trace_and_the_debug_log_does(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    runner = FailingRunner(ValueError("x" * 5000))
    send(bus, "hello")
    with caplog.at_level(logging.DEBUG):
        await work(bus, runner)

    assert "xxx" not in str(stream(bus))
    assert "Traceback" not in str(stream(bus))
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("event", ["text", None, {"event": "output", "text": "x" * (2 << 20)}])
async def test_an_event_that_cannot_be_written_buries_the_mail(bus: MemoryBus, event: Any) -> None:
    send(bus, "hello")

    assert await work(bus, SyncRunner(lambda _: [event])) is Outcome.BURIED

    assert len(errors(bus)) == len(dead_letters(bus)) == 1
    assert kinds(stream(bus))[-1] == "failed"
    assert lanes(bus) == 0


async def test_a_token_too_large_for_the_log_ends_the_run(bus: MemoryBus) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield token(mail, "x" * (2 << 20))
        await context.writer.commit()
        raise AssertionError("the commit fails")

    send(bus, "hello")

    assert await work(bus, AsyncRunner(script)) is Outcome.BURIED
    assert errors(bus)[0]["message"].startswith("PayloadTooLarge: ")


async def test_mail_almost_too_large_for_the_log_is_buried_without_its_text(bus: MemoryBus) -> None:
    small = MemoryBus(payload_max_bytes=2000)
    send(small, "x" * 1700)

    assert await work(small, EchoRunner()) is Outcome.BURIED

    (parsed,) = dead_letters(small)
    assert parsed["reason"].startswith("PayloadTooLarge: ")
    assert "see chat:Ada 1" in parsed["mail"]["payload"]["left_out"]
    assert lanes(small) == 0


async def test_mail_of_a_conversation_with_a_deleted_stream_is_still_buried(bus: MemoryBus) -> None:
    send(bus, "hello")
    bus.call(Delete(("stream:one",)))

    assert await work(bus, EchoRunner()) is Outcome.BURIED
    assert dead_letters(bus)[0]["reason"].startswith("TopicDeleted: ")


async def test_mail_that_cannot_even_be_buried_is_parked(bus: MemoryBus) -> None:
    send(bus, "hello")
    bus.call(Delete(("stream:one", "dead:Ada")))

    assert await work(bus, EchoRunner()) is Outcome.PARKED
    assert bus.call(Lanes(AGENT))[0].state == "parked"


async def test_a_broken_history_buries_the_mail_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.mail.lane_loop.LANE_RETRY_MAX_S", 0.0)
    bus = MemoryBus()
    bus.publish("history:one", BusMessage("history:one", {"colour": "blue"}))
    send(bus, "hello")

    async with run_worker(bus, EchoRunner()):
        await until(lambda: dead_letters(bus))
        send(bus, "hello", "two")
        await until(lambda: outputs(bus, "two"))

    assert "KeyError: " in errors(bus)[0]["message"]
    bus.close()


async def test_a_runner_that_cancels_itself_has_failed(bus: MemoryBus) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield token(mail, "half")
        raise asyncio.CancelledError

    send(bus, "hello")

    assert await work(bus, AsyncRunner(script)) is Outcome.BURIED
    assert "cancelled from inside" in dead_letters(bus)[0]["reason"]


async def test_a_run_waits_for_an_unavailable_bus() -> None:
    bus = FlakyEngine(MemoryBus())
    send(bus, "hello")
    lane = claim_one(bus)
    bus.before.extend([BusUnavailable("away")] * 2)

    assert await LaneRun(bus, lane, EchoRunner()).work() is Outcome.ANSWERED
    assert outputs(bus) == ["hello"]


async def test_an_error_for_the_operator_ends_the_worker_and_keeps_the_mail() -> None:
    bus = FlakyEngine(MemoryBus())
    send(bus, "hello")
    lane = claim_one(bus)
    bus.before.append(StorageCorrupt("damaged"))

    with pytest.raises(StorageCorrupt):
        await LaneRun(bus, lane, EchoRunner()).work()
    assert lanes(bus) == 1


@pytest.mark.parametrize("error", [StorageCorrupt("damaged"), KeyError("a bug of the engine")], ids=repr)
async def test_mail_is_not_given_up_when_the_history_cannot_be_read(bus: MemoryBus, error: Exception) -> None:
    send(bus, "the first message, whose run writes the history")
    assert await LaneRun(bus, claim_one(bus), EchoRunner()).work() is Outcome.ANSWERED
    send(bus, "hello")
    lane = claim_one(bus)
    broken = UnexpectedErrors(bus, Read, [error])

    with pytest.raises(type(error)):
        await LaneRun(broken, lane, EchoRunner()).work()

    assert (lanes(bus), dead_letters(bus)) == (1, [])


async def test_a_fenced_run_writes_nothing(bus: MemoryBus, caplog: pytest.LogCaptureFixture) -> None:
    send(bus, "hello")
    lane = claim_one(bus)
    bus.call(Leave("w1"))

    with caplog.at_level(logging.INFO):
        assert await LaneRun(bus, lane, EchoRunner()).work() is Outcome.FENCED

    assert stream(bus) == history(bus) == dead_letters(bus) == []
    assert "fenced" in caplog.text


async def test_a_run_whose_lane_is_lost_is_cancelled_and_writes_nothing_more(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    lane_run = LaneRun(bus, claim_one(bus), runner)
    working = asyncio.create_task(lane_run.work())
    await until(lambda: len(stream(bus)) == 2)

    await lane_run.check_owner()
    assert not runner.cancelled
    bus.call(Leave("w1"))
    await lane_run.check_owner()

    assert await working is Outcome.FENCED
    assert runner.cancelled == ["hello"]
    assert len(stream(bus)) == 2


async def test_a_run_that_was_given_back_costs_no_attempt(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    lane_run = LaneRun(bus, claim_one(bus), runner)
    working = asyncio.create_task(lane_run.work())
    await until(lambda: runner.begun)

    lane_run.give_back()

    assert await working is Outcome.GIVEN_BACK
    assert claim_one(bus, "w2").attempt == 1


async def test_erased_mail_is_settled_without_an_event(bus: MemoryBus) -> None:
    send(bus, "secret")
    lane = claim_one(bus)
    bus.call(Erase(f"chat:{AGENT}", (1,)))
    bus.call(Leave("w1"))

    assert await work(bus, EchoRunner()) is Outcome.CLEARED
    assert (stream(bus), dead_letters(bus), lanes(bus)) == ([], [], 0)
    assert lane.mail


async def test_mail_that_is_no_envelope_is_buried_with_an_error_event(bus: MemoryBus) -> None:
    topic = f"chat:{AGENT}"
    bus.publish(topic, BusMessage(topic, {"conversation_id": "one", "colour": "blue"}))
    send(bus, "hello")

    assert await work(bus, EchoRunner()) is Outcome.BURIED
    assert await work(bus, EchoRunner()) is Outcome.ANSWERED

    (error,) = errors(bus)
    assert error["code"] == "malformed_mail"
    assert "sender: Field required" in error["message"]
    (parsed,) = dead_letters(bus)
    assert parsed["mail"]["payload"] == {"conversation_id": "one", "colour": "blue"}
    assert outputs(bus) == ["hello"]


async def test_mail_without_a_conversation_is_buried(bus: MemoryBus) -> None:
    topic = f"chat:{AGENT}"
    bus.publish(topic, BusMessage(topic, {"sender": "user:ann", "recipient": "agent:Ada", "content": "hello"}))

    assert await work(bus, EchoRunner()) is Outcome.BURIED
    (parsed,) = dead_letters(bus)
    assert parsed["conversation_id"] == ""
    assert "conversation" in parsed["reason"]


async def test_a_stop_from_before_the_claim_ends_the_run_before_it_starts(bus: MemoryBus) -> None:
    runner = GatedRunner()
    send(bus, "hello")
    command(bus, "stop", sender="user:bob")

    assert await work(bus, runner) is Outcome.STOPPED

    assert runner.begun == []
    assert kinds(stream(bus)) == ["started", "message_received", "stopped"]
    assert stream(bus)[-1]["reason"] == "stopped by user:bob"
    assert kinds(history(bus)) == ["start", "stopped"]
    assert lanes(bus) == 0


async def test_a_stop_ends_one_run_and_the_next_is_answered(bus: MemoryBus) -> None:
    for text in ("first", "second"):
        send(bus, text)
    command(bus, "stop")

    assert [await work(bus, EchoRunner()) for _ in range(2)] == [Outcome.STOPPED, Outcome.ANSWERED]
    assert outputs(bus) == ["second"]


async def test_a_stop_reaches_a_run_that_waits_for_its_retry(bus: MemoryBus) -> None:
    runner = FailingRunner(TransientError("busy"))
    send(bus, "hello")
    await work(bus, runner)
    command(bus, "stop")

    assert await work(bus, runner) is Outcome.STOPPED
    assert kinds(stream(bus)) == ["started", "error", "restarted", "message_received", "stopped"]
    assert lanes(bus) == 0


async def test_late_tokens_of_a_stopped_run_are_refused_and_stopped_is_its_last_event(bus: MemoryBus) -> None:
    late: list[str] = []

    class Lingering:
        """Leaves a task behind that writes tokens until the writer refuses one."""

        stream_run = EchoRunner.stream_run

        async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
            self.task = asyncio.create_task(self._write(context))
            yield token(envelope, "first")
            await asyncio.Event().wait()

        async def _write(self, context: RunContext) -> None:
            try:
                while True:
                    await context.writer.put(stream_record(token(context.envelope, "late")))
                    await asyncio.sleep(0)
            except Magent2Error as error:
                late.append(type(error).__name__)

    runner = Lingering()
    send(bus, "hello")
    run = LaneRun(bus, claim_one(bus), runner)
    working = asyncio.create_task(run.work())
    await until(lambda: "token" in kinds(stream(bus)))
    command(bus, "stop")
    run.add_command(bus.call(Read("control:" + AGENT)).records[-1])

    assert await working is Outcome.STOPPED
    await runner.task
    assert late == ["WriterClosed"]
    assert kinds(stream(bus))[-2:] == ["message_received", "stopped"]


async def test_a_stop_for_nothing_is_settled_and_says_so(bus: MemoryBus) -> None:
    name = command(bus, "stop")

    assert await work(bus, EchoRunner()) is Outcome.CLEARED
    assert (receipts(bus), lanes(bus)) == ([(name, "nothing_to_stop")], 0)


async def test_a_stop_for_another_run_says_that_it_was_not_meant_for_this_one(bus: MemoryBus) -> None:
    name = command(bus, "stop")
    send(bus, "hello")

    assert await work(bus, EchoRunner()) is Outcome.ANSWERED
    assert receipts(bus) == [(name, "not_meant")]


async def test_a_stop_after_a_run_has_its_answer_was_too_late(bus: MemoryBus) -> None:
    name: list[str] = []

    async def script(envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield output(envelope, "done")
        name.append(command(bus, "stop_after_turn"))
        lane_run.add_command(bus.read(f"control:{AGENT}")[-1])

    send(bus, "hello")
    lane_run = LaneRun(bus, claim_one(bus), AsyncRunner(script))

    assert await lane_run.work() is Outcome.ANSWERED
    assert receipts(bus) == [(name[0], "too_late")]


async def test_a_stop_after_the_turn_applies_when_the_turn_fails(bus: MemoryBus) -> None:
    name: list[str] = []

    async def script(envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield token(envelope, "half")
        name.append(command(bus, "stop_after_turn"))
        lane_run.add_command(bus.read(f"control:{AGENT}")[-1])
        raise TransientError("busy")

    send(bus, "hello")
    lane_run = LaneRun(bus, claim_one(bus), AsyncRunner(script))

    assert await lane_run.work() is Outcome.STOPPED
    assert (receipts(bus), lanes(bus)) == ([(name[0], "stopped")], 0)


async def test_an_unknown_command_is_answered_by_an_error_and_the_mail_by_an_answer(bus: MemoryBus) -> None:
    send(bus, "hello")
    command(bus, "dance")

    assert await work(bus, EchoRunner()) is Outcome.ANSWERED

    assert [(error["code"], error["message"]) for error in errors(bus)] == [
        ("unknown_command", "there is no command 'dance'")
    ]
    assert outputs(bus) == ["hello"]
    assert lanes(bus) == 0


async def test_a_command_to_a_deleted_conversation_is_settled_without_an_event(bus: MemoryBus) -> None:
    command(bus, "dance")
    bus.call(Delete(("stream:one",)))

    assert await work(bus, EchoRunner()) is Outcome.CLEARED
    assert lanes(bus) == 0


async def test_many_commands_do_not_hide_the_mail_behind_them(bus: MemoryBus) -> None:
    send(bus, "hello")
    for n in range(40):
        command(bus, f"dance {n}")

    assert await work(bus, EchoRunner()) is Outcome.ANSWERED
    assert len(errors(bus)) == 40
    assert lanes(bus) == 0


async def start(bus: MemoryBus, runner: GatedRunner, **fields: Any) -> tuple[LaneRun, asyncio.Task[Outcome]]:
    send(bus, "hello", **fields)
    lane_run = LaneRun(bus, claim_one(bus), runner)
    working = asyncio.create_task(lane_run.work())
    await until(lambda: runner.begun)
    return lane_run, working


def told(bus: MemoryBus, lane_run: LaneRun, text: str) -> None:
    command(bus, text)
    lane_run.add_command(bus.read(f"control:{AGENT}")[-1])


async def test_a_stop_reaches_a_run_inside_a_model_call(bus: MemoryBus) -> None:
    runner = GatedRunner()
    lane_run, working = await start(bus, runner)

    told(bus, lane_run, "stop")

    assert await working is Outcome.STOPPED
    assert runner.cancelled == ["hello"]
    assert kinds(stream(bus)) == ["started", "token", "message_received", "stopped"]
    assert kinds(history(bus)) == ["start", "stopped"]


async def test_a_command_that_came_with_the_claim_is_not_applied_twice(bus: MemoryBus, clock: ManualClock) -> None:
    runner = GatedRunner()
    command(bus, "stop")
    clock.pass_s(1)
    lane_run, working = await start(bus, runner)

    lane_run.add_command(bus.read(f"control:{AGENT}")[-1])
    runner.gate.set()

    assert await working is Outcome.ANSWERED


async def test_an_unknown_command_waits_for_the_next_claim(bus: MemoryBus) -> None:
    runner = GatedRunner()
    lane_run, working = await start(bus, runner)

    told(bus, lane_run, "dance")
    runner.gate.set()

    assert await working is Outcome.ANSWERED
    assert await work(bus, runner) is Outcome.CLEARED
    assert len(errors(bus)) == 1


@pytest.mark.parametrize(
    ("policy", "outcome"), [("detach", Outcome.ANSWERED), ("cancel", Outcome.STOPPED), ("grace", Outcome.STOPPED)]
)
async def test_a_disconnect_follows_the_policy_of_the_mail(bus: MemoryBus, policy: str, outcome: Outcome) -> None:
    runner = GatedRunner()
    lane_run, working = await start(bus, runner, metadata={"on_disconnect": policy, "grace_s": 0.01})

    told(bus, lane_run, "disconnected")
    if policy == "detach":
        runner.gate.set()

    assert await working is outcome


async def test_a_client_that_reconnects_in_time_keeps_the_run(bus: MemoryBus) -> None:
    runner = GatedRunner()
    lane_run, working = await start(bus, runner, metadata={"on_disconnect": "grace", "grace_s": 60})

    told(bus, lane_run, "disconnected")
    told(bus, lane_run, "connected")
    runner.gate.set()

    assert await working is Outcome.ANSWERED


async def test_an_append_of_a_run_that_waits_carries_all_its_tokens(bus: MemoryBus) -> None:
    moody = FlakyEngine(bus)
    runner = GatedRunner()
    send(moody, "hello")
    moody.writes.clear()
    working = asyncio.create_task(work(moody, runner))
    await until(lambda: len(stream(moody)) == 2)
    runner.gate.set()
    await working

    assert [type(write) for write in moody.writes] == [OwnedAppend, Settle]
