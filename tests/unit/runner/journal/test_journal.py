"""A turn is a transaction: workers die at every append of a run, and others take over."""

from __future__ import annotations

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
from tests.support.flaky_engine import FlakyEngine
from tests.support.journaled_runs import (
    CallbackModel,
    CrashingBus,
    Items,
    answers_recorded,
    results_in,
    results_recorded,
    sorted_history,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import AGENT, kinds, outputs, send, stream

TURNS = 4


class Stage:
    """Ada calls two tools at once and hands over to Bea, who writes to Cy and says that all is done."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.asked: list[int] = []
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
        self.asked.append(turn)
        letter = {"recipient": "agent:Cy", "content": "news", "conversation_id": "elsewhere"}
        return (
            [
                assistant_message("Let me see."),
                function_call("work", {"n": 1}, call_id="c1"),
                function_call("work", {"n": 2}, call_id="c2"),
            ],
            [function_call("transfer_to_bea", {}, call_id="h1")],
            [function_call("chat_send", letter, call_id="c3")],
            [assistant_message("All is done.")],
        )[turn]

    def letters(self) -> list[str]:
        return [record.payload["content"] for record in whole_log(self.bus, "chat:Cy")]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.bus.close()


async def points() -> list[tuple[int, bool]]:
    """Before and after every append of the run."""
    stage = Stage()
    living = CrashingBus(stage.bus)
    await work_until_crash(living, stage.agent)
    return [(at, after) for at in range(1, living.count + 1) for after in (False, True)]


async def test_a_run_is_told_in_the_order_it_happened(stage: Stage) -> None:
    assert await work(stage.bus, stage.agent) is Outcome.ANSWERED

    told = [event for event in kinds(stream(stage.bus)) if event != "token"]
    work_twice = ["start", "success"] * 2
    assert told == ["started", "message", *work_twice, "handoff", "start", "success", "output", "finished"]
    assert outputs(stage.bus) == ["All is done."]


async def test_an_attempt_that_takes_over_repeats_nothing_that_is_recorded() -> None:
    whole = Stage()
    await work(whole.bus, whole.agent)
    deaths = await points()
    assert len(deaths) >= 14

    for at, after in deaths:
        stage = Stage()
        died = await work_until_crash(CrashingBus(stage.bus, at, after), stage.agent)
        answered, done = answers_recorded(stage.bus), results_recorded(stage.bus)
        asked, effects = len(stage.asked), len(stage.effects)
        settled = bool(outputs(stage.bus))
        assert 0 in answered or not stage.effects, "a tool ran before its answer was on the log"
        assert {"c1", "c2"} <= set(done) or 1 not in stage.asked, "the model was asked before the results were"

        if not settled:
            assert await work(stage.bus, stage.agent) is Outcome.ANSWERED

        assert died
        assert sorted(stage.asked[asked:]) == [turn for turn in range(TURNS) if turn not in answered]
        assert sorted(stage.effects[effects:]) == ([] if settled else [n for n in (1, 2) if f"c{n}" not in done])
        assert sorted_history(stage.bus) == sorted_history(whole.bus), (at, after)
        assert outputs(stage.bus) == ["All is done."]
        assert stage.letters() == ["news"]


async def test_an_answer_is_on_the_log_before_its_tools_run(stage: Stage) -> None:
    seen: list[list[int]] = []

    @function_tool
    def look() -> str:
        """Look at the log."""
        seen.append(answers_recorded(stage.bus))
        return "looked"

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        return [assistant_message("done")] if results_in(items) else [function_call("look", {}, call_id="c1")]

    await work(stage.bus, Agent(name=AGENT, model=CallbackModel(say), tools=[look]))

    assert seen == [[0]]


async def test_a_final_answer_needs_no_append_of_its_own() -> None:
    bus = MemoryBus()
    send(bus, "hi")
    watched = FlakyEngine(bus)

    await work(watched, Agent(name=AGENT, model=CallbackModel(lambda items: [assistant_message("hello")])))

    settle = watched.writes[-1]
    assert isinstance(settle, Settle)
    assert [record.payload["kind"] for record in settle.records if record.topic == "history:one"] == ["answer", "end"]
    bus.close()
