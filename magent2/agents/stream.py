"""A run in this process, as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from agents import Runner as SDKRunner

from magent2.agents.create import AgentRuntime
from magent2.agents.filter import BusInjection
from magent2.agents.model import WatchedAgents
from magent2.agents.stream_events import StreamEventMapper
from magent2.context.agent import MAIN
from magent2.context.inject import InputItem
from magent2.errors import InvalidInput
from magent2.events import BaseStreamEvent, StreamEvent
from magent2.runner.build import run_config
from magent2.runner.sdk_errors import translate_sdk_errors
from magent2.runner.sdk_result import check_ended, final_output, followed, usage_of_run


@asynccontextmanager
async def stream_agent(
    runtime: AgentRuntime, prompt: str | Sequence[InputItem], *, history: Sequence[InputItem] = ()
) -> AsyncIterator[Streamer]:
    """Run the agent. Messages to its context are seen by its next model call, those sent before by its first.

    A message that comes while the last answer is given is answered too, in the same stream, as long as `max_turns`
    allows; one that no answer has seen waits for the next stream of this runtime. An error of the run is raised when
    the context ends, after all events before it were delivered. Leaving early stops the run.
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
    """The events of a run, in order, as they happen; `output` and `history` when it has ended well.

    `history` is the conversation with the messages where the model saw them, to be handed to the next stream. After a
    failure it is what was asked, and the messages that an answer has seen.
    """

    def __init__(self, runtime: AgentRuntime, prompt: str | Sequence[InputItem], history: Sequence[InputItem]) -> None:
        if not isinstance(prompt, Sequence):
            raise InvalidInput(f"a prompt is text, or items as the SDK takes them, not a {type(prompt).__name__}")
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        self.output: Any = None
        self._runtime = runtime
        self._items: list[InputItem] = [*history, *asked]
        self._result: Any = None
        self._telling = StreamEventMapper(runtime.ctx.conversation_id, runtime.agent.name)
        self._injection = BusInjection(runtime.ctx, self._tell, self._caught_up)
        self._events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"stream of {runtime.ctx.agent_id}")
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))

    @property
    def history(self) -> list[InputItem]:
        return self._injection.applied(self._items)

    def __aiter__(self) -> Streamer:
        return self

    async def __anext__(self) -> StreamEvent:
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # a second reader gets the same answer
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """Stop the run if it is under way, and give back the messages that no answer has seen."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._injection.roll_back()

    def check(self) -> None:
        """Raise what the run has failed with."""
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None:
            raise error

    async def _run(self) -> None:
        try:
            with translate_sdk_errors():
                await self._rounds()
        finally:
            await self._runtime.provider.aclose()

    async def _rounds(self) -> None:
        """Run the SDK, and again while messages came too late for the answer that was to be the last."""
        turns = self._runtime.max_turns
        while True:
            result = await self._round(turns)
            self._items = result.to_input_list()
            turns -= len(result.raw_responses)
            final, usage = await final_output(result), usage_of_run(result)
            if turns < 1 or not self._injection.pending():
                break
            self._tell(self._telling.superseded(final, usage))
        self.output = final
        self._tell(self._telling.output(final, usage))

    async def _round(self, turns: int) -> Any:
        runtime, injection = self._runtime, self._injection
        agent = WatchedAgents(runtime.provider, injection.commit, self._caught_up).copy_of(runtime.agent)
        config = run_config(self._telling.note_failure, runtime.provider)
        result = self._result = SDKRunner.run_streamed(
            agent,
            input=cast(Any, self._items),
            context=runtime.ctx,
            max_turns=turns,
            run_config=replace(config, call_model_input_filter=injection),
        )
        async with followed(result) as events:
            async for event in events:
                for told in self._telling.hear(event):
                    self._tell(told)
        check_ended(result)
        injection.commit()
        return result

    def _tell(self, event: BaseStreamEvent) -> None:
        self._events.put_nowait(StreamEvent(self._runtime.ctx.agent_id, self._telling.agent_name, event))

    async def _caught_up(self) -> None:
        """Wait until all events that the SDK has queued so far are emitted. Only its own queue knows."""
        queue = getattr(self._result, "_event_queue", None)
        if isinstance(queue, asyncio.Queue):
            await queue.join()
