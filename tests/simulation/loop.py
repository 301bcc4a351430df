"""An event loop on which time is virtual and chance is seeded: the same seed is the same run, in no time at all."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

BEGIN_S = 1000.0
WALL_BEGIN_MS = 1_700_000_000_000


class NumberedTask(asyncio.Task[Any]):
    """A task that knows when it was made: the one order that no hash and no address decides."""

    number: int = 0


class Stuck(Exception):
    """Everybody waits, and nothing is left that could wake anybody."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Jumps to the next timer when nothing is ready, and runs what is ready in an order that the seed decides."""

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = BEGIN_S
        self._dice = random.Random(seed)
        self._selector = self  # asked once per turn of the loop, with the time until the next timer
        self._numbers = itertools.count(1)
        self.failures: list[dict[str, Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[NoReturn]:
        if timeout is None:
            raise Stuck("nothing is left to happen")
        self._now += timeout
        if len(self._ready) > 1:
            self._shuffle()
        return []

    def _shuffle(self) -> None:
        ready = sorted(self._ready, key=_number_of)
        self._dice.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None
    ) -> asyncio.Future[Any]:
        task = NumberedTask(work, loop=loop, context=context)
        task.number = next(self._numbers)
        return task

    def _process_events(self, events: list[NoReturn]) -> None:
        """There are no files to be ready."""

    def _write_to_self(self) -> None:
        """There are no threads to wake the loop."""


def _number_of(handle: asyncio.Handle) -> int:
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    return task.number if isinstance(task, NumberedTask) else 0


class LoopClock:
    """The loop's time, for an engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wall_begin_ms = WALL_BEGIN_MS

    def wall_ms(self) -> int:
        return self._wall_begin_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def jump_s(self, seconds: float) -> None:
        """Somebody sets the clock on the wall."""
        self._wall_begin_ms += round(seconds * 1000)


def run_virtually(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop that is closed then; who still waits there is cancelled first."""
    try:
        return loop.run_until_complete(work)
    finally:
        _send_home(loop)
        loop.close()


def _send_home(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=lambda task: getattr(task, "number", 0))
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
