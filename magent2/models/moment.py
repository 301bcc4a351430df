"""The time as text, cheaply: a run writes it on every token."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def utc_text() -> str:
    """Now, as pydantic writes it in JSON: `2026-01-31T12:00:00.000001Z`."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
