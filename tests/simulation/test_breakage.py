"""Breaking one guarantee makes the audit of some world fail."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from agents import FunctionTool

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
from magent2.mail.conversation_state import has_mail
from magent2.mail.delivery import SendOptions, deliver
from magent2.mail.headers import MAIL_SEEN
from magent2.mail.lane_loop import LaneLoop
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.envelope import MessageEnvelope
from magent2.models.run_options import ClientTool
from magent2.runner.context import RunContext
from magent2.runner.journal import agents as journal_agents
from magent2.runner.journal import metering, options, request_view, tool_calls
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.metering import Meter
from magent2.runner.journal.request_view import CutPoint, RequestLayout
from magent2.runner.journal.tool_calls import JournalCallWriter
from magent2.runner.journal.window import RequestWindow
from magent2.runner.providers import calls
from magent2.runner.providers.calls import COMPLETED, FallbackModel
from magent2.sessions import approvals, busy, store
from magent2.sessions.approvals import Approval, ApprovalDecision, apply_decision, decision_envelope
from magent2.sessions.history import SendFacts
from magent2.sessions.message_outcome import MessageOutcome
from magent2.sessions.usage import budgets as usage_budgets
from magent2.sessions.usage.budgets import Allowed
from magent2.tools.interface import CallScope, HeldSend
from magent2.worker import approvals as worker_approvals
from magent2.worker import lane_mail, lane_run, retry
from magent2.worker.control_feed import ControlFeed
from magent2.worker.retry import QuarantinePlace
from magent2.worker.run_events import RunEvents
from magent2.worker.webhooks import RunReports
from tests.simulation import approvers, budget_operators, clients, fake_connectors, faulty_bus, world
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
CROWDED = 20  # worlds with all messages in one conversation
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


def forget_compactions(context: RunContext) -> RunContext:
    return replace(context, run=replace(context.run, compactions=[]))


def first_red(breakage: Breakage, seeds: Iterable[int] = range(SEEDS), known: int | None = None) -> int | None:
    """Return the seed of a world with findings. `known` is tried first: a search for it would take seconds."""
    tried = seeds if known is None else itertools.chain([known], seeds)
    return next((seed for seed in tried if simulate(seed, breakage).findings), None)


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
    assert first_red(Breakage(engine=engine), known=33) is not None


@pytest.mark.parametrize("alter_context", [forget, forget_results, forget_compactions])
def test_the_oracle_finds_a_run_without_its_journal(alter_context: Callable[[RunContext], RunContext]) -> None:
    assert first_red(Breakage(alter_context=alter_context), in_minds(), known=45) is not None


def test_the_oracle_finds_a_cut_between_a_call_and_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    last_turn = RequestWindow._last_turn

    def one_item_early(*given: Any) -> CutPoint | None:
        point = last_turn(*given)
        return point and replace(point, index=point.index - 1)

    monkeypatch.setattr(RequestWindow, "_last_turn", one_item_early)
    monkeypatch.setattr(request_view, "whole_cuts", lambda items: [True] * (len(items) + 1))
    monkeypatch.setattr(request_view, "without_orphans", list)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_oracle_finds_a_request_without_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestLayout, "kept", lambda layout, cut: list(range(cut, len(layout.items))))

    assert first_red(Breakage(), in_minds(), known=118) is not None


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

    assert first_red(Breakage(), known=6) is not None


def test_the_audit_finds_delays_that_are_measured_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadConnection, "log_ms", lambda db: db.clock.wall_ms())
    monkeypatch.setattr(world, "JUMPS_MAX", JUMPS)

    assert first_red(Breakage()) is not None


# --- agents with two models


class FallsBackLate(FallbackModel):
    """Asks the next model even if something of an answer is visible."""

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        for candidate in self._candidates:
            try:
                async for event in candidate.model.stream_response(*request, **options):
                    if event.type == COMPLETED:
                        event.response.model = candidate.name
                    yield event
                return
            except Magent2Error:
                if candidate is self._candidates[-1]:
                    raise


class NamesNoModel(FallbackModel):
    """Does not say which model has answered."""

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in super().stream_response(*request, **options):
            if event.type == COMPLETED:
                event.response.model = ""
            yield event


@pytest.mark.parametrize("broken", [FallsBackLate, NamesNoModel])
def test_the_audit_finds_a_broken_fall_back(monkeypatch: pytest.MonkeyPatch, broken: type[FallbackModel]) -> None:
    monkeypatch.setattr(calls, "FallbackModel", broken)

    assert first_red(Breakage(), in_minds()) is not None


# --- suspected mail


@pytest.fixture
def all_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, which suspects all mail, and runs that start subagents and wait for them."""
    monkeypatch.setattr(retry, "SUSPECT_AFTER", -1)
    monkeypatch.setattr(world, "WORKERS", 1)
    monkeypatch.setattr(clients, "STARTS_SUBAGENT", OFTEN)


@pytest.mark.usefixtures("all_suspected")
def test_runs_wait_for_their_subagents_although_all_mail_is_suspected() -> None:
    assert first_red(Breakage(), itertools.islice(in_minds(), SEEDS // 10)) is None


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
    def say_nothing(message: OutgoingMessage, decision: GiveUpDelivery) -> tuple[NewRecord, ...]:
        return ()

    monkeypatch.setattr(attempt, "failure_events", say_nothing)

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

    assert first_red(Breakage(), in_minds(), known=90) is not None


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
        conversation: str,
        approval: Approval,
        decision: ApprovalDecision,
        by: str,
        reason: str | None,
        output: object = None,
    ) -> MessageEnvelope:
        letter = decision_envelope(conversation, approval, decision, by, reason, output)
        return letter.model_copy(update={"id": f"{letter.id}-{by}"})

    monkeypatch.setattr(approvals, "decision_envelope", sign)

    assert first_red(Breakage(), in_minds()) is not None


# --- tools of clients


def test_the_audit_finds_two_outputs_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_any(log: Log, conversation: str, call: Approval, output: object, by: str) -> Approval:
        letter = decision_envelope(conversation, call, "approve", by, None, output)
        await deliver(log, letter.model_copy(update={"id": f"{letter.id}-{by}"}))
        return apply_decision(call, letter.model_dump())

    monkeypatch.setattr(approvers, "answer_call", take_any)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_an_output_that_does_not_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(worker_approvals, "apply_decision", lambda *given: replace(apply_decision(*given), output=None))
    monkeypatch.setattr(options, "find_output", find_nothing)

    assert first_red(Breakage(), in_minds()) is not None


def test_the_oracle_finds_a_run_that_does_not_wait_for_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on(tool: ClientTool, journal: Journal) -> FunctionTool:
        return replace(client_tool(tool, journal), needs_approval=False)

    client_tool = options._client_tool
    monkeypatch.setattr(options, "_client_tool", go_on)

    assert first_red(Breakage(), in_minds()) is not None


# --- subagents


def test_the_oracle_finds_the_result_of_another_subagent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageOutcome, "text", property(lambda exchange: "what another has said"))

    assert first_red(Breakage(), in_minds(), known=120) is not None


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


# --- messages to a busy conversation


async def _find_idle(*_: Any) -> bool:
    return False


async def _unconditional(log: Log, conversation: str, _state: object) -> tuple[bool, tuple[()]]:
    return await has_mail(log, conversation), ()


async def _all_mail(_log: Log, _agent: str, _target: str | None = None) -> dict[str, Any]:
    """Headers of a stop that was sent as if its sender had seen all mail, that which comes later too."""
    return {MAIL_SEEN: 2**40}


async def _no_stop(*_: Any) -> tuple[()]:
    return ()


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("has_mail", _find_idle),
        ("read_busy", _unconditional),
        ("stop_headers", _all_mail),
        ("_stop_records", _no_stop),
        ("run_unchanged", lambda *_: ()),
    ],
)
def test_the_audit_finds_a_broken_rule_for_busy_conversations(
    name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(monkeypatch)
    monkeypatch.setattr(busy, name, broken)

    assert first_red(Breakage()) is not None


def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all messages to one conversation, many at the same time. It is busy most of the time and never deleted.

    No message makes its agent active: otherwise the condition that nobody else has done so would hide that others are
    missing, and two messages would never be accepted by the same idle conversation.
    """
    monkeypatch.setattr(clients, "POSTING", SendOptions(activates=False))
    monkeypatch.setattr(clients, "PAUSE_MAX_S", 0.0)
    monkeypatch.setattr(clients, "CLIENTS", 6)
    monkeypatch.setattr(clients, "MESSAGES", 24)
    monkeypatch.setattr(clients, "DELETES", 0.0)
    monkeypatch.setattr(clients, "INTERRUPTS", 0.5)
    monkeypatch.setattr(clients, "REJECTS", 0.5)
    monkeypatch.setattr(clients, "CONVERSATIONS", ("one",) * 3)


def test_right_code_survives_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd(monkeypatch)

    assert first_red(Breakage(), range(CROWDED)) is None


# --- budgets


def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every world with a model small budgets, for which its runs compete."""
    monkeypatch.setattr(budget_operators, "LIMITED", OFTEN)
    monkeypatch.setattr(budget_operators, "DAY_CALLS_MIN", 2)
    monkeypatch.setattr(budget_operators, "DAY_CALLS_MAX", 4)
    monkeypatch.setattr(budget_operators, "RAISE_MAX", 1)


def test_the_audit_finds_reservations_that_do_not_depend_on_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    tight(monkeypatch)
    commit = Journal.commit

    async def regardless(self: Journal, *records: NewRecord, **options: Any) -> None:
        if any(record.payload.get("kind") == "reserve" for record in records):
            options["conditions"] = ()
        await commit(self, *records, **options)

    monkeypatch.setattr(Journal, "commit", regardless)

    assert first_red(Breakage(), in_minds(), known=143) is not None


def test_the_audit_finds_a_run_that_does_not_ask_for_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tight(monkeypatch)
    monkeypatch.setattr(metering, "decide", lambda *facts: Allowed())

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_usage_outside_the_append_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "spent", lambda *facts: [])

    assert first_red(Breakage(), in_minds()) is not None


def test_the_audit_finds_runs_that_nobody_wakes_when_a_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_budgets, "_wake_records", lambda runs: [])
    tight(monkeypatch)

    assert first_red(Breakage(), in_minds()) is not None


# --- webhooks


def a_webhook_is_wrong() -> bool:
    """Whether the audit of webhooks finds something in one of the worlds."""
    return any(finding.startswith("webhook:") for seed in in_towns() for finding in simulate(seed).findings)


def test_the_audit_finds_ends_of_runs_that_a_worker_reports_in_an_append_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker may die between the two, and what it says first may not come true."""

    class Apart(RunReports):
        def run_ended(self, events: RunEvents, status: Any) -> tuple[NewRecord, ...]:
            records = super().run_ended(events, status)
            if records:
                webhooks = self._webhooks
                assert webhooks is not None
                webhooks._bus.call(Append(records=records))
            return ()

    monkeypatch.setattr(lane_run, "RunReports", Apart)

    assert a_webhook_is_wrong()


def test_the_audit_finds_pauses_that_are_not_reported_after_a_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(RunReports):
        def approval_requested(self, events: RunEvents, *more: Any) -> tuple[NewRecord, ...]:
            return () if events.attempt > 1 else super().approval_requested(events, *more)

    monkeypatch.setattr(lane_run, "RunReports", Forgetful)

    assert a_webhook_is_wrong()
