"""An event loop with virtual time and seeded scheduling: the same seed gives the same run, without waiting."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEGIN_S = 1000.0
WALL_BEGIN_MS = 1_700_000_000_000


class NumberedTask(asyncio.Task[Any]):
    """A task with a creation number: an order that does not depend on hashes or addresses."""

    number: int = 0


class LoopStuck(Exception):
    """Every task waits, and no timer or callback is left that could wake one."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Jumps to the next timer when nothing is ready, and runs ready callbacks in an order that the seed decides.

    The loop takes half of the time of a simulation, so the frequent methods are simpler than those of asyncio.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = BEGIN_S
        self._rng = random.Random(seed)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._numbers = itertools.count(1)
        self.failures: list[dict[str, Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def _run_once(self) -> None:
        self._take_due()
        ready = list(self._ready)
        self._ready.clear()
        if len(ready) > 1:
            ready.sort(key=_number_of)
            self._rng.shuffle(ready)
        for handle in ready:
            if not handle._cancelled:
                handle._run()

    def _take_due(self) -> None:
        """Move due timers to the ready queue; if nothing is ready, advance the time to the next timer."""
        timers = self._timers
        while timers and (timers[0][2]._cancelled or timers[0][0] <= self._now or not self._ready):
            when, _, timer = heappop(timers)
            if not timer._cancelled:
                self._now = max(self._now, when)
                self._ready.append(timer)
        if not self._ready and not self._stopping:
            raise LoopStuck("every task waits and no timer is left")

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None
    ) -> asyncio.Future[Any]:
        task = NumberedTask(work, loop=loop, context=context)
        task.number = next(self._numbers)
        return task

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads that wake the loop."""


def _number_of(handle: asyncio.Handle) -> int:
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    return task.number if isinstance(task, NumberedTask) else 0


class LoopClock:
    """A clock for an engine that follows the time of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wall_begin_ms = WALL_BEGIN_MS

    def wall_ms(self) -> int:
        return self._wall_begin_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def jump_s(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_begin_ms += round(seconds * 1000)


def run_on_virtual_loop(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, cancel the remaining tasks, and close the loop."""
    try:
        return loop.run_until_complete(work)
    finally:
        _cancel_remaining(loop)
        loop.close()


def _cancel_remaining(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=lambda task: getattr(task, "number", 0))
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
