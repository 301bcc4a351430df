"""Places that several principals share: threads for synchronous code, and slots on an event loop.

Each principal holds at most its share of the places. Principals that wait for a place take turns, so one of them cannot
make the others wait behind all of its own work.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

IDLE_THREAD_MAX_S = 10.0  # a thread without work ends after this time


class FairQueue(Generic[T]):
    """Items that wait for one of `size` places. A principal holds at most `share` of them. Not thread-safe.

    `take` serves the principals that wait in turn, and the items of one principal in order. It skips at most
    `size / share` principals that hold their whole share.
    """

    def __init__(self, size: int, share: int) -> None:
        self.size = size
        self.share = share
        self.busy = 0
        self.waiting = 0
        self._held: Counter[str | None] = Counter()
        self._waiting: OrderedDict[str | None, deque[T]] = OrderedDict()  # the principal whose turn it is comes first

    def put(self, principal: str | None, item: T) -> None:
        self._waiting.setdefault(principal, deque()).append(item)
        self.waiting += 1

    def take(self) -> tuple[str | None, T] | None:
        """Take the next item and occupy a place for it. `None` if no place is free, or no item may have one."""
        if self.busy >= self.size:
            return None
        for principal, items in self._waiting.items():
            if self._held[principal] < self.share:
                item = items.popleft()
                self._waiting.move_to_end(principal)
                if not items:
                    del self._waiting[principal]
                self._held[principal] += 1
                self.waiting -= 1
                self.busy += 1
                return principal, item
        return None

    def release(self, principal: str | None) -> None:
        """Free a place that the principal holds."""
        self.busy -= 1
        self._held[principal] -= 1
        if not self._held[principal]:
            del self._held[principal]

    def remove(self, principal: str | None, item: T) -> None:
        """Remove an item that no longer waits for a place. Does nothing if it was taken."""
        items = self._waiting.get(principal, deque())
        if item in items:
            items.remove(item)
            self.waiting -= 1
            if not items:
                del self._waiting[principal]


class FairSlots:
    """A semaphore for one event loop whose slots are shared fairly."""

    def __init__(self, size: int, share: int) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(size, share)

    @property
    def busy(self) -> int:
        return self._queue.busy

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def acquire(self, principal: str | None) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(principal, granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._queue.remove(principal, granted)
            else:  # the slot was granted before the cancellation arrived
                self.release(principal)
            raise

    def release(self, principal: str | None) -> None:
        self._queue.release(principal)
        self._grant()

    def _grant(self) -> None:
        while (taken := self._queue.take()) is not None:
            principal, granted = taken
            if granted.cancelled():  # its task has not run since, so it is still in the queue
                self._queue.release(principal)
            else:
                granted.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Work for a thread, in the context of its caller."""

    future: Future[Any]
    work: Callable[[], object]

    def run(self) -> None:
        """Run the work, and set the result or the error of the future. Raises nothing."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except StopIteration as error:  # a future does not accept it, and its caller would wait for ever
            self.future.set_exception(_as_error(error))
        except Exception as error:  # noqa: BLE001  the caller gets the error
            self.future.set_exception(error)
        except BaseException as error:  # noqa: BLE001  SystemExit of a tool must not end the caller's event loop
            self.future.set_exception(_as_error(error))
        else:
            self.future.set_result(result)


_Taken: TypeAlias = tuple[str | None, _Job]
_Inbox: TypeAlias = "queue.SimpleQueue[_Taken]"  # of one thread: its next job


def _as_error(raised: BaseException) -> RuntimeError:
    error = RuntimeError(f"the function raised {type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


class FairThreads:
    """At most `size` threads for synchronous code, shared fairly. Usable from any thread and any event loop.

    `busy` are the threads that run code, `waiting` the calls that wait for one.

    Threads start when they are needed and end when they are idle, so there is nothing to close. They do not keep the
    process alive. A thread cannot be interrupted: a call that is cancelled while it runs keeps its place until its code
    returns. A call that is cancelled while it waits leaves the queue.
    """

    def __init__(self, size: int, share: int | None = None, name: str = "magent2-tool") -> None:
        self._queue: FairQueue[_Job] = FairQueue(size, size if share is None else share)
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []

    @property
    def busy(self) -> int:
        return self._queue.busy

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def run(self, principal: str | None, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on a thread, in the context of the caller."""
        return await asyncio.wrap_future(self.submit(principal, function, *args, **kwargs))

    def submit(
        self, principal: str | None, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Queue a call and return its future."""
        future: Future[R] = Future()
        job = _Job(future, partial(contextvars.copy_context().run, function, *args, **kwargs))
        with self._lock:
            self._queue.put(principal, job)
            self._start_next()
        future.add_done_callback(lambda ended: self._forget(principal, job) if ended.cancelled() else None)
        return future

    def _forget(self, principal: str | None, job: _Job) -> None:
        with self._lock:
            self._queue.remove(principal, job)

    def _start_next(self) -> None:
        """Give the next job to an idle thread, or to a new one.

        Every thread is idle or runs a job that has a place, so there are at most `size` of them.
        """
        taken = self._queue.take()
        if taken is None:
            return
        if self._idle:
            self._idle.pop().put(taken)
            return
        inbox: _Inbox = queue.SimpleQueue()
        inbox.put(taken)
        try:
            threading.Thread(target=self._work, args=(inbox,), name=self._name, daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            principal, job = taken
            self._queue.release(principal)
            job.future.set_exception(error)

    def _work(self, inbox: _Inbox) -> None:
        """Run jobs until there is none for `IDLE_THREAD_MAX_S`."""
        taken: _Taken | None = inbox.get()
        while taken is not None:
            taken[1].run()
            with self._lock:
                self._queue.release(taken[0])
                taken = self._queue.take()
                if taken is None:
                    self._idle.append(inbox)
            if taken is None:
                taken = self._wait(inbox)

    def _wait(self, inbox: _Inbox) -> _Taken | None:
        try:
            return inbox.get(timeout=IDLE_THREAD_MAX_S)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # the job came after the time was over
