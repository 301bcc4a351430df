"""What one more turn costs a worker in a conversation that has many turns already."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from agents import Agent, RunConfig, Runner
from agents.items import TResponseStreamEvent

from bench.support.history import LOOK_AGAIN_S
from bench.support.report import SENTENCE, envelope
from bench.support.worker.sdk_runs import Items, ScriptedReplies, answer_of, look_up
from magent2.bus.base import EngineBase
from magent2.bus.operations import Operation
from magent2.bus.records import ClaimResult, Page, Record
from magent2.bus.watch import Watch
from magent2.models.envelope import MessageEnvelope
from magent2.runner.demo.script import Line, ScriptedCall, ScriptedText
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.store import SessionStore
from magent2.worker.service import WorkerService

R = TypeVar("R")

LONG, SHORT = "long", "short"  # conversations
WORDS = 40  # of an answer, so as many tokens


class CountedBus(EngineBase):
    """A bus that counts the records which are read from it."""

    def __init__(self, engine: EngineBase) -> None:
        self._engine = engine
        self.records = 0
        self.bytes = 0

    def call(self, operation: Operation[R]) -> R:
        return self._counted(self._engine.call(operation))

    async def acall(self, operation: Operation[R]) -> R:
        return self._counted(await self._engine.acall(operation))

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        return self._counted(await self._engine.next_page(watch, topic, cursor))

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return self._engine.watch(topics)

    def close(self) -> None:
        self._engine.close()

    async def aclose(self) -> None:
        await self._engine.aclose()

    def _counted(self, result: R) -> R:
        records: tuple[Record, ...] = ()
        if isinstance(result, Page):
            records = result.records
        elif isinstance(result, ClaimResult):
            records = tuple(mail for lane in result.lanes for mail in lane.mail)
        elif isinstance(result, Record):
            records = (result,)
        self.records += len(records)
        self.bytes += sum(record.size_bytes for record in records)
        return result


class RememberedRequest(ScriptedReplies):
    """A model that calls the tool, then answers. It remembers the first request of the last run."""

    def __init__(self) -> None:
        super().__init__(self._next_line)
        self.first: Items = ()

    @staticmethod
    def _next_line(items: Items) -> Line:
        if items[-1].get("type") == "function_call_output":
            return ScriptedText(answer_of(WORDS))
        return (ScriptedCall("look_up", {"offer": 2}),)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002  the SDK's name for it
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        if isinstance(input, list) and input[-1].get("type") != "function_call_output":
            self.first = list(input)
        async for event in super().stream_response(system_instructions, input, *rest, **options):
            yield event


def assistant(name: str, model: RememberedRequest) -> Agent[Any]:
    """An agent that calls its tool once in every turn of the conversation."""
    return Agent(name=name, model=model, tools=[look_up])


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn has cost. Milliseconds are processor time."""

    ms: float  # of the worker
    server_ms: float  # of the store, if it is a process of its own
    records: int  # read from the log
    read_bytes: int
    items: int  # of its first request
    sdk_ms: float = 0.0  # of the SDK alone, for the same requests

    @property
    def added_ms(self) -> float:
        """What the worker adds to the SDK."""
        return self.ms - self.sdk_ms


@dataclass(slots=True)
class ConversationTurns:
    """Conversations of an agent of the SDK, one turn after another."""

    bus: CountedBus
    agent: str
    model: RememberedRequest
    runner: OpenAIAgentsRunner
    server_s: Callable[[], float]  # processor time of the store
    turns: Counter[str] = field(default_factory=Counter)  # by conversation

    @classmethod
    def open(cls, engine: EngineBase, agent: str, server_s: Callable[[], float]) -> ConversationTurns:
        model = RememberedRequest()
        return cls(CountedBus(engine), agent, model, OpenAIAgentsRunner(assistant(agent, model)), server_s)

    async def have_turns(self, conversation: str, turns: int) -> None:
        """Have turns until the conversation has this many."""
        async with self._worker() as service:
            while self.turns[conversation] < turns:
                await self._have_turn(service, conversation)

    async def measure(self, turns: int, samples: int) -> list[Turn]:
        """Measure turns of conversations that have had about so many: at most a tenth more.

        Each is followed by the same run of the SDK alone.
        """
        found: list[Turn] = []
        while len(found) < samples:
            conversation = LONG if turns > samples * 10 else f"{SHORT}-{turns}-{len(found)}"
            await self.have_turns(conversation, turns - 1)
            async with self._worker() as service:
                await self._have_turn(service, conversation)  # reads the history
                for _ in range(min(samples - len(found), max(1, turns // 10))):
                    turn = await self._measured_turn(service, conversation)
                    found.append(replace(turn, sdk_ms=await self._sdk_ms(self.model.first)))
        return found

    async def measure_cold(self, turns: int, samples: int) -> list[Turn]:
        """Measure the first turn of a new worker in a conversation that has had so many."""
        conversation, found = LONG if turns > samples * 10 else f"cold-{turns}", []
        await self.have_turns(conversation, turns)
        for _ in range(samples):
            async with self._worker() as service:
                await self._have_turn(service, SHORT)  # starts everything but the history
                found.append(await self._measured_turn(service, conversation))
        return found

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[WorkerService]:
        service = WorkerService(self.bus, {self.agent: self.runner})
        serving = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            await service.drain()
            await serving

    async def _have_turn(self, service: WorkerService, conversation: str) -> None:
        """Send a message as the gateway does, and wait until its run has ended."""
        asked = {**envelope(conversation, f"agent:{self.agent}"), "content": SENTENCE}
        wanted = service.outcomes.total() + 1
        await SessionStore(self.bus).post(MessageEnvelope.model_validate(asked))
        while service.outcomes.total() < wanted:
            await asyncio.sleep(LOOK_AGAIN_S)
        self.turns[conversation] += 1

    async def _measured_turn(self, service: WorkerService, conversation: str) -> Turn:
        gc.collect()
        bus = self.bus
        records, read_bytes, server_s = bus.records, bus.bytes, self.server_s()
        begun = time.process_time()
        await self._have_turn(service, conversation)
        ms = (time.process_time() - begun) * 1e3
        server_ms = (self.server_s() - server_s) * 1e3
        return Turn(ms, server_ms, bus.records - records, bus.bytes - read_bytes, len(self.model.first))

    async def _sdk_ms(self, request: Items) -> float:
        """The same run by the SDK alone, without a log."""
        agent, config = assistant(self.agent, self.model), RunConfig(tracing_disabled=True)
        gc.collect()
        begun = time.process_time()
        result = Runner.run_streamed(agent, input=cast(Any, list(request)), run_config=config)
        async for _ in result.stream_events():
            pass
        return (time.process_time() - begun) * 1e3
