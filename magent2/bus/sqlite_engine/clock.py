"""Clocks of the SQLite engine: those of the operating system, and the log clock that is computed from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple, Protocol

WALL_DRIFT_MS = 1000  # a larger difference between wall clock and monotonic clock shows that the wall clock was set
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


class ClockAnchor(NamedTuple):
    """A moment by three clocks: the monotonic clock of a boot, the wall clock, and the log clock.

    The log clock measures delays (decision 28). It counts milliseconds, runs at the same rate as the monotonic clock,
    and never goes back: setting the wall clock does not change it. It begins as the wall clock.
    """

    boot: str
    monotonic_ms: int
    wall_ms: int
    log_ms: int

    def carries(self, boot: str, monotonic_ms: int) -> bool:
        """Whether the monotonic clock has run since this moment. Without boot ids, a smaller value shows a reboot."""
        return self.boot == boot and monotonic_ms >= self.monotonic_ms

    def log_ms_at(self, boot: str, monotonic_ms: int, wall_ms: int) -> int:
        """Return the log clock at another moment.

        After a reboot only the wall clock tells how much time has passed. If it was set back, no time counts: a delay
        then lasts at most as long again.
        """
        passed_ms = monotonic_ms - self.monotonic_ms if self.carries(boot, monotonic_ms) else wall_ms - self.wall_ms
        return self.log_ms + max(0, passed_ms)
