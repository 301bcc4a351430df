"""Where a thread and a loop meet: an asynchronous generator, read as a plain iterator.

What crosses is items in order, then an end that carries the error, if there was one. The generator is never more than
`QUEUE_MAX` items ahead of its reader: it waits, nothing is dropped. Closing the iterator ends generator and thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

QUEUE_MAX = 256
THREAD_NAME = "magent2-run"
CLOSE_TIMEOUT_S = 10.0  # how long a generator may take to clean up after its reader has left

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    error: BaseException | None


def iterate(open_items: Callable[[], AsyncGenerator[T, None]], queue_max: int = QUEUE_MAX) -> Iterator[T]:
    """Run the generator in a thread of its own, from the first `next` to the end or to `close`."""
    producer = _Producer(open_items, queue_max)
    producer.start()
    try:
        while True:
            item = producer.take()
            if isinstance(item, _StreamEnd):
                if item.error is not None:
                    raise _outside(item.error)
                return
            yield item
    finally:
        producer.stop()


def _outside(error: BaseException) -> BaseException:
    """The error as the reader may see it: a cancellation inside must not look like the reader's own."""
    return RuntimeError("the run was cancelled from inside") if isinstance(error, asyncio.CancelledError) else error


class _Producer(Generic[T]):
    """The thread, its loop, and the queue between it and the reader."""

    def __init__(self, open_items: Callable[[], AsyncGenerator[T, None]], queue_max: int) -> None:
        self._open_items = open_items
        self._items: queue.SimpleQueue[T | _StreamEnd] = queue.SimpleQueue()
        self._free = asyncio.Semaphore(queue_max)  # of the producer's loop; the queue itself has no bound
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError:  # no thread to be had
            self._loop.close()
            raise

    def take(self) -> T | _StreamEnd:
        item = self._items.get()
        self._call(self._free.release)
        return item

    def stop(self) -> None:
        self._call(self._cancel)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("a run did not end after its reader had left", extra={"waited_s": CLOSE_TIMEOUT_S})

    def _call(self, function: Callable[[], None]) -> None:
        """Have the producer's loop call this; nothing to do when the loop has ended."""
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
        except BaseException as raised:  # noqa: BLE001  the reader gets it, whatever it is
            error = raised
        if error is not None and self._stopping:
            log.error("a run failed while it was being stopped", exc_info=error)
        self._items.put(_StreamEnd(error))

    async def _drive(self) -> None:
        if self._stopping:
            return
        self._task = asyncio.current_task()
        async with aclosing(self._open_items()) as items:
            async for item in items:
                await self._free.acquire()
                self._items.put(item)
