"""A run in this process, as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from agents import AgentUpdatedStreamEvent, RawResponsesStreamEvent, RunResultStreaming, TResponseInputItem
from agents import Runner as SDKRunner
from agents import StreamEvent as SDKStreamEvent
from agents.items import TResponseStreamEvent

from magent2.agents.create import AgentRuntime
from magent2.agents.injection import BusInjection, WatchedAgents
from magent2.context.agent import MAIN
from magent2.context.inject import InputItem
from magent2.errors import InvalidInput
from magent2.events import BaseStreamEvent, HandoffEvent, MessageEvent, OutputEvent, StreamEvent
from magent2.runner.event_mapping import EventMapper, MappedHandoff, as_text, usage_of
from magent2.runner.sdk_run import (
    check_finished,
    final_output,
    follow_events,
    run_config,
    translate_sdk_errors,
    usage_of_run,
)


@asynccontextmanager
async def stream_agent(
    runtime: AgentRuntime, prompt: str | Sequence[InputItem], *, history: Sequence[InputItem] = ()
) -> AsyncIterator[Streamer]:
    """Run the agent. Its next model call sees messages to its context; its first call sees those sent before.

    A message that arrives during the last answer is answered in the same stream, as long as `max_turns` allows. A
    message that no answer has seen waits for the next stream of this runtime. An error of the run is raised when the
    context ends, after all events before it. Leaving the context early stops the run.
    """
    if runtime.streaming:
        raise InvalidInput("this agent has a stream already; end it first, or create another agent")
    runtime.streaming = True
    try:
        streamer = Streamer(runtime, prompt, history)
        try:
            yield streamer
        finally:
            await streamer.close()
        streamer.check()
    finally:
        runtime.streaming = False
        if runtime.ctx.agent_id == MAIN:
            runtime.ctx.message_bus.sweep()


class Streamer:
    """The events of a run, in order, as they happen. `output` and `history` are complete when the run has succeeded.

    `history` is the conversation, with the messages at the positions where the model saw them. Pass it to the next
    stream. After a failure it is the prompt and the messages that an answer has seen.
    """

    def __init__(self, runtime: AgentRuntime, prompt: str | Sequence[InputItem], history: Sequence[InputItem]) -> None:
        if not isinstance(prompt, Sequence):
            raise InvalidInput(
                f"the prompt must be text or a sequence of the SDK's input items, not a {type(prompt).__name__}"
            )
        prompt_items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        self.output: Any = None
        self._runtime = runtime
        self._items: list[InputItem] = [*history, *prompt_items]
        self._result: RunResultStreaming | None = None
        self._mapper = StreamEventMapper(runtime.ctx.conversation_id, runtime.agent.name)
        self._injection = BusInjection(runtime.ctx, self._emit, self._wait_for_events)
        self._events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"stream of {runtime.ctx.agent_id}")
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))

    @property
    def history(self) -> list[InputItem]:
        return self._injection.apply(self._items)

    def __aiter__(self) -> Streamer:
        return self

    async def __anext__(self) -> StreamEvent:
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # a second reader gets the same answer
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """Stop the run if it has not ended, and return the messages that no answer has seen."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._injection.roll_back()

    def check(self) -> None:
        """Raise the error of the run, if there was one."""
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None:
            raise error

    async def _run(self) -> None:
        """Run the SDK, and run it again while messages arrived too late for what was to be the last answer."""
        turns = self._runtime.max_turns
        try:
            with translate_sdk_errors():
                while True:
                    result = await self._run_once(turns)
                    self._items = cast(list[InputItem], result.to_input_list())
                    turns -= len(result.raw_responses)
                    final, usage = await final_output(result), usage_of_run(result)
                    if turns < 1 or not self._injection.has_pending():
                        break
                    self._emit(self._mapper.intermediate_answer(final, usage))
                self.output = final
                self._emit(self._mapper.output(final, usage))
        finally:
            await self._runtime.provider.aclose()

    async def _run_once(self, turns: int) -> RunResultStreaming:
        runtime, injection = self._runtime, self._injection
        agent = WatchedAgents(runtime.provider, injection.commit, self._wait_for_events).copy_of(runtime.agent)
        config = run_config(self._mapper.note_failure, runtime.provider)
        result = self._result = SDKRunner.run_streamed(
            agent,
            input=cast(list[TResponseInputItem], self._items),
            context=runtime.ctx,
            max_turns=turns,
            run_config=replace(config, call_model_input_filter=injection),
        )
        async with follow_events(result) as events:
            async for event in events:
                for mapped in self._mapper.map(event):
                    self._emit(mapped)
        check_finished(result)
        injection.commit()
        return result

    def _emit(self, event: BaseStreamEvent) -> None:
        self._events.put_nowait(StreamEvent(self._runtime.ctx.agent_id, self._mapper.agent_name, event))

    async def _wait_for_events(self) -> None:
        """Wait until all events that the SDK has queued so far are emitted. Only its own queue knows."""
        queue = getattr(self._result, "_event_queue", None)
        if isinstance(queue, asyncio.Queue):
            await queue.join()


class StreamEventMapper:
    """Maps SDK events to the events of one stream, over all its runs of the SDK.

    Adds to `EventMapper`: a `message` event for the text of a turn that continues with tool calls, handoffs, and the
    usage of all runs together.
    """

    def __init__(self, conversation_id: str, agent_name: str) -> None:
        self.agent_name = agent_name  # the agent that speaks now
        self._conversation_id = conversation_id
        self._mapper = EventMapper(conversation_id)
        self._usage: dict[str, int] = {}
        self._text = ""  # of the current turn, until a `message` event carries it
        self._has_calls = False  # whether the current turn has called a tool

    def note_failure(self, call_id: str, reason: str) -> None:
        self._mapper.note_failure(call_id, reason)

    def map(self, event: SDKStreamEvent) -> Iterator[BaseStreamEvent]:
        if isinstance(event, AgentUpdatedStreamEvent):
            self.agent_name = event.new_agent.name
        elif isinstance(event, RawResponsesStreamEvent) and self._continues_with_calls(event.data):
            yield self._take_message()
        mapped = self._mapper.map(event)
        if isinstance(mapped, MappedHandoff):
            yield HandoffEvent(conversation_id=self._conversation_id, source=mapped.source, target=mapped.target)
        elif mapped is not None:
            yield mapped

    def intermediate_answer(self, final: object, usage: object) -> MessageEvent:
        """The event of an answer that is not the output, because a message arrived while the model wrote it."""
        self._add_usage(usage)
        self._text = as_text(final)
        return self._take_message()

    def output(self, final: object, usage: object) -> OutputEvent:
        self._add_usage(usage)
        return OutputEvent(conversation_id=self._conversation_id, text=as_text(final), usage=dict(self._usage) or None)

    def _continues_with_calls(self, data: TResponseStreamEvent) -> bool:
        """Whether the turn now has both text and a tool call. Then its text is not the output."""
        if data.type == "response.output_item.done":
            if data.item.type == "message":
                self._text = "".join(getattr(part, "text", "") for part in data.item.content)
            elif data.item.type.endswith("_call"):
                self._has_calls = True
        continues = self._has_calls and bool(self._text)
        if data.type == "response.completed":
            self._has_calls, self._text = False, self._text if continues else ""
        return continues

    def _take_message(self) -> MessageEvent:
        text, self._text = self._text, ""
        return MessageEvent(conversation_id=self._conversation_id, text=text)

    def _add_usage(self, usage: object) -> None:
        for name, count in (usage_of(usage) or {}).items():
            self._usage[name] = self._usage.get(name, 0) + count
