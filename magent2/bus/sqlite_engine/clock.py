"""Clocks of the SQLite and memory engines: wall time for records and delays, monotonic time for leases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Source of time in milliseconds. A test or a simulation may pass its own."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. They may jump when the system clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary moment. They never jump and are the same for all processes on the log."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def boot_id() -> str:
    """Identify the current boot, from which the monotonic clock counts; empty where the system does not tell.

    Lease deadlines are stored as monotonic times, which mean nothing after a reboot. The boot id stored beside them
    tells such deadlines apart.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
