"""Runs of the SDK through the journal, and simulated crashes at a chosen append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from agents import Agent
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.operations import Leave, Operation, Write
from magent2.runner.context import RunContext
from magent2.runner.demo.model import build_response, stream_events
from magent2.runner.demo.script import ScriptedText as SayLine
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.history import History, RunRecord
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.runner_adapter import Runner
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.worker_fixture import AGENT, claim_one, envelope, history, stream

R = TypeVar("R")

STEPS_MAX = 50
TURNS_OF_LOOP = 100

Items = Sequence[TResponseOutputItem]
Respond = Callable[[Sequence[Mapping[str, Any]]], Items]


class CallbackModel(ScriptedModel):
    """Answers every request with the result of `say` for the items of the request."""

    def __init__(self, say: Respond, steps_max: int = STEPS_MAX) -> None:
        self._say = say
        super().__init__([ModelStep.respond(self._respond)] * steps_max)

    def _respond(self, call: ModelCall) -> Items:
        return self._say(call.input)


def results_in(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The tool results after the last user message, by call id."""
    shown: dict[str, Any] = {}
    for item in items:
        if item.get("role") == "user" and not is_block(item):
            shown.clear()
        if item.get("type") == "function_call_output":
            shown[item["call_id"]] = item["output"]
    return shown


def is_block(item: Mapping[str, Any]) -> bool:
    """Whether an item is a steer."""
    return str(item.get("content", "")).startswith("<bus-message ")


class ToolCallScript:
    """A model script: makes these calls, records their results, and ends."""

    def __init__(self, *calls: TResponseOutputItem) -> None:
        self.calls = calls
        self.results: dict[str, Any] = {}

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.results = results_in(items)
        return [assistant_message("done")] if self.results else self.calls

    def agent(self, *tools: Any, **options: Any) -> Agent[Any]:
        return Agent(name=AGENT, model=CallbackModel(self.say), tools=list(tools), **options)


def script_call(name: str, **arguments: Any) -> ToolCallScript:
    return ToolCallScript(function_call(name, arguments, call_id="c1"))


def tool_steps(bus: Engine) -> list[tuple[str, str | None]]:
    return [(event["status"], event["error"]) for event in stream(bus) if event["event"] == "tool_step"]


def recorded(bus: Engine) -> dict[str, Mapping[str, Any]]:
    return {record["call_id"]: record for record in history(bus) if record["kind"] == "tool"}


def message_contents(bus: Engine, topic: str) -> list[str]:
    return [record.payload["content"] for record in whole_log(bus, topic)]


class CrashingBus(EngineWrapper):
    """A bus that simulates a crash of its worker before or right after one write, which then never returns.

    The write is the `at`-th, or the first with a history record of the kind `on`.
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
        if not self._is_last(operation):
            return self.call(cast(Operation[R], operation))
        if self.after:
            self.call(operation)
        self.dead.set()
        never: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        return await never

    def _is_last(self, write: Write) -> bool:
        return self.count == self.at or any(record.payload.get("kind") == self.on for record in write.records)


async def work(bus: Engine, agent: Agent[Any] | OpenAIAgentsRunner, worker: str = "w1") -> Outcome:
    """Run the only pending lane."""
    runner = agent if isinstance(agent, OpenAIAgentsRunner) else OpenAIAgentsRunner(agent)
    return await LaneRun(bus, claim_one(bus, worker), runner).work()


async def work_until_crash(
    bus: CrashingBus, agent: Agent[Any] | Runner, labour: Callable[..., Coroutine[Any, Any, Outcome]] = work
) -> bool:
    """Run until the simulated crash; return whether it happened. The lane is free afterwards."""
    working = asyncio.create_task(labour(bus, agent, "mortal"))
    dying = asyncio.create_task(bus.dead.wait())
    await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
    died = bus.dead.is_set()
    for _ in range(TURNS_OF_LOOP):  # tasks that do not wait for that write go on
        await asyncio.sleep(0)
    for task in (working, dying):
        task.cancel()
    await asyncio.wait({working, dying})
    if not died:
        working.result()
    bus.call(Leave("mortal"))
    return died


def sorted_history(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    """The history, in an order that does not depend on which of two tools was faster."""
    records = history(bus, conversation)
    order = {"start": -1, "end": 99}
    return sorted(records, key=lambda record: (record.get("turn", order.get(record["kind"])), str(record)))


def answers_recorded(bus: Engine, conversation: str = "one") -> list[int]:
    return [record["turn"] for record in history(bus, conversation) if record["kind"] == "answer"]


def results_recorded(bus: Engine, conversation: str = "one") -> list[str]:
    return [record["call_id"] for record in history(bus, conversation) if record["kind"] == "tool"]


def context_of(bus: Engine, worker: str = "w1") -> RunContext:
    """Claim the pending lane and return the context of its run."""
    claimed = claim_one(bus, worker)
    question = envelope("go")
    history = History().followed_by(whole_log(bus, "history:one"))
    run = RunRecord("run-1", AGENT, question.model_dump(mode="json"), {}, history.last)
    writer = LaneWriter(bus, claimed.owner)
    return RunContext(question, AGENT, claimed.attempt, bus, writer, history, run)


def stream_answer(text: str, pause: asyncio.Event | None = None, fail: Exception | None = None) -> ModelStep:
    """A streamed answer that waits or fails after its first words."""

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        for number, event in enumerate(stream_events(build_response(SayLine(text), [{}]))):
            if number == 4 and fail is not None:
                raise fail
            if number == 4 and pause is not None:
                await pause.wait()
            yield event

    return ModelStep.stream(events)


def scripted(*tool_steps: Any, **options: Any) -> Agent[Any]:
    return Agent(name=AGENT, model=ScriptedModel(tool_steps), **options)


async def events_and_error(bus: Engine, runner: OpenAIAgentsRunner) -> tuple[list[Any], Exception | None]:
    context = context_of(bus)
    seen: list[Any] = []
    try:
        async for event in runner.astream_run(context.envelope, context):
            seen.append(event)  # noqa: PERF401  a comprehension would lose what came before the error
    except Exception as error:  # noqa: BLE001  any error will do, and it is looked at
        return seen, error
    return seen, None
