"""Wait for a condition with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

DEADLINE_S = 30.0  # generous: a correct program needs far less, also on a busy machine
LOOK_AGAIN_S = 0.005


def eventually(look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Call `look` until its result is true and return it; fail the test after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"still {found!r} after {deadline_s:g} s")
        time.sleep(LOOK_AGAIN_S)


async def until(look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """`eventually` for a test on an event loop."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"still {found!r} after {deadline_s:g} s")
        await asyncio.sleep(LOOK_AGAIN_S)
