"""Waiting for something to become true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

DEADLINE_S = 10.0  # long after anything that works has happened
LOOK_AGAIN_S = 0.005


def eventually(look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of `look`; a failure when none came in time."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"still {found!r} after {deadline_s:g} s")
        time.sleep(LOOK_AGAIN_S)


async def until(look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """`eventually`, on an event loop that has other things to do meanwhile."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"still {found!r} after {deadline_s:g} s")
        await asyncio.sleep(LOOK_AGAIN_S)
