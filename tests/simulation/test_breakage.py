"""Breaking one guarantee makes the audit of some world fail."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import Append, Delete, Operation
from magent2.bus.records import ClaimedLane, NewRecord, Owner, Record
from magent2.bus.sqlite_engine import maintenance
from magent2.bus.sqlite_engine.connection import SEQ_MASK, ReadConnection, TopicRow, WriteConnection, rid_of
from magent2.connectors import delivery_attempt as attempt
from magent2.connectors import outbox, relay
from magent2.connectors.delivery_attempt import DeliveryAttempt, GiveUpDelivery, RetryDelivery, after_failed_delivery
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.connectors.outbox import state_record
from magent2.errors import Magent2Error
from magent2.mail.addressing import relay_job
from magent2.mail.lane_loop import LaneLoop
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.journal import agents as journal_agents
from magent2.runner.journal import tool_calls
from magent2.runner.journal.tool_calls import JournalCallWriter
from magent2.sessions import approvals, store
from magent2.sessions.approvals import Approval, ApprovalDecision, decision_envelope
from magent2.sessions.history import SendFacts
from magent2.sessions.message_outcome import MessageOutcome
from magent2.tools.interface import CallScope, HeldSend
from magent2.worker import lane_mail, retry
from magent2.worker.control_feed import ControlFeed
from magent2.worker.retry import QuarantinePlace
from tests.simulation import clients, fake_connectors, faulty_bus, world
from tests.simulation.directory_fixture import SENDER
from tests.simulation.run_worlds import SEED, run_worlds
from tests.simulation.world import Breakage, simulate
from tests.simulation.world_kind import WorldKind
from tests.support.engine_wrappers import (
    AckBeforeAppend,
    EngineWrapper,
    SettlesOnClaim,
    WithoutCounter,
    WithoutDedupe,
    WithoutFence,
)

JUMPS = 40  # maximum number of clock jumps
OFTEN = 1.0  # a share that makes the event happen every time
BUGS_OFTEN = 0.05  # of operations on lanes; right code survives it
CONNECTOR_BUGS_OFTEN = 0.5  # the relay of every process must meet one
SEEDS = 100  # a broken guarantee must be found within this many worlds


class KeepsCopies(EngineWrapper):
    """Deletes a conversation but keeps its mail in inboxes and lanes."""

    def answer(self, operation: Operation[Any]) -> Any:
        return self.inner.call(replace(operation, conversation=None) if isinstance(operation, Delete) else operation)


def forget(context: RunContext) -> RunContext:
    """Hide all recorded answers from a run that is taken over."""
    return replace(context, run=replace(context.run, answers={}, tools={}))


def forget_results(context: RunContext) -> RunContext:
    return replace(context, run=replace(context.run, tools={}))


def first_red(breakage: Breakage, seeds: Iterable[int] = range(SEEDS)) -> int | None:
    return next((seed for seed in seeds if simulate(seed, breakage).findings), None)


def worlds(wanted: Callable[[WorldKind], bool]) -> Iterator[int]:
    """Seeds of worlds in which the breakage can have an effect."""
    return itertools.islice((seed for seed in itertools.count() if wanted(WorldKind.of(seed))), SEEDS)


def in_towns() -> Iterator[int]:
    return worlds(lambda kind: kind.with_directory)


def in_minds() -> Iterator[int]:
    return worlds(lambda kind: SENDER in kind.agents)


@pytest.mark.parametrize(
    "engine", [WithoutDedupe, WithoutFence, WithoutCounter, SettlesOnClaim, AckBeforeAppend, KeepsCopies]
)
def test_the_audit_finds_a_broken_engine(engine: Callable[[Engine], Engine]) -> None:
    assert first_red(Breakage(engine=engine)) is not None


@pytest.mark.parametrize("alter_context", [forget, forget_results])
def test_the_oracle_finds_a_run_without_its_journal(alter_context: Callable[[RunContext], RunContext]) -> None:
    assert first_red(Breakage(alter_context=alter_context), in_minds()) is not None


def test_the_audit_finds_a_worker_that_applies_commands_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believe(controls: ControlFeed, owner: Owner, record: Record) -> bool:
        return True

    monkeypatch.setattr(ControlFeed, "lies_in", believe)
    monkeypatch.setattr(clients, "STOPS", OFTEN)

    assert first_red(Breakage()) is not None


def test_the_audit_finds_commands_that_are_ordered_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_mail, "MAIL_SEEN", "a header that is never written")
    monkeypatch.setattr(clients, "STOPS", OFTEN)
    monkeypatch.setattr(world, "JUMPS_MAX", JUMPS)

    assert first_red(Breakage()) is not None


def test_the_audit_finds_mail_that_is_retried_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "CRASHES_MAX", 1000)

    assert first_red(Breakage()) is not None


def test_the_audit_finds_delays_that_are_measured_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadConnection, "log_ms", lambda db: db.clock.wall_ms())
    monkeypatch.setattr(world, "JUMPS_MAX", JUMPS)

    assert first_red(Breakage()) is not None


# --- suspected mail


@pytest.fixture
def all_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, which suspects all mail, and runs that start subagents and wait for them."""
    monkeypatch.setattr(retry, "SUSPECT_AFTER", -1)
    monkeypatch.setattr(world, "WORKERS", 1)
    monkeypatch.setattr(clients, "STARTS_SUBAGENT", OFTEN)


@pytest.mark.usefixtures("all_suspected")
def test_runs_wait_for_their_subagents_although_all_mail_is_suspected() -> None:
    assert first_red(Breakage(), itertools.islice(in_minds(), SEEDS // 4)) is None


@pytest.mark.usefixtures("all_suspected")
def test_the_audit_finds_a_suspected_run_that_keeps_its_place_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def keep(place: QuarantinePlace) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(QuarantinePlace, "released", keep)

    assert first_red(Breakage(), in_minds()) is not None


def test_a_failing_seed_is_named_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED, raising=False)

    with pytest.raises(AssertionError, match=r'SIM_SEED=\d+ make test ARGS="-s tests/simulation/'):
        run_worlds(range(SEEDS), Breakage(engine=WithoutFence))


def test_a_failing_seed_fails_again_in_the_same_way() -> None:
    broken = Breakage(engine=WithoutFence)
    failing = first_red(broken)
    assert failing is not None

    assert simulate(failing, broken).findings == simulate(failing, broken).findings


# --- outboxes


def test_the_audit_finds_a_relay_that_resends_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_again(
        error: Exception, attempt: int, elapsed_s: float, takes_key: bool, policy: RetryPolicy, chance: float
    ) -> RetryDelivery | GiveUpDelivery:
        return after_failed_delivery(error, attempt, elapsed_s, True, policy, chance)

    async def begin_in_silence(attempt: DeliveryAttempt, message: OutgoingMessage) -> None:
        return None

    monkeypatch.setattr(attempt, "after_failed_delivery", try_again)
    monkeypatch.setattr(DeliveryAttempt, "_begin", begin_in_silence)

    assert first_red(Breakage(), in_towns()) is not None


def test_the_audit_finds_a_relay_that_marks_an_unknown_outcome_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(attempt: DeliveryAttempt, takes_key: bool) -> bool:
        return False

    given_up = GiveUpDelivery("dead", "it cannot have arrived")
    monkeypatch.setattr(attempt, "after_failed_delivery", lambda *facts: given_up)
    monkeypatch.setattr(DeliveryAttempt, "_may_have_arrived", never)

    assert first_red(Breakage(), in_towns()) is not None


def test_the_audit_finds_messages_that_are_given_up_without_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def say_nothing(message: OutgoingMessage, decision: GiveUpDelivery) -> NewRecord:
        return NewRecord("stream:elsewhere", {"event": "error"})

    monkeypatch.setattr(attempt, "failure_event", say_nothing)

    assert first_red(Breakage(), in_towns()) is not None


def test_the_audit_finds_messages_out_of_order_at_a_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    def scatter(connector: str, lane: str, item: str, record_id: str | None = None) -> NewRecord:
        return relay_job(connector, f"{lane}-{item}", item, record_id)

    monkeypatch.setattr(outbox, "relay_job", scatter)

    assert first_red(Breakage(), in_towns()) is not None


def test_the_audit_finds_a_message_that_is_settled_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    send = DeliveryAttempt.send

    async def settle_first(attempt: DeliveryAttempt, message: OutgoingMessage, connector: Connector) -> bool:
        await attempt._settle(state_record(message.key, attempt.connector_id, "sent"))
        return await send(attempt, message, connector)

    monkeypatch.setattr(DeliveryAttempt, "send", settle_first)

    assert first_red(Breakage(), in_towns()) is not None


# --- retention


def test_the_audit_finds_a_sweep_that_removes_drafts_that_are_still_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed_already(db: WriteConnection, topic: TopicRow, draft: str, closed_ms: int) -> int:
        return rid_of(topic.tid, SEQ_MASK)

    monkeypatch.setattr(maintenance, "_last_closing", closed_already)

    assert first_red(Breakage()) is not None


def test_the_audit_finds_a_sweep_that_removes_mail_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled_already(db: WriteConnection, topic: TopicRow, bound: int) -> int:
        return bound

    monkeypatch.setattr(maintenance, "_before_unsettled", settled_already)

    assert first_red(Breakage()) is not None


# --- held sends


def test_the_audit_finds_a_block_that_does_not_hold_its_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_at_once(scope: CallScope, place: int, send: HeldSend) -> None:
        scope.run.bus.call(send.append)

    monkeypatch.setattr(CallScope, "hold", leave_at_once)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_an_immediate_send_that_is_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    send_now = JournalCallWriter.send_now

    async def send_twice(call_writer: JournalCallWriter, position: int, facts: SendFacts, append: Append) -> None:
        await send_now(call_writer, position, facts, append)
        twins = tuple(replace(record, id=f"{record.id}-twin") for record in append.records)
        await call_writer._journal.context.bus.acall(Append(records=twins))

    monkeypatch.setattr(JournalCallWriter, "send_now", send_twice)

    assert first_red(Breakage(), in_minds()) is not None


# --- approvals


def test_the_oracle_finds_a_call_that_is_made_before_its_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_agents, "approval_check", lambda journal, needs_approval: False)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_oracle_finds_a_rejected_call_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "rejection_text", lambda journal, key: None)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_two_decisions_on_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def sign(
        conversation: str, approval: Approval, decision: ApprovalDecision, by: str, reason: str | None
    ) -> MessageEnvelope:
        letter = decision_envelope(conversation, approval, decision, by, reason)
        return letter.model_copy(update={"id": f"{letter.id}-{by}"})

    monkeypatch.setattr(approvals, "decision_envelope", sign)

    assert first_red(Breakage(), in_minds()) is not None


# --- subagents


def test_the_oracle_finds_the_result_of_another_subagent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageOutcome, "text", property(lambda exchange: "what another has said"))

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_subagents_that_outlive_their_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(log: Log, session_id: str) -> None:
        return

    monkeypatch.setattr(store, "_delete_subagents", keep)
    monkeypatch.setattr(clients, "DELETES", OFTEN)
    monkeypatch.setattr(clients, "STARTS_SUBAGENT", OFTEN)

    assert first_red(Breakage(), in_minds()) is not None


# --- unexpected errors


def raise_unexpected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_bus, "BUGS", BUGS_OFTEN)


def test_the_audit_finds_a_lane_loop_that_an_unexpected_error_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_the_loop(loop: LaneLoop[Any], lane: object, work: object, error: Exception) -> bool:
        raise error

    raise_unexpected(monkeypatch)
    monkeypatch.setattr(LaneLoop, "_fail_lane", end_the_loop)

    assert first_red(Breakage()) is not None


def test_the_audit_finds_a_relay_that_an_unexpected_error_of_a_connector_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(
        attempt: DeliveryAttempt, connector: Connector, message: OutgoingMessage, files: Mapping[str, bytes]
    ) -> DeliveryReceipt:
        return await connector.send(message, files)

    fail_lane = LaneLoop._fail_lane

    async def end_the_relay(loop: LaneLoop[Any], lane: ClaimedLane, work: Any, error: Exception) -> bool:
        if isinstance(work, DeliveryAttempt) and type(error) is ValueError:
            raise error
        return await fail_lane(loop, lane, work, error)

    async def run_once(supervisor: Any) -> None:
        await supervisor._relay.run()

    monkeypatch.setattr(fake_connectors, "BUGS", CONNECTOR_BUGS_OFTEN)
    monkeypatch.setattr(DeliveryAttempt, "_send", send)
    monkeypatch.setattr(LaneLoop, "_fail_lane", end_the_relay)
    monkeypatch.setattr(relay._RelaySupervisor, "run", run_once)

    assert first_red(Breakage(), in_towns()) is not None


def test_the_audit_finds_a_writer_that_dies_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = LaneWriter._fail

    def die(writer: LaneWriter, error: Exception, batch: Any) -> None:
        if not isinstance(error, Magent2Error):
            raise error
        fail(writer, error, batch)

    raise_unexpected(monkeypatch)
    monkeypatch.setattr(LaneWriter, "_fail", die)

    assert first_red(Breakage()) is not None
