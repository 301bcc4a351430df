"""The earlier runs in the input of a journalled run."""

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
from tests.support.journaled_runs import CallbackModel, Items, answers_recorded, work
from tests.support.worker_fixture import AGENT, claim_one, send, until


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


class RecordingModel:
    """A model that responds `ok` and stores its requests. It refuses requests of more than `items_max` items."""

    def __init__(self, items_max: int | None = None) -> None:
        self.requests: list[Sequence[Mapping[str, Any]]] = []
        self.items_max = items_max

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append(items)
        if self.items_max is not None and len(items) > self.items_max:
            raise too_long()
        return [assistant_message("ok")]

    def agent(self, *tools: Any) -> Agent[Any]:
        return Agent(name=AGENT, model=CallbackModel(self.say), tools=list(tools))

    def questions(self) -> list[str]:
        """The messages of the user in the last request."""
        return [item["content"] for item in self.requests[-1] if item.get("role") == "user"]


def too_long() -> Exception:
    """The error that the SDK raises for a stream that ends with this code."""
    return ModelBehaviorError("Responses stream ended with `response.failed`. error=code='context_length_exceeded'")


async def converse(bus: MemoryBus, runner: OpenAIAgentsRunner, *questions: str) -> None:
    for question in questions:
        send(bus, question)
        await work(bus, runner)


async def test_any_worker_continues_the_conversation(bus: MemoryBus) -> None:
    await converse(bus, OpenAIAgentsRunner(RecordingModel().agent()), "one", "two")
    model = RecordingModel()

    await converse(bus, OpenAIAgentsRunner(model.agent()), "three")

    assert model.questions() == ["one", "two", "three"]
    responses = [item["content"][0]["text"] for item in model.requests[-1] if item.get("role") == "assistant"]
    assert responses == ["ok", "ok"]


async def test_calls_of_a_stopped_run_have_an_output_in_the_next_request(bus: MemoryBus) -> None:
    send(bus, "look")

    @function_tool
    async def look() -> str:
        """Wait forever."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent[Any](
        name=AGENT, model=CallbackModel(lambda items: [function_call("look", {}, call_id="c1")]), tools=[look]
    )
    lane = LaneRun(bus, claim_one(bus), OpenAIAgentsRunner(agent))
    working = asyncio.create_task(lane.work())
    await until(lambda: answers_recorded(bus))
    send(bus, "stop", type="control")
    (command,) = (record for record in bus.read("control:Ada", None, 1))
    lane.add_command(command)
    assert await working is Outcome.STOPPED
    model = RecordingModel()

    await converse(bus, OpenAIAgentsRunner(model.agent()), "and now?")

    (result,) = (item for item in model.requests[-1] if item.get("type") == "function_call_output")
    assert (result["call_id"], result["output"]) == ("c1", STOPPED_CALL)


async def test_the_history_limit_may_be_zero_but_not_negative(bus: MemoryBus) -> None:
    model = RecordingModel()

    await converse(bus, OpenAIAgentsRunner(model.agent(), history_max=0), "one", "two")

    assert model.questions() == ["two"]
    with pytest.raises(ValueError, match="history_max"):
        OpenAIAgentsRunner(model.agent(), history_max=-1)
