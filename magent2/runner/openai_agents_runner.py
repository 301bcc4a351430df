"""The runner on the OpenAI Agents SDK."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias

from agents import Runner as SDKRunner

from magent2.errors import InvalidInput
from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.runner.build import LoopProvider, build_agent, run_config
from magent2.runner.config import RunnerConfig
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import EventMapper, MappedHandoff
from magent2.runner.journal.run import JournalledRun
from magent2.runner.memory import MemorySession
from magent2.runner.run_stream import RunStream
from magent2.runner.sdk_errors import translate_sdk_errors
from magent2.runner.sdk_result import accepted, check_ended, final_output, followed, usage_of_run
from magent2.runner.sync_stream import iterate
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.monty import LoopSandbox

SESSION_LIMIT = 256

StreamedEvent: TypeAlias = TokenEvent | ToolStepEvent | OutputEvent


class OpenAIAgentsRunner:
    """Answers envelopes with an SDK agent: the one that is given, or the one that a configuration describes.

    `stream_run` is the v1 runner: it remembers the last `session_limit` conversations in this process.
    `astream_run` is what a worker uses: it remembers what the log does, and is journalled; the model is shown the last
    `history_max` runs of the conversation. Either gives up a run that asks the model more than `max_turns` times.
    `sandbox` is where blocks of the agent run: one that works on every loop, and is closed with each.
    A run that ends without an error has an output. A model that fails is raised to the caller: as `ModelUnavailable`
    what may go better next time, as `ModelError` all else (a refusal, too many turns, a bad request).
    """

    takes_steers = True

    def __init__(
        self,
        agent: Any = None,
        *,
        config: RunnerConfig | None = None,
        session_limit: int = SESSION_LIMIT,
        history_max: int | None = None,
        max_turns: int | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        if (agent is None) == (config is None):
            raise InvalidInput("give OpenAIAgentsRunner either an agent or a config")
        if session_limit < 1:
            raise InvalidInput(f"session_limit must be at least 1, not {session_limit}")
        if history_max is not None and history_max < 0:
            raise InvalidInput(f"history_max must be at least 0, not {history_max}")
        if max_turns is not None and max_turns < 1:
            raise InvalidInput(f"max_turns must be at least 1, not {max_turns}")
        self._sandbox = sandbox or LoopSandbox()
        self._agent = build_agent(config, self._sandbox) if config is not None else agent
        self._provider = LoopProvider(config.api_key, config.base_url) if config is not None else LoopProvider()
        chosen = config or RunnerConfig()
        self._history_max = chosen.history_max if history_max is None else history_max
        self._max_turns = chosen.max_turns if max_turns is None else max_turns
        self._session_limit = session_limit
        self._sessions: OrderedDict[str, MemorySession] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[StreamedEvent]:
        """The events of a run, from a thread that lives as long as the iterator."""
        return iterate(lambda: self._run_in_memory(envelope))

    async def _run_in_memory(self, envelope: MessageEnvelope) -> AsyncGenerator[StreamedEvent, None]:
        """A run on the conversation's session here. One that does not end leaves no trace in it."""
        session = self._get_session(envelope.conversation_id)
        before = session.snapshot()
        context = {"conversation_id": envelope.conversation_id, "agent": getattr(self._agent, "name", None)}
        ended = False
        try:
            async with aclosing(self._stream(envelope, session=session, context=context)) as events:
                async for event in events:
                    ended = ended or isinstance(event, OutputEvent)
                    if not isinstance(event, MappedHandoff):
                        yield event
        finally:
            if not ended:
                session.restore(before)
            await self.leave_loop()  # it ends with the run

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> RunStream:
        """The events of a run that another worker can take over at any moment; on the caller's loop."""
        run = JournalledRun(context, self._agent, self._provider, SDKRunner.run_streamed, self._max_turns)
        return run.stream(self._history_max)

    async def leave_loop(self) -> None:
        """Close what was opened on this loop: connections to models, processes of blocks."""
        await self._sandbox.aclose()
        await self._provider.aclose()

    async def _stream(
        self, envelope: MessageEnvelope, **options: Any
    ) -> AsyncGenerator[StreamedEvent | MappedHandoff, None]:
        """One run of the SDK, mapped. `options` go to the SDK as they are."""
        mapper = EventMapper(envelope.conversation_id)
        options |= {"run_config": run_config(mapper.note_failure, self._provider), "max_turns": self._max_turns}
        start = SDKRunner.run_streamed
        result = start(self._agent, input=envelope.content or "", **accepted(start, options))
        with translate_sdk_errors():
            async with followed(result) as events:
                async for event in events:
                    mapped = mapper.map(event)
                    if mapped is not None:
                        yield mapped
            check_ended(result)
        yield mapper.output(await final_output(result), usage_of_run(result))

    def _get_session(self, conversation_id: str) -> MemorySession:
        with self._lock:
            session = self._sessions.pop(conversation_id, None) or MemorySession(conversation_id)
            self._sessions[conversation_id] = session
            while len(self._sessions) > self._session_limit:
                self._sessions.popitem(last=False)
            return session
