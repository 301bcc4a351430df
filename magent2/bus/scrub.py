"""When the content of deleted records is removed from the storage.

`Delete` and `Erase` make content unreadable at once. Its bytes stay in the storage until a *scrub* rewrites it. A scrub
costs as much as copying a file or an inbox, so deletions that follow each other share one. The log itself records that
a scrub is needed: if the process that deleted dies, another one that uses the log finishes the work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SCRUB_DELAY_S = 2.0  # deletions within this time share one scrub
SCRUB_WITHIN_S = 60.0  # a scrub begins at most this long after the deletion, while a process uses the log
SCRUB_CHECK_S = 30.0  # how often a process looks for scrubs that another process has left undone
SCRUB_RETRY_S = 1.0  # pause after a scrub that a reader or another process has prevented
SCRUB_TIME_SHARE = 20  # scrubs take at most one part in this many of the time, unless SCRUB_WITHIN_S requires more


@dataclass(frozen=True, slots=True)
class ScrubState:
    """What the log records about scrubs. Times are in milliseconds of the wall clock of the store.

    The log clock is not needed: a clock that is set moves a scrub by no more than `SCRUB_WITHIN_S`.
    """

    requests: int = 0  # deletions since the last scrub
    asked_ms: int = 0  # time of the first of them
    rest_until_ms: int = 0  # the next scrub should not begin earlier: the last one took long

    def asked(self, now_ms: int) -> ScrubState:
        """Return the state after another deletion. The first one decides when the scrub is due."""
        return replace(self, requests=self.requests + 1, asked_ms=self.asked_ms if self.requests else now_ms)

    @classmethod
    def done(cls, now_ms: int, took_ms: float) -> ScrubState:
        """Return the state after a scrub that took this long."""
        return cls(rest_until_ms=now_ms + round(took_ms * SCRUB_TIME_SHARE))

    def wait_s(self, now_ms: int) -> float | None:
        """Return the seconds until the scrub is due; `None` if none is needed.

        A request from the future means that the clock was set back. Such a scrub is due at once.
        """
        if not self.requests:
            return None
        if self.asked_ms > now_ms:
            return 0.0
        latest_ms = self.asked_ms + round(SCRUB_WITHIN_S * 1000)
        due_ms = max(self.asked_ms + round(SCRUB_DELAY_S * 1000), min(self.rest_until_ms, latest_ms))
        return max(0.0, (due_ms - now_ms) / 1000)
