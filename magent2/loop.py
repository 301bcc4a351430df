"""The event loop of a command: which one, and how it is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 1  # the exit code of a process that was told twice


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on the quickest loop there is."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # where it does not exist, the standard loop does
        return None
    return uvloop.new_event_loop


def read_again_on_signal(read: Callable[[], None]) -> None:
    """SIGHUP calls this, each time."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read)


def leave_on_signals(leave: Callable[[], None]) -> None:
    """The first SIGTERM or Ctrl-C calls this, the second ends the process at once."""
    told = False

    def hear() -> None:
        nonlocal told
        if told:
            os._exit(AT_ONCE)
        told = True
        leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, hear)
