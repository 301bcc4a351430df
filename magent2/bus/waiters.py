"""Callers that wait for operations which a thread of the engine runs: on other threads, and on event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from magent2.bus.operations import AnyOperation

log = logging.getLogger(__name__)


class ThreadWaiter:
    """Hands one outcome to a blocked thread. A bare lock is faster than an Event or a concurrent Future."""

    __slots__ = ("_finished", "_lock", "outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._finished = False
        self.outcome: object = None

    def done(self) -> bool:
        return self._finished

    def finish(self, outcome: object) -> None:
        self.outcome = outcome
        self._finished = True
        self._lock.release()

    def wait(self) -> object:
        self._lock.acquire()
        return self.outcome


Waiter: TypeAlias = ThreadWaiter | asyncio.Future[object]
QueuedOperation: TypeAlias = tuple[AnyOperation, Waiter]


class LoopBatches:
    """Collects the operations that the tasks of an event loop submit during one iteration of it.

    Submitted at once, the first one would wake the thread that runs it, which would then compete with the loop for the
    GIL while the other tasks still make their operations. The group would be small and the loop slow.
    """

    def __init__(self, submit: Callable[[Sequence[QueuedOperation]], None]) -> None:
        self._submit = submit
        self._batches: dict[asyncio.AbstractEventLoop, list[QueuedOperation]] = {}

    def submit(self, operation: AnyOperation, loop: asyncio.AbstractEventLoop) -> asyncio.Future[object]:
        """Submit an operation at the end of this iteration of the event loop."""
        future: asyncio.Future[object] = loop.create_future()
        batch = self._batches.get(loop)
        if batch is None:
            self._batches[loop] = [(operation, future)]
            loop.call_soon(self._flush, loop)
        else:
            batch.append((operation, future))
        return future

    def flush(self) -> None:
        """Submit now what the event loop of this thread has collected."""
        with suppress(RuntimeError):  # raised when no event loop runs on this thread
            self._flush(asyncio.get_running_loop())

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._batches.pop(loop, None)
        if batch is not None:
            self._submit(batch)


def finish_all(waiters: Sequence[Waiter], outcomes: Sequence[object]) -> None:
    """Hand each outcome to its waiter. Each event loop is woken once, for all of its waiters."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[object], object]]] = {}
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if isinstance(waiter, ThreadWaiter):
            waiter.finish(outcome)
        else:
            loops.setdefault(waiter.get_loop(), []).append((waiter, outcome))
    for loop, pairs in loops.items():
        try:
            loop.call_soon_threadsafe(_finish_futures, pairs)
        except RuntimeError:  # the loop was closed, and its tasks with it
            log.info("event loop was closed before its operations ended", extra={"operations": len(pairs)})


def _finish_futures(pairs: list[tuple[asyncio.Future[object], object]]) -> None:
    for future, outcome in pairs:
        if future.done():  # cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
