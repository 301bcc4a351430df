"""Steers in the journal: recorded with the answer that has seen them, and shown again at the same place."""

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


class Stage:
    """A run of three turns. One steer waits at its start, another comes in its first call, a third in its second."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.requests: list[Sequence[Mapping[str, Any]]] = []
        send(self.bus, "go", id="mail-1")
        self.say_to_it("first")

        @function_tool
        async def step(text: str) -> str:
            """Take a step, and hear something on the way."""
            self.say_to_it(text)
            return f"heard {text}"

        self.agent = Agent[Any](name=AGENT, model=CallbackModel(self.say), tools=[step])
        self.runner = OpenAIAgentsRunner(self.agent)

    def say_to_it(self, text: str) -> None:
        steer(self.bus, text, recipient=f"agent:{AGENT}", id=f"steer-{text}")

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append(list(items))
        turn = len(results_in(items))
        if turn < 2:
            return [function_call("step", {"text": ("second", "third")[turn]}, call_id=f"c{turn}")]
        return [assistant_message("done")]

    def findings(self) -> list[str]:
        """What is wrong with what the model was shown, and with the log."""
        found = [f"shown twice: {request}" for request in self.requests if _repeats(shown_steers(request))]
        recorded = Counter(text for _, text in seen_steers(self.bus))
        found += [f"{text} was seen by {count} answers" for text, count in recorded.items() if count != 1]
        told = Counter(receipts(self.bus))
        found += [f"{name} has {count} receipts" for name, count in told.items() if count != 1]
        missing = {"first", "second", "third"} - {name.partition("-")[2] for name, _ in told}
        return found + [f"{text} has no receipt" for text in missing]


def _repeats(shown: Sequence[tuple[str, str]]) -> bool:
    return len(set(shown)) != len(shown)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.bus.close()


async def all_of_it(stage: Stage) -> None:
    """Until no mail waits: with every steer sorted into its lane, as a service does before it calls a run."""
    async with run_worker(stage.bus, stage.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] and not pending_mail(stage.bus))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
async def test_whenever_a_worker_dies_each_steer_is_seen_by_one_recorded_answer(
    stage: Stage, at: int, after: bool
) -> None:
    await work_until_crash(CrashingBus(stage.bus, at, after), stage.runner, work_steered)

    await all_of_it(stage)

    assert stage.findings() == []


async def test_after_a_takeover_it_stands_where_it_stood(stage: Stage) -> None:
    mortal = CrashingBus(stage.bus, on="tool")
    await work_until_crash(mortal, stage.runner, work_steered)
    assert seen_steers(stage.bus) == [(0, "first")]

    await all_of_it(stage)

    last = next(request for request in reversed(stage.requests) if len(results_in(request)) == 2)
    assert request_shape(last)[:4] == ["user", "steer", "call", "result"]
    assert shown_steers(last)[0] == ("user:ann", "first")


async def test_a_model_that_is_asked_again_is_shown_the_steer_once(bus: MemoryBus) -> None:
    steer(bus, "listen", recipient=f"agent:{AGENT}")
    requests: list[Any] = []

    def failing(call: Any) -> Items:
        requests.append(call.input)
        raise ModelUnavailable("the model is away")

    def answering(call: Any) -> Items:
        requests.append(call.input)
        return [assistant_message("I have heard")]

    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=lambda context: True))
    model = ScriptedModel([ModelStep.respond(failing), ModelStep.respond(answering)])
    agent = Agent[Any](name=AGENT, model=model, model_settings=settings)

    assert await work_steered(bus, OpenAIAgentsRunner(agent)) is Outcome.ANSWERED

    assert [shown_steers(request) for request in requests] == [[("user:ann", "listen")]] * 2
    assert seen_steers(bus) == [(0, "listen")]


async def test_an_attempt_that_failed_leaves_the_steer_to_the_next(bus: MemoryBus) -> None:
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


class Counting(EngineWrapper):
    """Counts looks into lanes."""

    looks = 0

    def answer(self, operation: Operation[Any]) -> Any:
        self.looks += isinstance(operation, Pending)
        return self.inner.call(operation)


async def test_a_run_without_steers_never_looks_into_its_lane(bus: MemoryBus) -> None:
    counting = Counting(bus)
    talk = SteerableAgent(turns=3)
    talk.open()

    async with run_worker(counting, talk.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert counting.looks == 0


async def test_a_worker_that_is_not_notified_leaves_steers_in_the_lane(bus: MemoryBus) -> None:
    steer(bus, "hello?", recipient=f"agent:{AGENT}")
    talk = SteerableAgent(turns=0)

    assert await work(bus, talk.runner) is Outcome.ANSWERED

    assert (seen_steers(bus), pending_mail(bus)) == ([], 1)


async def test_a_handoff_carries_what_was_said_before_it(bus: MemoryBus) -> None:
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


def test_more_than_one_request_may_hold_is_left_for_the_next() -> None:
    ledger = SteerLedger(RunRecord("r", AGENT, {}, {}, 0))
    large = [a_steer(n, "x" * (TURN_MAX_BYTES // 2)) for n in range(1, 4)]

    ledger.take(large)
    ledger.insert_into([])
    assert [steer.id for steer in ledger.end_turn(0)] == ["s1", "s2"]

    ledger.take(large)
    ledger.insert_into([])
    assert [steer.id for steer in ledger.end_turn(1)] == ["s3"]


def test_where_the_request_was_shortened_a_steer_stays_where_that_left_it() -> None:
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
