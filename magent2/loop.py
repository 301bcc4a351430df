"""The event loop of a command, and its reaction to signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

EXIT_AT_ONCE = 1  # exit code after a second SIGTERM or Ctrl-C


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


def read_again_on_signal(read: Callable[[], None]) -> None:
    """Call this on every SIGHUP."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read)


def leave_on_signals(leave: Callable[[], None]) -> None:
    """Call this on the first SIGTERM or Ctrl-C; the second one ends the process at once."""
    signalled = False

    def handle() -> None:
        nonlocal signalled
        if signalled:
            os._exit(EXIT_AT_ONCE)
        signalled = True
        leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle)
