"""Runners for tests. Like real ones they stream, wait, fail, and end when they are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from magent2.models.envelope import BaseStreamEvent, MessageEnvelope, OutputEvent, TokenEvent
from magent2.runner.context import RunContext

Event = BaseStreamEvent | Mapping[str, Any]


class SyncRunner:
    """A runner of contract v1: nothing but `stream_run`."""

    def __init__(self, script: Callable[[MessageEnvelope], Iterable[Event]]) -> None:
        self._script = script
        self.asked: list[str | None] = []

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[Event]:
        self.asked.append(envelope.content)
        yield from self._script(envelope)


class FailingRunner:
    """Raises before its first event."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise self._error


class AsyncRunner:
    """A runner that is given the context of its run."""

    def __init__(self, script: Callable[[MessageEnvelope, RunContext], AsyncIterator[Event]]) -> None:
        self._script = script
        self.contexts: list[RunContext] = []

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        self.contexts.append(context)
        async for event in self._script(envelope, context):
            yield event


class GatedRunner:
    """Yields one token, then waits at a gate as for a model; records runs that began, ended and were cancelled."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        text = envelope.content or ""
        self.begun.append(text)
        yield token(envelope, text)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        self.ended.append(text)
        yield output(envelope, text)


class GatedThreadRunner:
    """A `GatedRunner` that blocks a thread."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.closed = threading.Event()

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[Event]:
        try:
            yield token(envelope, "one")
            self.gate.wait()
            yield token(envelope, "two")
            yield output(envelope, "one two")
        finally:
            self.closed.set()


def token(envelope: MessageEnvelope, text: str, index: int = 0) -> TokenEvent:
    return TokenEvent(conversation_id=envelope.conversation_id, text=text, index=index)


def output(envelope: MessageEnvelope, text: str, **fields: Any) -> OutputEvent:
    return OutputEvent(conversation_id=envelope.conversation_id, text=text, **fields)
