"""Runs any runner on the worker's event loop.

A runner with `astream_run(envelope, context)` runs on the loop itself. A runner with only `stream_run(envelope)` is
iterated in a thread of its own. The thread passes its events through a bounded queue, then an end that carries the
error, if there was one. It is never more than `QUEUE_MAX` events ahead. A thread cannot be interrupted: once the reader
has left, the thread ends at its next event.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from magent2.background import log_error
from magent2.errors import InvalidInput
from magent2.models.envelope import BaseStreamEvent, MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.run_stream import QUEUE_MAX, Event, EventSink, RunStream

log = logging.getLogger(__name__)

THREAD_NAME = "magent2-stream-run"


class Runner(Protocol):
    """Turns an envelope into the events of a run: contract v1.

    It yields events in order; the last one is an `output`. A failed run raises; it does not just end.
    """

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]: ...


class AsyncRunner(Protocol):
    """A runner that gets the context of the run. There it records its progress and finds what was recorded before."""

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]: ...


def check_event(event: object) -> Event:
    if not isinstance(event, BaseStreamEvent | Mapping):
        raise InvalidInput(f"a runner must yield events or dicts, not {type(event).__name__}")
    return event


async def write_run(runner: Runner, envelope: MessageEnvelope, context: RunContext, sink: EventSink) -> None:
    """Run the runner and write every event of the run into the sink. Cancelling this ends the run.

    A journalled run writes its events itself, in one order with its commits. Any other runner yields them.
    """
    events = events_of(runner, envelope, context)
    if isinstance(events, RunStream):
        await events.write_to(sink)
        return
    async with aclosing(events):
        async for event in events:
            if not sink.offer(event):  # `write` works at any time, but costs two coroutines per token
                await sink.write(event)


def events_of(
    runner: Runner, envelope: MessageEnvelope, context: RunContext
) -> RunStream | AsyncGenerator[Event, None]:
    """Return everything that the runner yields. Closing it ends the runner."""
    if not _is_async(runner):
        return _events_of_thread(runner, envelope)
    events = runner.astream_run(envelope, context)
    return events if isinstance(events, RunStream | AsyncGenerator) else _closing(events)


async def _closing(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Yield the events of an iterator that is not a generator, and close it at the end if it has `aclose`."""
    try:
        async for event in events:
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def _is_async(runner: object) -> TypeGuard[AsyncRunner]:
    return hasattr(runner, "astream_run")


async def _events_of_thread(runner: Runner, envelope: MessageEnvelope) -> AsyncGenerator[Event, None]:
    queue = _ThreadQueue()
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(_iterate, runner, envelope, queue),
        name=THREAD_NAME,
        daemon=True,
    )
    thread.start()
    try:
        while not isinstance(item := await queue.take(), _ThreadEnd):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        queue.leave()


def _iterate(runner: Runner, envelope: MessageEnvelope, queue: _ThreadQueue) -> None:
    """Run in the thread: put every event into the queue, then the end. Errors reach the loop through the end."""
    error: Exception | None = None
    try:
        events = iter(runner.stream_run(envelope))
        for event in events:
            if not queue.put(event):
                close = getattr(events, "close", None)
                if close is not None:
                    close()
                return
    except Exception as raised:  # noqa: BLE001  raised again on the loop
        error = raised
    if not queue.put(_ThreadEnd(error)) and error is not None:
        log_error("a run failed after its reader had left", error, log)


@dataclass(frozen=True, slots=True)
class _ThreadEnd:
    error: Exception | None


class _ThreadQueue:
    """A bounded queue from one thread to one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Event | _ThreadEnd] = deque()
        self._has_items = asyncio.Event()
        self._room = threading.Semaphore(QUEUE_MAX)
        self._left = False

    def put(self, item: Event | _ThreadEnd) -> bool:
        """Called on the thread: queue an item, waiting for room. Return whether the reader is still there."""
        self._room.acquire()
        if self._left:
            self._room.release()
            return False
        self._items.append(item)
        try:
            self._loop.call_soon_threadsafe(self._has_items.set)
        except RuntimeError:  # the loop is closed, so the reader is gone
            return False
        return True

    async def take(self) -> Event | _ThreadEnd:
        while not self._items:
            self._has_items.clear()
            if not self._items:  # the thread may have put an item between the check and the clear
                await self._has_items.wait()
        self._room.release()
        return self._items.popleft()

    def leave(self) -> None:
        """Called on the loop: the reader is gone. A thread that waits for room is woken and finds out."""
        self._left = True
        self._room.release()
