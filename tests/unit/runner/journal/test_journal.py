"""A turn is a transaction: a worker crashes at each append of a run, and another worker takes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Settle
from magent2.tools.chat import chat_send
from magent2.worker.lane_run import Outcome
from tests.support.audit import whole_log
from tests.support.engine_wrappers import OperationCounter
from tests.support.flaky_engine import FlakyEngine
from tests.support.journaled_runs import (
    CallbackModel,
    CrashingBus,
    Items,
    answers_recorded,
    results_in,
    results_recorded,
    script_call,
    sorted_history,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import AGENT, kinds, outputs, send, stream

TURNS = 4


class RunScenario:
    """A run of four turns: Ada calls two tools and hands off to Bea, which sends a message to Cy and ends the run."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.turns_requested: list[int] = []
        self.effects: list[int] = []
        send(self.bus, "go", id="mail-1", created_at="2026-01-01T00:00:00Z")

        @function_tool
        async def work(n: int) -> str:
            """Do a piece of work."""
            self.effects.append(n)
            return f"did {n}"

        model = CallbackModel(self.say)
        bea = Agent(name="Bea", model=model, tools=[work, chat_send])
        self.agent = Agent[Any](name=AGENT, model=model, tools=[work], handoffs=[bea])

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        shown = results_in(items)
        turn = sum(call in shown for call in ("c1", "h1", "c3"))
        self.turns_requested.append(turn)
        message = {"recipient": "agent:Cy", "content": "news", "conversation_id": "elsewhere"}
        return (
            [
                assistant_message("Let me see."),
                function_call("work", {"n": 1}, call_id="c1"),
                function_call("work", {"n": 2}, call_id="c2"),
            ],
            [function_call("transfer_to_bea", {}, call_id="h1")],
            [function_call("chat_send", message, call_id="c3")],
            [assistant_message("All is done.")],
        )[turn]

    def messages(self) -> list[str]:
        return [record.payload["content"] for record in whole_log(self.bus, "chat:Cy")]


@pytest.fixture
def scenario() -> Iterator[RunScenario]:
    scenario = RunScenario()
    yield scenario
    scenario.bus.close()


async def crash_points() -> list[tuple[int, bool]]:
    """The crash points of the run: before and after each append."""
    scenario = RunScenario()
    counting = CrashingBus(scenario.bus)
    await work_until_crash(counting, scenario.agent)
    return [(at, after) for at in range(1, counting.count + 1) for after in (False, True)]


async def test_events_of_a_run_are_in_the_order_in_which_they_happened(scenario: RunScenario) -> None:
    assert await work(scenario.bus, scenario.agent) is Outcome.ANSWERED

    events = [event for event in kinds(stream(scenario.bus)) if event != "token"]
    work_twice = ["start", "success"] * 2
    assert events == ["started", "message", *work_twice, "handoff", "start", "success", "output", "finished"]
    assert outputs(scenario.bus) == ["All is done."]


async def test_a_takeover_repeats_no_recorded_model_call_or_tool_call() -> None:
    whole = RunScenario()
    await work(whole.bus, whole.agent)
    points = await crash_points()
    assert len(points) >= 14

    for at, after in points:
        scenario = RunScenario()
        crashed = await work_until_crash(CrashingBus(scenario.bus, at, after), scenario.agent)
        responses, results = answers_recorded(scenario.bus), results_recorded(scenario.bus)
        requested, effects = len(scenario.turns_requested), len(scenario.effects)
        settled = bool(outputs(scenario.bus))
        assert 0 in responses or not scenario.effects, "a tool ran before its response was on the log"
        assert {"c1", "c2"} <= set(results) or 1 not in scenario.turns_requested, (
            "the model was called before the results were on the log"
        )

        if not settled:
            assert await work(scenario.bus, scenario.agent) is Outcome.ANSWERED

        assert crashed
        assert sorted(scenario.turns_requested[requested:]) == [turn for turn in range(TURNS) if turn not in responses]
        assert sorted(scenario.effects[effects:]) == ([] if settled else [n for n in (1, 2) if f"c{n}" not in results])
        assert sorted_history(scenario.bus) == sorted_history(whole.bus), (at, after)
        assert outputs(scenario.bus) == ["All is done."]
        assert scenario.messages() == ["news"]


async def test_a_response_is_on_the_log_before_its_tools_run(scenario: RunScenario) -> None:
    recorded: list[list[int]] = []

    @function_tool
    def look() -> str:
        """Look at the log."""
        recorded.append(answers_recorded(scenario.bus))
        return "looked"

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        return [assistant_message("done")] if results_in(items) else [function_call("look", {}, call_id="c1")]

    await work(scenario.bus, Agent(name=AGENT, model=CallbackModel(say), tools=[look]))

    assert recorded == [[0]]


async def test_the_final_response_is_part_of_the_settling_append() -> None:
    bus = MemoryBus()
    send(bus, "hi")
    engine = FlakyEngine(bus)

    await work(engine, Agent(name=AGENT, model=CallbackModel(lambda items: [assistant_message("hello")])))

    settle = engine.writes[-1]
    assert isinstance(settle, Settle)
    assert [record.payload["kind"] for record in settle.records if record.topic == "history:one"] == ["answer", "end"]
    bus.close()


async def test_a_turn_with_a_tool_costs_two_appends(scenario: RunScenario) -> None:
    counting = OperationCounter(scenario.bus)

    @function_tool
    async def look_up(n: int) -> str:
        """Look a number up."""
        return str(n)

    await work(counting, script_call("look_up", n=1).agent(look_up))

    # The start of the run, the answer with the call, its result, the tokens of the last answer, the end of the run.
    assert counting.kinds == ["Claim", *["OwnedAppend"] * 4, "Settle"]


async def test_an_answer_of_many_tokens_at_once_costs_three_appends_at_most(scenario: RunScenario) -> None:
    counting = OperationCounter(scenario.bus)
    model = CallbackModel(lambda _: [assistant_message("word " * 200)])
    await work(counting, Agent(name=AGENT, model=model))

    # The start, and the tokens that were written before the run had ended; then the rest with the end of the run.
    assert Counter(counting.kinds) in ({"Claim": 1, "OwnedAppend": n, "Settle": 1} for n in (1, 2))
