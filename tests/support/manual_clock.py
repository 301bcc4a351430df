"""A clock that a test advances by hand."""

from __future__ import annotations


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
