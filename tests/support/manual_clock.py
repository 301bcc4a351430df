"""Clocks that a test sets: one that it advances by hand, and one that runs and jumps."""

from __future__ import annotations

from magent2.bus.sqlite_engine.clock import SystemClock


class ManualClock:
    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.steady = 1_000_000

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.steady

    def pass_s(self, seconds: float) -> None:
        """Advance both clocks."""
        self.wall += round(seconds * 1000)
        self.steady += round(seconds * 1000)

    def jump_s(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self.wall += round(seconds * 1000)


class JumpingClock(SystemClock):
    """The clock of the system, whose wall clock a test sets forward or back."""

    def __init__(self) -> None:
        self._jumped_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self._jumped_ms

    def jump_s(self, seconds: float) -> None:
        self._jumped_ms += round(seconds * 1000)
