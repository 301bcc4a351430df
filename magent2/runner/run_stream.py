"""The two ways in which a journalled run hands over its events: written straight to a sink, or yielded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from magent2.models.envelope import BaseStreamEvent

AHEAD_MAX = 64  # events that a run may be ahead of a reader that iterates
CLOSE_TIMEOUT_S = 10.0  # how long a run may take to clean up after it was cancelled

Event: TypeAlias = BaseStreamEvent | Mapping[str, Any]

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Takes the events of one run, in order. Nothing is dropped: a run that is too far ahead waits."""

    def offer(self, event: Event) -> bool:
        """Take the event if there is room for it. Return whether it was taken."""
        ...

    async def write(self, event: Event) -> None:
        """Take the event, after waiting for room."""
        ...

    async def drain(self) -> None:
        """Return when records that are queued now come behind every event that was taken."""
        ...


class RunStream(AsyncIterator[Event]):
    """The events of a run that can write them itself.

    A worker calls `write_to`, so that events and commits meet in one queue, the one of the lane's writer. Other callers
    iterate. The run is then up to `AHEAD_MAX` events ahead of the caller, and a commit waits until the caller is done
    with every event before it: what the caller appends to a log is there before that commit.
    """

    def __init__(self, run: Callable[[EventSink], Awaitable[None]]) -> None:
        self._run = run
        self._events: AsyncGenerator[Event, None] | None = None

    async def write_to(self, sink: EventSink) -> None:
        """Run to the end. Cancelling this call cancels the run."""
        await self._run(sink)

    async def __anext__(self) -> Event:
        if self._events is None:
            self._events = self._iterate()
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the run, also in the middle of a model call."""
        if self._events is not None:
            await self._events.aclose()

    async def _iterate(self) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        task = asyncio.ensure_future(self._run(_QueueSink(queue)))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
                queue.task_done()
            task.result()
        finally:
            await end_task(task)


class _QueueSink:
    """Takes events for a reader that iterates."""

    def __init__(self, queue: asyncio.Queue[Event | None]) -> None:
        self._queue = queue

    def offer(self, event: Event) -> bool:
        if self._queue.qsize() >= AHEAD_MAX:
            return False
        self._queue.put_nowait(event)
        return True

    async def write(self, event: Event) -> None:
        while not self.offer(event):
            await self._queue.join()

    async def drain(self) -> None:
        await self._queue.join()


async def end_task(task: asyncio.Future[None]) -> None:
    """Cancel a task that still runs, wait for it, and log an error that nothing else would report."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
    if not task.done():
        log.error("a run did not end after it was cancelled", extra={"waited_s": CLOSE_TIMEOUT_S})
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a run failed while it was being ended", exc_info=error)
