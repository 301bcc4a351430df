"""Background tasks: loops that an unexpected error must not end, and tasks whose error must not pass unnoticed.

`docs/architecture.md` lists every task and thread of the package, and who hears of its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from magent2.errors import Magent2Error
from magent2.failures import log_failure

log = logging.getLogger(__name__)

STEP_RETRY_FIRST_S, STEP_RETRY_MAX_S = 0.1, 5.0  # the pause doubles with every failure in a row


async def keep_running(
    name: str, step: Callable[[], Awaitable[object]], *, fatal: tuple[type[Exception], ...] = ()
) -> None:
    """Run `step` again and again until the task is cancelled.

    A step that raises is logged and run again after a pause. Only `fatal` errors are raised. So a step must be safe to
    repeat after it was interrupted anywhere.
    """
    pause_s = STEP_RETRY_FIRST_S
    while True:
        try:
            await step()
        except fatal:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the last handler
            raise_if_cancelled(error)
            log_error("a background task failed; it continues", error, task=name, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, STEP_RETRY_MAX_S)
        else:
            pause_s = STEP_RETRY_FIRST_S


def start_task(work: Coroutine[object, None, None], name: str, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start a task on which nothing waits. It is kept in `tasks` while it runs, and its error is logged."""

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_error("a background task failed", error, task=name)

    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(ended)
    return task


def raise_if_cancelled(error: BaseException) -> None:
    """Raise `error` if it is the cancellation of this task.

    Libraries also raise `CancelledError` when something of their own was cancelled. In a task that was not cancelled
    it is an error like any other: passed on, it would end the task as if that had been wanted.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
        raise error


def log_error(message: str, error: BaseException, logger: logging.Logger = log, /, **facts: object) -> None:
    """Log an error in one line with its cause, masked. The traceback is added at level debug."""
    level = logging.WARNING if isinstance(error, Magent2Error) else logging.ERROR
    log_failure(logger, level, message, error, facts, with_traceback=logger.isEnabledFor(logging.DEBUG))
