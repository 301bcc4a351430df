"""The event loop of a command, the garbage collector of its process, and its reaction to signals."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

EXIT_IMMEDIATELY = 1  # exit code after a second SIGTERM or Ctrl-C
GC_THRESHOLDS = (5_000, 10, 10)  # new objects before a collection, and collections of one age before one of the next


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on uvloop where it is installed. Everything that it needs is imported before."""
    tune_garbage_collection()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def tune_garbage_collection() -> None:
    """Let the garbage collector of a server visit less. Call it when all modules are imported.

    What exists now lives as long as the process and is not visited again. New objects are visited later than by
    default, when most objects of a short run are freed already (decision 49).
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # use the standard loop
        return None
    return uvloop.new_event_loop


def on_sighup(handler: Callable[[], None]) -> None:
    """Call `handler` on every SIGHUP."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handler)


def on_stop_signal(handler: Callable[[], None], before_exit: Callable[[], None] = lambda: None) -> None:
    """Call `handler` on the first SIGTERM or Ctrl-C. The second one calls `before_exit` and ends the process."""
    signalled = False

    def handle() -> None:
        nonlocal signalled
        if signalled:
            try:
                before_exit()
            finally:
                os._exit(EXIT_IMMEDIATELY)
        signalled = True
        handler()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle)
