"""What a process expects of the log clock (decision 28)."""

from __future__ import annotations

import time


def rounded_up_ms(seconds: float) -> int:
    """Return milliseconds, rounded up: a short time must not become zero."""
    return -int(-seconds * 1000 // 1)


class LogClock:
    """The log clock by the monotonic clock of this process, so that the server notices when its own clock is set."""

    def __init__(self) -> None:
        self._ahead_ms: int | None = None  # log clock minus monotonic clock

    def expected_ms(self) -> int | None:
        """Return the log clock now; `None` before the first claim."""
        return None if self._ahead_ms is None else self._ahead_ms + round(time.monotonic() * 1000)

    def note(self, log_ms: int, asked_s: float) -> None:
        """Note the log clock that the server told. `asked_s`: the monotonic clock when it was asked.

        The server read its clock a little later. So what is expected is ahead by that, and never behind: the log clock
        does not go back when the server adopts it.
        """
        self._ahead_ms = log_ms - round(asked_s * 1000)
