"""What we ask of a streamed run of the SDK, in one place. Tolerant: another release may have less of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from magent2.errors import InvalidInput

WIND_UP_MAX_S = 5.0  # what the SDK may take to end a run that was cancelled


def accepted(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that this function takes, as a release of the SDK may know fewer of them."""
    names = _named(function)
    return {name: value for name, value in options.items() if names is None or name in names}


@lru_cache(maxsize=8)  # the SDK has few functions that start a run, and each starts many
def _named(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters of a function; nothing when it takes any."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


@asynccontextmanager
async def followed(result: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the events of a run. If the reader leaves early, the run is cancelled, so that no model calls are wasted.

    Without the cancel, closing the events would wait for the whole run.
    """
    events = result.stream_events()
    try:
        yield events
    except BaseException:
        cancel = getattr(result, "cancel", None)
        if cancel is not None:
            cancel()
        await _wound_up(result)
        raise
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


async def _wound_up(result: Any) -> None:
    """Wait for what was cancelled: connections to be closed, tools to hear of it."""
    task = getattr(result, "run_loop_task", None)
    if not isinstance(task, asyncio.Task):
        return
    if not task.done():
        await asyncio.wait({task}, timeout=WIND_UP_MAX_S)
    if task.done() and not task.cancelled():
        task.exception()  # it may have failed at the moment it was left: that need not be told to the loop


def check_ended(result: Any) -> None:
    """Raise what the stream has not: an error that came after its last event, or a run that waits for a person."""
    waiting = interruptions(result)
    if waiting:
        raise approval_unavailable(waiting)


def interruptions(result: Any) -> list[Any]:
    """The calls that wait for a person; raises an error that came after the last event."""
    error = getattr(result, "run_loop_exception", None)
    if isinstance(error, BaseException):
        raise error
    return list(getattr(result, "interruptions", None) or ())


def approval_unavailable(waiting: Sequence[Any]) -> InvalidInput:
    names = ", ".join(str(getattr(item, "name", None) or "a tool") for item in waiting)
    return InvalidInput(f"{names} needs approval, which cannot be given here; use `magent2 worker`")


async def final_output(result: Any) -> object:
    """The final output, if this release says it; `None` leaves it to the tokens."""
    ask = getattr(result, "get_final_output", None)
    if not callable(ask):
        return getattr(result, "final_output", None)
    answer = ask()
    return await answer if inspect.isawaitable(answer) else answer


def usage_of_run(result: Any) -> object:
    return getattr(getattr(result, "context_wrapper", None), "usage", None)
