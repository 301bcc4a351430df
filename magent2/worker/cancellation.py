"""Ends the work of a run from outside: once, for one reason, also inside a model call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, TypeAlias

from magent2.worker.lane_plan import StopCommand

log = logging.getLogger(__name__)

CLEAN_UP_MAX_S = 10.0  # what a runner may take to end once it is cancelled; then it is cancelled again


class InterruptReason(Enum):
    GIVE_BACK = "worker is draining"
    LOST = "the lane has another owner"
    OVERDUE = "the run took too long"


CancellationReason: TypeAlias = StopCommand | InterruptReason


class RunCancellation:
    """Cancels the task that does the work, and turns that cancellation, and no other, into an ordinary end.

    The work is not given a task of its own: what it has queued by its end, and what ends it, can then be one append.
    """

    def __init__(self) -> None:
        self.reason: CancellationReason | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._over = False
        self._after_turn: StopCommand | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def cancel(self, reason: CancellationReason) -> None:
        """End the work. The first reason counts; work that has ended cannot be ended."""
        if self.reason is None and not self._over:
            self.reason = reason
            self._cancel()

    def apply(self, stop_request: StopCommand | None) -> None:
        """What commands ask for: stop, stop in a while, or go on after all."""
        self._after_turn = stop_request if stop_request is not None and stop_request.after_turn else None
        if stop_request is not None and stop_request.is_now:
            self.cancel(stop_request)
        elif stop_request is not None and stop_request.in_s:
            self._set_timer("grace", stop_request.in_s, lambda: self.cancel(stop_request))
        elif "grace" in self._timers:
            self._timers.pop("grace").cancel()

    async def between_turns(self) -> None:
        """A point between turns where a run may be stopped. A stopped run does not return from it."""
        if self._after_turn is not None:
            self.cancel(self._after_turn)
            await asyncio.get_running_loop().create_future()

    async def drive(self, work: Coroutine[Any, Any, None], max_s: float) -> bool:
        """Do the work; whether it ended by itself. What it raises is raised."""
        if self._is_cancelled():
            work.close()
            return False
        task = self._task = asyncio.current_task()
        assert task is not None  # noqa: S101  for the type checker: coroutines run in tasks
        before = task.cancelling()
        self._set_timer("limit", max_s, lambda: self.cancel(InterruptReason.OVERDUE))
        try:
            await work
        except asyncio.CancelledError as error:
            if task.cancelling() - self._cancels > before:
                raise  # cancelled from outside: the whole task ends
            if not self._is_cancelled():
                raise RuntimeError("the run was cancelled from inside") from error
        except Exception as error:
            if not self._is_cancelled():
                raise
            log.warning("a run failed while it was being ended", exc_info=error)
        finally:
            self._end(task)
        return not self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self.reason is not None

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._over = True
        for timer in self._timers.values():
            timer.cancel()
        for _ in range(self._cancels):
            task.uncancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._cancels += 1
            self._set_timer("clean up", CLEAN_UP_MAX_S, self._cancel_again)

    def _cancel_again(self) -> None:
        log.error("a runner did not end when it was cancelled", extra={"waited_s": CLEAN_UP_MAX_S})
        self._cancel()

    def _set_timer(self, name: str, delay_s: float, act: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, act)
