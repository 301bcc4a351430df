"""What a run remembers of the conversation, and how it makes do with less."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, ModelBehaviorError, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.memory import MemoryBus
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.folds import STOPPED_CALL
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support.journaled_runs import CallbackModel, Items, answers_recorded, results_in, work
from tests.support.worker_fixture import AGENT, claim_one, dead_letters, outputs, send, stream, until


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


class Listener:
    """Says `ok` to everything, and remembers what it was shown. One that is `full` takes so many items and no more."""

    def __init__(self, full: int | None = None) -> None:
        self.shown: list[Sequence[Mapping[str, Any]]] = []
        self.full = full

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.shown.append(items)
        if self.full is not None and len(items) > self.full:
            raise too_long()
        return [assistant_message("ok")]

    def agent(self, *tools: Any) -> Agent[Any]:
        return Agent(name=AGENT, model=CallbackModel(self.say), tools=list(tools))

    def questions(self) -> list[str]:
        """What the model was asked, in its last call."""
        return [item["content"] for item in self.shown[-1] if item.get("role") == "user"]


def too_long() -> Exception:
    """As the SDK raises it when a stream ends so."""
    return ModelBehaviorError("Responses stream ended with `response.failed`. error=code='context_length_exceeded'")


async def converse(bus: MemoryBus, runner: OpenAIAgentsRunner, *questions: str) -> None:
    for question in questions:
        send(bus, question)
        await work(bus, runner)


async def test_any_worker_goes_on_with_the_conversation(bus: MemoryBus) -> None:
    await converse(bus, OpenAIAgentsRunner(Listener().agent()), "one", "two")
    listener = Listener()

    await converse(bus, OpenAIAgentsRunner(listener.agent()), "three")

    assert listener.questions() == ["one", "two", "three"]
    said = [item["content"][0]["text"] for item in listener.shown[-1] if item.get("role") == "assistant"]
    assert said == ["ok", "ok"]


async def test_the_oldest_runs_stay_out_and_the_output_says_how_many(bus: MemoryBus) -> None:
    listener = Listener()

    await converse(bus, OpenAIAgentsRunner(listener.agent(), history_max=2), "one", "two", "three", "four", "five")

    assert listener.questions() == ["three", "four", "five"]
    told = [event.get("history_left_out") for event in stream(bus) if event["event"] == "output"]
    assert told == [None, None, None, 1, 2]


async def test_a_run_that_was_stopped_leaves_no_call_open(bus: MemoryBus) -> None:
    send(bus, "look")

    @function_tool
    async def look() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    calling = Agent[Any](
        name=AGENT, model=CallbackModel(lambda items: [function_call("look", {}, call_id="c1")]), tools=[look]
    )
    lane = LaneRun(bus, claim_one(bus), OpenAIAgentsRunner(calling))
    working = asyncio.create_task(lane.work())
    await until(lambda: answers_recorded(bus))
    send(bus, "stop", type="control")
    (command,) = (record for record in bus.read("control:Ada", None, 1))
    lane.add_command(command)
    assert await working is Outcome.STOPPED
    listener = Listener()

    await converse(bus, OpenAIAgentsRunner(listener.agent()), "and now?")

    (result,) = (item for item in listener.shown[-1] if item.get("type") == "function_call_output")
    assert (result["call_id"], result["output"]) == ("c1", STOPPED_CALL)


async def test_a_request_that_is_too_long_is_made_shorter_once(bus: MemoryBus) -> None:
    await converse(bus, OpenAIAgentsRunner(Listener().agent()), "one", "two", "three", "four")
    listener = Listener(full=6)

    await converse(bus, OpenAIAgentsRunner(listener.agent()), "five")

    assert [len(items) for items in listener.shown] == [9, 5]
    assert listener.questions() == ["three", "four", "five"]
    (told,) = (event for event in stream(bus) if event.get("reason") == "history shortened")
    assert (told["event"], told["status"], told["history_left_out"]) == ("run", "restarted", 2)
    assert outputs(bus)[-1] == "ok"


async def test_a_request_that_is_still_too_long_is_a_clear_error(bus: MemoryBus) -> None:
    await converse(bus, OpenAIAgentsRunner(Listener().agent()), "one", "two")
    listener = Listener(full=1)

    await converse(bus, OpenAIAgentsRunner(listener.agent()), "three")

    assert len(listener.shown) == 2
    assert dead_letters(bus)[0]["reason"].startswith("ContextTooLong")


async def test_making_it_shorter_asks_and_does_nothing_again(bus: MemoryBus) -> None:
    await converse(bus, OpenAIAgentsRunner(Listener().agent()), "one", "two")
    runs, asked = 0, 0

    @function_tool
    def look() -> str:
        """Look."""
        nonlocal runs
        runs += 1
        return "seen"

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        nonlocal asked
        asked += 1
        if not results_in(items):
            return [function_call("look", {}, call_id="c1")]
        if len(items) > 5:
            raise too_long()
        return [assistant_message("done")]

    await converse(bus, OpenAIAgentsRunner(Agent(name=AGENT, model=CallbackModel(say), tools=[look])), "three")

    assert (runs, asked) == (1, 3)
    assert outputs(bus)[-1] == "done"
    assert [event["status"] for event in stream(bus) if event["event"] == "tool_step"] == ["start", "success"]


async def test_no_history_is_a_choice_and_less_than_none_is_not(bus: MemoryBus) -> None:
    listener = Listener()

    await converse(bus, OpenAIAgentsRunner(listener.agent(), history_max=0), "one", "two")

    assert listener.questions() == ["two"]
    with pytest.raises(ValueError, match="history_max"):
        OpenAIAgentsRunner(listener.agent(), history_max=-1)
