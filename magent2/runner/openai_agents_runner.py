"""The runner on the OpenAI Agents SDK."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias

import orjson
from agents import Model, SessionSettings, TResponseInputItem
from agents import Runner as SDKRunner

from magent2.errors import InvalidInput, OutputMismatch
from magent2.fair_share import FairThreads
from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.models.files import text_with_attachments
from magent2.runner.build import build_agent
from magent2.runner.config import RunnerConfig
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import EventMapper, MappedHandoff
from magent2.runner.journal.agents import ANY_AGENT
from magent2.runner.journal.compaction import RequestPolicy, earlier_runs_of
from magent2.runner.journal.output import fault_of
from magent2.runner.journal.run import JournalledRun
from magent2.runner.providers.provider import LoopProvider, provider_of
from magent2.runner.run_stream import RunStream, iterate_in_thread
from magent2.runner.sdk_run import (
    StreamedRun,
    accepted_options,
    check_finished,
    final_output,
    follow_events,
    run_config,
    translate_sdk_errors,
    usage_of_run,
)
from magent2.sandbox.interface import Sandbox
from magent2.sandbox.monty import LoopSandbox
from magent2.tools.interface import TOOL_THREADS_MAX, TOOL_THREADS_PER_PRINCIPAL_MAX

SESSION_LIMIT = 256
SESSIONS_MAX_BYTES = 64 << 20  # of the items of all sessions together; the one in use may be larger

StreamedEvent: TypeAlias = TokenEvent | ToolStepEvent | OutputEvent


class MemorySession:
    """The items of one conversation, as an SDK session. They are lost when the process ends."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = None
        self._items: list[TResponseInputItem] = []
        self._sizes: list[int] = []  # in bytes, as JSON

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        if limit is None:
            return list(self._items)
        return self._items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        self._items.extend(items)
        self._sizes.extend(map(_size_bytes, items))

    async def pop_item(self) -> TResponseInputItem | None:
        if not self._items:
            return None
        self._sizes.pop()
        return self._items.pop()

    async def clear_session(self) -> None:
        self._items.clear()
        self._sizes.clear()

    def snapshot(self) -> tuple[TResponseInputItem, ...]:
        return tuple(self._items)

    def restore(self, snapshot: tuple[TResponseInputItem, ...]) -> None:
        """Drop what a failed run added, so that the next attempt starts where this one did."""
        self._items = list(snapshot)
        self._sizes = list(map(_size_bytes, snapshot))


def _size_bytes(item: TResponseInputItem) -> int:
    return len(orjson.dumps(item, default=str))


class OpenAIAgentsRunner:
    """Answers envelopes with an SDK agent: the given one, or the one that a configuration describes.

    `stream_run` is the v1 runner. It keeps the last `session_limit` conversations in this process, and no more than
    `sessions_max_bytes` of them.
    `astream_run` is for workers. It reads the conversation from the log and journals the run; the model gets at
    most the last `history_max` runs of the conversation, no more than `context_max` tokens, and a summary of the rest.
    Both fail a run that calls the model more than `max_turns` times.
    `provider` finds the models that agents name.
    `sandbox` runs the agent's Python blocks. It must work on every event loop; `leave_loop` closes it for one loop.
    A run that ends without an error has an output. Errors of the model are raised: `ModelUnavailable` if a retry can
    help, else `ModelError` (a refusal, too many turns, a bad request).
    """

    takes_steers = True

    def __init__(
        self,
        agent: Any = None,
        *,
        config: RunnerConfig | None = None,
        session_limit: int = SESSION_LIMIT,
        sessions_max_bytes: int = SESSIONS_MAX_BYTES,
        history_max: int | None = None,
        max_turns: int | None = None,
        sandbox: Sandbox | None = None,
        provider: LoopProvider | None = None,
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
        self._tool_threads = FairThreads(TOOL_THREADS_MAX, TOOL_THREADS_PER_PRINCIPAL_MAX)
        self._agent = build_agent(config, self._sandbox) if config is not None else agent
        self._provider = provider or (provider_of(config) if config is not None else LoopProvider())
        chosen = config or RunnerConfig()
        self._history_max = chosen.history_max if history_max is None else history_max
        self.context_max = chosen.context_max  # tokens of a request; by default what its model takes
        self.summary_model: Model | str | None = chosen.summary_model
        self._max_turns = chosen.max_turns if max_turns is None else max_turns
        self._session_limit = session_limit
        self._sessions_max_bytes = sessions_max_bytes
        self._sessions: OrderedDict[str, MemorySession] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    @property
    def history_max(self) -> int | None:
        """How many earlier runs of a conversation the model gets; no limit by default."""
        return self._history_max

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[StreamedEvent]:
        """Yield the events of a run. It runs in a thread that lives as long as the iterator."""
        return iterate_in_thread(lambda: self._run_in_memory(envelope))

    async def _run_in_memory(self, envelope: MessageEnvelope) -> AsyncGenerator[StreamedEvent, None]:
        """Run on the conversation's session in this process. A run that fails leaves the session unchanged."""
        session = self._get_session(envelope.conversation_id)
        before = session.snapshot()
        context = {"conversation_id": envelope.conversation_id, "agent": getattr(self._agent, "name", None)}
        ended = False
        try:
            async with aclosing(self._stream(envelope, session, context)) as events:
                async for event in events:
                    ended = ended or isinstance(event, OutputEvent)
                    if not isinstance(event, MappedHandoff):
                        yield event
        finally:
            if not ended:
                session.restore(before)
            await self.leave_loop()  # the loop ends with the run

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> RunStream:
        """The events of a journalled run on the caller's loop. Another worker can take the run over at any time."""
        limits = RequestPolicy(
            context_max=self.context_max, summary_model=self.summary_model, runs_max=self._history_max
        )
        run = JournalledRun(
            context,
            self._agent,
            self._provider,
            SDKRunner.run_streamed,
            self._max_turns,
            self._tool_threads,
            contexts={ANY_AGENT: limits},
        )
        return run.stream(earlier_runs_of(self._history_max))

    async def leave_loop(self) -> None:
        """Close what was opened on this loop: connections to models and sandbox processes."""
        await self._sandbox.aclose()
        await self._provider.aclose()

    async def _stream(
        self, envelope: MessageEnvelope, session: MemorySession, context: object
    ) -> AsyncGenerator[StreamedEvent | MappedHandoff, None]:
        """Run the SDK once and map its events."""
        mapper = EventMapper(envelope.conversation_id)
        options = {
            "session": session,
            "context": context,
            "run_config": run_config(mapper.note_failure, self._provider),
            "max_turns": self._max_turns,
        }
        start: Callable[..., StreamedRun[object]] = SDKRunner.run_streamed
        result = start(
            self._agent,
            input=text_with_attachments(envelope.content or "", envelope.metadata),
            **accepted_options(start, options),
        )
        with translate_sdk_errors():
            async with follow_events(result) as events:
                async for event in events:
                    mapped = mapper.map(event)
                    if mapped is not None:
                        yield mapped
            check_finished(result)
        output = await final_output(result)
        fault = fault_of(getattr(result, "last_agent", None), output)
        if fault is not None:
            raise OutputMismatch(f"the answer does not match its schema: {fault}")
        yield mapper.output(output, usage_of_run(result))

    def _get_session(self, conversation_id: str) -> MemorySession:
        with self._lock:
            session = self._sessions.pop(conversation_id, None) or MemorySession(conversation_id)
            self._sessions[conversation_id] = session
            size = sum(kept.size_bytes for kept in self._sessions.values())
            while len(self._sessions) > self._session_limit or (
                size > self._sessions_max_bytes and len(self._sessions) > 1
            ):
                _, oldest = self._sessions.popitem(last=False)
                size -= oldest.size_bytes
            return session
