"""The event loop of a command, and its reaction to signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

EXIT_IMMEDIATELY = 1  # exit code after a second SIGTERM or Ctrl-C


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


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
