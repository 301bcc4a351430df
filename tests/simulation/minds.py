"""A runner with a model: SDK runs through the journal, and a witness of all that model and tools are asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from agents import Agent, RunContextWrapper, function_tool
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.demo import build_response, stream_events
from magent2.runner.demo_script import Say
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.tools.sending import send
from tests.simulation.blocks import code_of, is_block, python_of
from tests.simulation.ledger import Ledger
from tests.simulation.moods import Temper
from tests.support.journalled import results_in
from tests.support.runners import Event
from tests.support.steered import blocks

CALLS = "calls"  # metadata of mail: how many tools are called in each turn before the last
LETTER_TO = "Ada"
LETTER = "news for her"

Remember = Callable[[RunContext], RunContext]


def call_ids(envelope: MessageEnvelope) -> list[list[str]]:
    """The calls of each turn but the last."""
    counts = envelope.metadata.get(CALLS, [])
    return [[f"{envelope.id}-{turn}-{call}" for call in range(count)] for turn, count in enumerate(counts)]


def result_of(call: str) -> str:
    return f"did {call}"


class Witness:
    """Stands where model and tools are, outside of every process: it outlives them, and compares with the log."""

    def __init__(self, ledger: Ledger) -> None:
        self.findings: list[str] = []
        self._ledger = ledger

    def see(self, context: RunContext, turn: int, call: str = "") -> None:
        """Somebody asks for an answer, or runs a tool. Only who has lost the lane cannot know what is recorded."""
        what = "a call" if call else "an answer"
        counts, recorded = self._ledger.counts, self._ledger.recorded
        counts[f"{what} was asked for"] += 1
        if not self._ledger.holds(context.log.owner):
            counts["a zombie asked"] += 1
        elif (context.run_id, turn, call) in recorded:
            self.findings.append(f"{what} of {context.envelope.id} ({turn} {call}) was recorded and asked for again")
        if call and (context.run_id, turn, "") not in recorded:
            self.findings.append(f"{call} was run before its answer was on the log")
        counts["an answer was replayed"] += not call and turn > 0 and turn - 1 in context.run.answers

    def hear(self, context: RunContext, said: list[str]) -> None:
        """What was said on the way is shown once, and what an answer has seen in every request after it."""
        own = context.run
        recorded = [steer["text"] for turn in own.answers for steer in own.steers(turn)]
        missing = Counter(recorded) - Counter(said)
        if missing:
            self.findings.append(f"the model of {context.envelope.id} was not shown {list(missing)} again")
        self._ledger.counts["a steer was shown"] += len(said)

    def compare(self, context: RunContext, shown: dict[str, Any]) -> None:
        """What the model is shown is what the tools have said."""
        wrong = {call: result for call, result in shown.items() if not is_block(call) and result != result_of(call)}
        for text in (str(result) for call, result in shown.items() if is_block(call)):
            self._ledger.counts["a block has sent" if text.endswith(" sent]") else "a block has failed"] += 1
        if wrong:
            self.findings.append(f"the model of {context.envelope.id} was shown {wrong}")


class Mind(ScriptedModel):
    """The model of one attempt: calls what the mail says, turn by turn, then says the mail's text."""

    def __init__(self, context: RunContext, temper: Temper, witness: Witness) -> None:
        super().__init__([ModelStep.stream(self._events)])  # each step adds the next: to make one costs a copy
        self._context = context
        self._temper = temper
        self._witness = witness
        self._breaks_at = temper.dice.randrange(len(call_ids(context.envelope)) + 1)

    async def _events(self, call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        self.enqueue(ModelStep.stream(self._events))
        await self._temper.line.breathe()
        shown = results_in(call.input)
        turns = call_ids(self._context.envelope)
        turn = sum(all(name in shown for name in calls) for calls in turns)
        self._witness.see(self._context, turn)
        self._witness.compare(self._context, shown)
        self._witness.hear(self._context, [text for _, text in blocks(call.input)])
        if turn >= self._breaks_at:
            await self._temper.suffer(self._context.envelope, self._context)
        response = build_response(Say(""), [{}])
        for event in stream_events(response.model_copy(update={"output": self._items(turn, turns)})):
            if event.type == "response.output_text.delta":
                await self._temper.think()
            yield event

    def _items(self, turn: int, turns: Sequence[Sequence[str]]) -> list[TResponseOutputItem]:
        if turn == len(turns):
            return [assistant_message(self._context.envelope.content or "")]
        calls = [self._call(name) for name in turns[turn]]
        return [assistant_message(f"turn {turn}"), *calls] if turn else list(calls)

    def _call(self, name: str) -> TResponseOutputItem:
        if is_block(name):
            return function_call("run_python", {"code": code_of(name)}, call_id=name)
        return function_call("tell" if name.endswith("-1") else "work", {}, call_id=name)


class Minds:
    """A runner whose every attempt has a model and tools of its own, as every process has."""

    takes_steers = True

    def __init__(self, temper: Temper, witness: Witness, remember: Remember = lambda context: context) -> None:
        self._temper = temper
        self._witness = witness
        self._remember = remember
        self._tools = [self._work(), self._tell()]

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        known = self._remember(context)
        model = Mind(known, self._temper, self._witness)
        tools = [*self._tools, python_of(known, self._temper, self._witness.see)]
        agent = Agent[Any](name=context.agent, model=model, tools=tools)
        events = OpenAIAgentsRunner(agent).astream_run(envelope, known)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def _work(self) -> Any:
        @function_tool
        async def work(context: RunContextWrapper[Any]) -> str:
            """Do a piece of work."""
            return await self._do(context)

        return work

    def _tell(self) -> Any:
        @function_tool
        async def tell(context: RunContextWrapper[Any]) -> str:
            """Do a piece of work and send a letter."""
            run: RunContext = context.context
            result = await self._do(context)
            send(
                run.bus,
                MessageEnvelope(
                    conversation_id=run.conversation_id,
                    sender=f"agent:{run.agent}",
                    recipient=f"agent:{LETTER_TO}",
                    content=LETTER,
                ),
            )
            return result

        return tell

    async def _do(self, context: RunContextWrapper[Any]) -> str:
        assert isinstance(context, ToolContext)
        await self._temper.line.breathe()
        call = context.tool_call_id
        self._witness.see(context.context, int(call.split("-")[1]), call)
        await asyncio.sleep(self._temper.dice.choice((0.0, self._temper.dice.random())))
        return result_of(call)
