"""Time as the store sees it: the wall for records and delays, a steady clock for leases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Milliseconds. A test or a simulation may pass its own."""

    def wall_ms(self) -> int:
        """Since 1970; may step when somebody sets the clock."""
        ...

    def monotonic_ms(self) -> int:
        """Since any moment; never steps, and is the same for all processes that share the log."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def boot_id() -> str:
    """Which start of the machine the steady clock counts from; empty where the system does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
