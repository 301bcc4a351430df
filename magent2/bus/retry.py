"""Retries: after a conflict with another writer, and while the bus is unavailable or full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation
from magent2.errors import (
    ConditionFailed,
    Magent2Error,
    SchemaTooNew,
    StorageCorrupt,
    StorageError,
    TransientError,
    UnsupportedServer,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

BUS_RETRY_FIRST_S, BUS_RETRY_MAX_S = 0.1, 5.0
CONFLICT_TRIES_MAX = 8  # attempts at a conditional append before the caller is told

PERMANENT_ERRORS = (StorageCorrupt, SchemaTooNew, UnsupportedServer)  # storage errors that do not go away by waiting


async def retry_on_conflict(attempt: Callable[[], Awaitable[R]], subject: str, advice: str = "try again") -> R:
    """Run `attempt` until no condition of its append fails, at most `CONFLICT_TRIES_MAX` times.

    `attempt` reads, decides and appends; each call starts from the log as it is then. Raises `ConditionFailed`, worded
    with `subject` and `advice`, when other writers were quicker every time.
    """
    for _ in range(CONFLICT_TRIES_MAX):
        try:
            return await attempt()
        except ConditionFailed:
            continue
    raise ConditionFailed(f"{subject} keeps changing; {advice}")


async def retry_while_unavailable(bus: Engine, operation: Operation[R], who: str) -> R:
    """Run an operation until the bus answers, however long that takes.

    Safe because running the same operation object twice has the effect of running it once. `who` is for the log.
    """
    return await retry_call(lambda: bus.acall(operation), who)


async def retry_call(ask: Callable[[], Awaitable[R]], who: str, *, unexpected: bool = False) -> R:
    """Call `ask` until the bus answers, however long it is unreachable, full or read-only.

    `ask` must be safe to repeat, for example by running the same operation object each time. `who` is for the log.
    With `unexpected`, it is also called again after an error that is no `Magent2Error`. That is for operations which
    must not be given up: after such an error it is unknown whether the bus has run them.
    """
    delay = BUS_RETRY_FIRST_S
    while True:
        try:
            return await ask()
        except PERMANENT_ERRORS:
            raise
        except (TransientError, StorageError) as error:
            _warn(who, error)
        except Magent2Error:
            raise
        except Exception as error:
            if not unexpected:
                raise
            _warn(who, error)
        await asyncio.sleep(delay)
        delay = min(delay * 2, BUS_RETRY_MAX_S)


def _warn(who: str, error: Exception) -> None:
    level = logging.WARNING if isinstance(error, TransientError) else logging.ERROR
    reason = str(error) if isinstance(error, Magent2Error) else repr(error)
    log.log(level, "waiting for the bus", extra={"who": who, "error": reason})
