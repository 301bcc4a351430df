"""How the events of a run reach their reader: written to a sink, iterated on a loop, or iterated in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from magent2.background import log_error
from magent2.models.envelope import BaseStreamEvent
from magent2.models.json_types import JsonObject

EVENTS_AHEAD_MAX = 64  # events that a run may be ahead of a reader that iterates on its loop
QUEUE_MAX = 256  # events that a run may be ahead of a reader in another thread, or a runner's thread of the worker
CLOSE_TIMEOUT_S = 10.0  # how long a run may take to clean up after it was cancelled
THREAD_NAME = "magent2-run"

Event: TypeAlias = BaseStreamEvent | Mapping[str, Any]

ItemT = TypeVar("ItemT")

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Takes the events of one run, in order. Drops nothing: a run that is too far ahead waits."""

    def offer(self, event: Event) -> bool:
        """Take the event if there is room for it. Return whether it was taken."""
        ...

    def offer_token(self, token: JsonObject) -> bool:
        """`offer` for a token that has all its fields as JSON already. The sink keeps the dict."""
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
    iterate. The run is then up to `EVENTS_AHEAD_MAX` events ahead of the caller, and a commit waits until the caller is
    done with every event before it: what the caller appends to a log is there before that commit.
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
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        task = asyncio.ensure_future(self._run(_QueueSink(events)))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
                events.task_done()
            task.result()
        finally:
            await end_task(task)


class _QueueSink:
    """Takes events for a reader that iterates."""

    def __init__(self, events: asyncio.Queue[Event | None]) -> None:
        self._queue = events

    def offer(self, event: Event) -> bool:
        if self._queue.qsize() >= EVENTS_AHEAD_MAX:
            return False
        self._queue.put_nowait(event)
        return True

    offer_token = offer

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
        log_error("a run failed while it was being ended", error, log)


# --- From a loop to a thread: the v1 interface of a runner is a plain iterator.


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    error: BaseException | None


def iterate_in_thread(
    open_items: Callable[[], AsyncGenerator[ItemT, None]], queue_max: int = QUEUE_MAX
) -> Iterator[ItemT]:
    """Yield the items of an asynchronous generator, which runs on a loop in a thread of its own.

    The thread starts with the first `next`. The generator is at most `queue_max` items ahead of the reader; then it
    waits. An error of the generator is raised here, after all items. Closing the iterator ends generator and thread.
    """
    producer = _Producer(open_items, queue_max)
    producer.start()
    try:
        while True:
            item = producer.take()
            if not isinstance(item, _StreamEnd):
                yield item
            elif isinstance(item.error, asyncio.CancelledError):
                # The reader was not cancelled. A CancelledError would tell its own loop that it was.
                raise RuntimeError("the run was cancelled from inside")
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        producer.stop()


class _Producer(Generic[ItemT]):
    """The thread, its loop, and the queue between it and the reader."""

    def __init__(self, open_items: Callable[[], AsyncGenerator[ItemT, None]], queue_max: int) -> None:
        self._open_items = open_items
        self._items: queue.SimpleQueue[ItemT | _StreamEnd] = queue.SimpleQueue()
        self._free = asyncio.Semaphore(queue_max)  # bounds the queue; used on the producer's loop only
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left
            self._loop.close()
            raise

    def take(self) -> ItemT | _StreamEnd:
        item = self._items.get()
        self._call(self._free.release)
        return item

    def stop(self) -> None:
        self._call(self._cancel)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("a run did not end after its reader had left", extra={"waited_s": CLOSE_TIMEOUT_S})

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function on the producer's loop. Do nothing if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _cancel(self) -> None:
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._drive())
        except asyncio.CancelledError as raised:
            error = raised if not self._stopping else None
        except BaseException as raised:  # noqa: BLE001  the reader gets every error
            error = raised
        if error is not None and self._stopping:
            log_error("a run failed while it was being stopped", error, log)
        self._items.put(_StreamEnd(error))

    async def _drive(self) -> None:
        if self._stopping:
            return
        self._task = asyncio.current_task()
        async with aclosing(self._open_items()) as items:
            async for item in items:
                await self._free.acquire()
                self._items.put(item)
