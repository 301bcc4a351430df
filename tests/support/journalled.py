"""Runs of the SDK through the journal, and the death of workers at a chosen append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from agents import Agent
from agents.items import TResponseOutputItem
from agents.testing import ModelCall, ModelStep, ScriptedModel

from magent2.bus.interface import Engine
from magent2.bus.operations import Leave, Operation, Write
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.worker.run import LaneRun, Outcome
from tests.support.broken import Broken
from tests.support.serving import claim_one, history

R = TypeVar("R")

STEPS_MAX = 50

Items = Sequence[TResponseOutputItem]
Say = Callable[[Sequence[Mapping[str, Any]]], Items]


class Improviser(ScriptedModel):
    """Answers what `say` says to the items it is shown, as often as it is asked, word for word the same each time."""

    def __init__(self, say: Say) -> None:
        self._say = say
        super().__init__([ModelStep.respond(self._respond)] * STEPS_MAX)

    def _respond(self, call: ModelCall) -> Items:
        return self._say(call.input)


def results_in(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results that the model is shown after the last question, by call."""
    shown: dict[str, Any] = {}
    for item in items:
        if item.get("role") == "user":
            shown.clear()
        if item.get("type") == "function_call_output":
            shown[item["call_id"]] = item["output"]
    return shown


class Mortal(Broken):
    """A bus whose worker dies before, or right after, one write: the write does not come, or its reply.

    Which one: the `at`-th, or the first with a history record of the kind `on`.
    """

    def __init__(self, engine: Engine, at: int = 0, after: bool = False, on: str = "") -> None:
        super().__init__(engine)
        self.at = at
        self.after = after
        self.on = on
        self.count = 0
        self.dead = asyncio.Event()

    async def acall(self, operation: Operation[R]) -> R:
        if not isinstance(operation, Write):
            return self.call(operation)
        self.count += 1
        if self.count != self.at and not any(record.payload.get("kind") == self.on for record in operation.records):
            return self.call(operation)
        if self.after:
            self.call(operation)
        self.dead.set()
        return await asyncio.get_running_loop().create_future()  # the dead do not go on


async def work(bus: Engine, agent: Agent[Any] | OpenAIAgentsRunner, worker: str = "w1") -> Outcome:
    """Work on the one lane that waits."""
    runner = agent if isinstance(agent, OpenAIAgentsRunner) else OpenAIAgentsRunner(agent)
    return await LaneRun(bus, claim_one(bus, worker), runner).work()


async def work_and_die(bus: Mortal, agent: Agent[Any]) -> bool:
    """Work until death; whether it came to that. The lane is free afterwards."""
    working = asyncio.create_task(work(bus, agent, "mortal"))
    dying = asyncio.create_task(bus.dead.wait())
    await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
    died = bus.dead.is_set()
    for task in (working, dying):
        task.cancel()
    await asyncio.wait({working, dying})
    if not died:
        working.result()
    bus.call(Leave("mortal"))
    return died


def remembered(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    """The history, in an order that does not depend on which of two tools was quicker."""
    records = history(bus, conversation)
    order = {"start": -1, "end": 99}
    return sorted(records, key=lambda record: (record.get("turn", order.get(record["kind"])), str(record)))


def answers_recorded(bus: Engine, conversation: str = "one") -> list[int]:
    return [record["turn"] for record in history(bus, conversation) if record["kind"] == "answer"]


def results_recorded(bus: Engine, conversation: str = "one") -> list[str]:
    return [record["call_id"] for record in history(bus, conversation) if record["kind"] == "tool"]
