"""A clock that goes only when it is told to."""

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
        """Time goes by."""
        self.wall += round(seconds * 1000)
        self.steady += round(seconds * 1000)

    def jump_s(self, seconds: float) -> None:
        """Somebody sets the clock on the wall."""
        self.wall += round(seconds * 1000)
