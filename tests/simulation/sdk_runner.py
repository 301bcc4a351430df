"""A runner with a scripted model: runs of the SDK through the journal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from agents import Agent, Model, ModelResponse, TResponseInputItem
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.testing import assistant_message, function_call

from magent2.errors import ModelRefused, ModelUnavailable
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.demo.model import build_response, stream_events
from magent2.runner.demo.script import ScriptedText
from magent2.runner.event_mapping import TEXT_DELTA
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.calls import Candidate
from magent2.runner.providers.provider import AgentModels
from magent2.runner.run_stream import RunStream
from magent2.runner.wrapped_model import WrappedModel
from magent2.tools.subagents import MESSAGE, RESULT, START
from tests.simulation.agent_tools import tool_of, tools_for
from tests.simulation.blocks import code_of
from tests.simulation.call_oracle import CallOracle
from tests.simulation.calls import BLOCK, MODELS, SEND, SUBAGENT, call_ids, has_two_models, kind_of, start_of, task_of
from tests.simulation.compactions import CONTEXT_MAX, is_summary_request, summary_of, told_by_summary
from tests.simulation.directory_fixture import send_call
from tests.simulation.plain_runner import MailFaults
from tests.support.journaled_runs import results_in
from tests.support.runners import Event
from tests.support.steerable_run import shown_steers

ANSWER_MAX_S = 200.0  # how long to wait for the result of a subagent; longer than any crash delays it
EMPTY = build_response(ScriptedText(""), [{}])
NO_SUBAGENT = "nobody"  # in place of a subagent that could not be started

# Shares of the calls of a first model
FIRST_DOWN, FIRST_FAILS, FIRST_BREAKS = 0.3, 0.5, 0.6

AlterContext = Callable[[RunContext], RunContext]


class PlannedModel(Model):
    """The model of one attempt: makes the calls that the mail lists, turn by turn, then answers with its text."""

    def __init__(self, context: RunContext, faults: MailFaults, oracle: CallOracle) -> None:
        self._context = context
        self._faults = faults
        self._oracle = oracle
        self._turns = call_ids(context.envelope)
        self._breaks_at = faults.rng.randrange(len(self._turns) + 1)

    async def get_response(self, *rest: Any, **options: Any) -> ModelResponse:
        raise AssertionError("journalled runs are streamed")

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  the SDK's name for it
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        asked: list[Any] = input if isinstance(input, list) else []
        await self._faults.bus.checkpoint()
        if is_summary_request(system_instructions):
            self._faults.bus.count("a summary was asked for")
            text = summary_of(asked, self._context.envelope.id)
            for event in stream_events(EMPTY.model_copy(update={"output": [assistant_message(text)]})):
                yield event
            await self._faults.bus.checkpoint()
            return
        self._oracle.check_request(self._context, asked)
        told = told_by_summary(asked)
        own = {name: result for name, result in told["results"].items() if name.startswith(self._context.envelope.id)}
        shown = own | results_in(asked)
        turn = sum(all(name in shown for name in calls) for calls in self._turns)
        self._oracle.check_call(self._context, turn)
        self._oracle.check_results(self._context, shown)
        steers = [{"role": "user", "content": text} for text in told["steers"]]
        self._oracle.check_steers(self._context, [text for _, text in shown_steers([*steers, *asked])])
        if turn >= self._breaks_at:
            await self._faults.raise_failure(self._context.envelope, self._context)
        for event in stream_events(EMPTY.model_copy(update={"output": self._items(turn, shown)})):
            if event.type == "response.output_text.delta":
                await self._faults.think_time()
            yield event

    def _items(self, turn: int, shown: Mapping[str, Any]) -> list[TResponseOutputItem]:
        if turn == len(self._turns):
            return [assistant_message(self._context.envelope.content or "")]
        calls = [self._call(name, shown) for name in self._turns[turn]]
        return [assistant_message(f"turn {turn}"), *calls] if turn else list(calls)

    def _call(self, name: str, shown: Mapping[str, Any]) -> TResponseOutputItem:
        return function_call(tool_of(name, self._context.conversation_id), self._arguments(name, shown), call_id=name)

    def _arguments(self, name: str, shown: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = kind_of(name)
        if kind == BLOCK:
            return {"code": code_of(name)}
        if kind == SEND:
            return send_call(name, self._context.conversation_id).arguments
        if kind == START:
            return {"agent": SUBAGENT, "task": task_of(name)}
        child = {"subagent_id": _started(str(shown.get(start_of(name), "")))}
        if kind == MESSAGE:
            return {**child, "text": f"word {name}"}
        return {**child, "timeout_s": ANSWER_MAX_S} if kind == RESULT else {}


class FlakyModel(WrappedModel):
    """The first of two models: sometimes down, sometimes refusing, sometimes breaking off in the middle of its text."""

    def __init__(self, inner: PlannedModel, faults: MailFaults) -> None:
        self._inner = inner
        self._faults = faults

    async def get_response(self, *rest: Any, **options: Any) -> ModelResponse:
        raise AssertionError("journalled runs are streamed")

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        mood = self._faults.rng.random()
        if mood < FIRST_FAILS:
            self._faults.bus.count("the next model was asked")
            raise ModelUnavailable("down") if mood < FIRST_DOWN else ModelRefused("refused")
        async for event in self._inner.stream_response(*request, **options):
            yield event
            if event.type == TEXT_DELTA and mood < FIRST_BREAKS:
                self._faults.bus.count("a model broke off")
                raise ModelUnavailable("broken off")


class TwoModels(AgentModels):
    """The two models of an agent. What the first does not answer, the second does."""

    def __init__(self, inner: PlannedModel, faults: MailFaults) -> None:
        self._both = FlakyModel(inner, faults), inner

    def candidates(self) -> list[Candidate]:
        return [Candidate(name, (name, ""), model) for name, model in zip(MODELS, self._both, strict=True)]


def _started(result: str) -> str:
    found = json.loads(result) if result.startswith("{") else {}
    return str(found.get("subagent_id", NO_SUBAGENT))


class SdkRunner:
    """A runner that creates a new model for every attempt, as each process would."""

    takes_steers = True

    def __init__(
        self, faults: MailFaults, oracle: CallOracle, alter_context: AlterContext = lambda context: context
    ) -> None:
        self._faults = faults
        self._oracle = oracle
        self._alter_context = alter_context

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> RunStream:
        known = self._alter_context(context)
        planned = PlannedModel(known, self._faults, self._oracle)
        model = TwoModels(planned, self._faults) if has_two_models(envelope.id) else planned
        agent = Agent[Any](name=context.agent, model=model, tools=tools_for(envelope))
        runner = OpenAIAgentsRunner(agent)
        runner.context_max = CONTEXT_MAX
        return runner.astream_run(envelope, known)
