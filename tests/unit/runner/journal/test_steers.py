"""Steers in the journal: recorded with the response that has seen them, and replayed at the same position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, ModelRetrySettings, ModelSettings, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation, Pending
from magent2.bus.records import MailRef
from magent2.errors import ModelUnavailable
from magent2.models.events import ReceiptEvent
from magent2.runner.context import TURN_MAX_BYTES, Steer, SteerLedger
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.history import RunRecord
from magent2.worker.lane_run import Outcome
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import CallbackModel, CrashingBus, Items, results_in, work, work_until_crash
from tests.support.steerable_run import (
    SteerableAgent,
    pending_mail,
    receipts,
    request_shape,
    seen_steers,
    shown_steers,
    steer,
    work_steered,
)
from tests.support.worker_fixture import AGENT, history, outputs, run_worker, send, stream, until

WRITES = 8


class SteeredScenario:
    """A run of three turns. A steer waits at its start, and each of its two tool calls sends another."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.requests: list[Sequence[Mapping[str, Any]]] = []
        send(self.bus, "go", id="mail-1")
        self.steer("first")

        @function_tool
        async def step(text: str) -> str:
            """Take a step, and send a steer."""
            self.steer(text)
            return f"heard {text}"

        self.agent = Agent[Any](name=AGENT, model=CallbackModel(self.say), tools=[step])
        self.runner = OpenAIAgentsRunner(self.agent)

    def steer(self, text: str) -> None:
        steer(self.bus, text, recipient=f"agent:{AGENT}", id=f"steer-{text}")

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append(list(items))
        turn = len(results_in(items))
        if turn < 2:
            return [function_call("step", {"text": ("second", "third")[turn]}, call_id=f"c{turn}")]
        return [assistant_message("done")]

    def findings(self) -> list[str]:
        """Violations in the requests of the model and in the log."""
        found = [f"shown twice: {request}" for request in self.requests if _repeats(shown_steers(request))]
        recorded = Counter(text for _, text in seen_steers(self.bus))
        found += [f"{text} was seen by {count} responses" for text, count in recorded.items() if count != 1]
        receipt_counts = Counter(receipts(self.bus))
        found += [f"{name} has {count} receipts" for name, count in receipt_counts.items() if count != 1]
        missing = {"first", "second", "third"} - {name.partition("-")[2] for name, _ in receipt_counts}
        return found + [f"{text} has no receipt" for text in missing]


def _repeats(shown: Sequence[tuple[str, str]]) -> bool:
    return len(set(shown)) != len(shown)


@pytest.fixture
def scenario() -> Iterator[SteeredScenario]:
    scenario = SteeredScenario()
    yield scenario
    scenario.bus.close()


async def work_all_mail(scenario: SteeredScenario) -> None:
    """Run a worker until no mail waits. It sorts each steer into its lane before it notifies the run."""
    async with run_worker(scenario.bus, scenario.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] and not pending_mail(scenario.bus))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
async def test_each_steer_is_seen_by_one_recorded_response_wherever_a_worker_crashes(
    scenario: SteeredScenario, at: int, after: bool
) -> None:
    await work_until_crash(CrashingBus(scenario.bus, at, after), scenario.runner, work_steered)

    await work_all_mail(scenario)

    assert scenario.findings() == []


async def test_after_a_takeover_a_steer_has_the_same_position(scenario: SteeredScenario) -> None:
    crashing = CrashingBus(scenario.bus, on="tool")
    await work_until_crash(crashing, scenario.runner, work_steered)
    assert seen_steers(scenario.bus) == [(0, "first")]

    await work_all_mail(scenario)

    last = next(request for request in reversed(scenario.requests) if len(results_in(request)) == 2)
    assert request_shape(last)[:4] == ["user", "steer", "call", "result"]
    assert shown_steers(last)[0] == ("user:ann", "first")


async def test_a_model_call_that_the_sdk_retries_shows_the_steer_once(bus: MemoryBus) -> None:
    steer(bus, "listen", recipient=f"agent:{AGENT}")
    requests: list[Any] = []

    def failing(call: Any) -> Items:
        requests.append(call.input)
        raise ModelUnavailable("the model is away")

    def answering(call: Any) -> Items:
        requests.append(call.input)
        return [assistant_message("understood")]

    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=lambda context: True))
    model = ScriptedModel([ModelStep.respond(failing), ModelStep.respond(answering)])
    agent = Agent[Any](name=AGENT, model=model, model_settings=settings)

    assert await work_steered(bus, OpenAIAgentsRunner(agent)) is Outcome.ANSWERED

    assert [shown_steers(request) for request in requests] == [[("user:ann", "listen")]] * 2
    assert seen_steers(bus) == [(0, "listen")]


async def test_a_failed_attempt_leaves_the_steer_to_the_next(bus: MemoryBus) -> None:
    steer(bus, "listen", recipient=f"agent:{AGENT}")
    requests: list[Any] = []

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        requests.append(items)
        if len(requests) == 1:
            raise ModelUnavailable("the model is away")
        return [assistant_message("done")]

    runner = OpenAIAgentsRunner(Agent[Any](name=AGENT, model=CallbackModel(say)))
    async with run_worker(bus, runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert [len(shown_steers(request)) for request in requests] == [1, 1]
    assert seen_steers(bus) == [(0, "listen")]
    assert len(receipts(bus)) == 1


class LaneReadCounter(EngineWrapper):
    """Counts reads of lanes."""

    reads = 0

    def answer(self, operation: Operation[Any]) -> Any:
        self.reads += isinstance(operation, Pending)
        return self.inner.call(operation)


async def test_a_run_without_steers_never_reads_its_lane(bus: MemoryBus) -> None:
    counting = LaneReadCounter(bus)
    talk = SteerableAgent(turns=3)
    talk.open()

    async with run_worker(counting, talk.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert counting.reads == 0


async def test_a_worker_without_a_control_feed_leaves_steers_in_the_lane(bus: MemoryBus) -> None:
    steer(bus, "hello?", recipient=f"agent:{AGENT}")
    talk = SteerableAgent(turns=0)

    assert await work(bus, talk.runner) is Outcome.ANSWERED

    assert (seen_steers(bus), pending_mail(bus)) == ([], 1)


async def test_the_model_after_a_handoff_sees_earlier_steers(bus: MemoryBus) -> None:
    steer(bus, "be kind", recipient=f"agent:{AGENT}")
    requests: list[Any] = []

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        requests.append(items)
        if len(requests) == 1:
            return [function_call("transfer_to_bea", {}, call_id="h1")]
        return [assistant_message("done")]

    model = CallbackModel(say)
    bea = Agent[Any](name="Bea", model=model)
    agent = Agent[Any](name=AGENT, model=model, handoffs=[bea])

    assert await work_steered(bus, OpenAIAgentsRunner(agent)) is Outcome.ANSWERED

    assert request_shape(requests[1]) == ["user", "steer", "call", "result"]


async def test_the_receipt_is_the_event_of_the_contract(bus: MemoryBus) -> None:
    steered = steer(bus, "hello", recipient=f"agent:{AGENT}", sender="user:bob")
    talk = SteerableAgent(turns=0)

    await work_steered(bus, talk.runner)

    (payload,) = [event for event in stream(bus) if event["event"] == "message_received"]
    event = ReceiptEvent.model_validate(payload)
    (message,) = event.messages
    assert (message.id, message.source, message.render(), message.outcome) == (
        steered.envelope_id,
        "user:bob",
        "hello",
        "seen",
    )
    assert (event.turn, event.agent, event.run_id) == (0, AGENT, history(bus)[0]["run"])
    assert outputs(bus) == ["done"]


# --- the ledger


def a_steer(number: int, text: str = "text") -> Steer:
    return Steer(f"s{number}", "user:ann", text, MailRef("chat:Ada", number))


def test_steers_that_do_not_fit_into_a_request_wait_for_the_next() -> None:
    ledger = SteerLedger(RunRecord("r", AGENT, {}, {}, 0))
    large = [a_steer(n, "x" * (TURN_MAX_BYTES // 2)) for n in range(1, 4)]

    ledger.take(large)
    ledger.insert_into([])
    assert [steer.id for steer in ledger.end_turn(0)] == ["s1", "s2"]

    ledger.take(large)
    ledger.insert_into([])
    assert [steer.id for steer in ledger.end_turn(1)] == ["s3"]


def test_a_steer_moves_to_the_end_of_a_shortened_request_and_stays_there() -> None:
    ledger = SteerLedger(RunRecord("r", AGENT, {}, {}, 0))
    ledger.take([a_steer(1, "here")])
    items: list[Any] = [{"role": "user", "content": str(n)} for n in range(4)]
    ledger.insert_into(items)
    ledger.end_turn(0)

    shorter: Any = ledger.insert_into(items[:2])
    items[2:] = [{"role": "assistant"}]
    longer: Any = ledger.insert_into(items)
    assert request_shape(shorter) == ["user", "user", "steer"]
    assert request_shape(longer) == ["user", "user", "steer", "assistant"]
