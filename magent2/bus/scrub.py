"""When the content of deleted records is removed from the storage.

`Delete` and `Erase` make content unreadable at once. Its bytes stay in the storage until a *scrub* rewrites it. A scrub
costs as much as copying a file or an inbox, so deletions that follow each other share one. The log itself records that
a scrub is needed: if the process that deleted dies, another one that uses the log finishes the work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from magent2.background import log_error

log = logging.getLogger(__name__)

SCRUB_DELAY_S = 2.0  # deletions within this time share one scrub
SCRUB_WITHIN_S = 60.0  # a scrub begins at most this long after the deletion, while a process uses the log
SCRUB_CHECK_S = 30.0  # how often a process looks for scrubs that another process has left undone
SCRUB_RETRY_S = 1.0  # pause after a scrub that a reader or another process has prevented
SCRUB_TIME_SHARE = 20  # scrubs take at most one part in this many of the time, unless SCRUB_WITHIN_S requires more
SCRUB_AT_CLOSE_MAX_S = 5.0  # how long `close` waits for the scrub of what this process has deleted


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


class Scrubber:
    """Scrubs what this process deletes on a server, and what a process that died has left.

    `wait_s` asks the log when the next scrub is due; `None` if none is needed. `scrub` runs it, and returns whether the
    storage is clean. The thread exists only while a scrub is due. Operations start it: a deletion at once, any other
    operation if the log was not checked for `SCRUB_CHECK_S`.
    """

    def __init__(self, name: str, wait_s: Callable[[], float | None], scrub: Callable[[], bool]) -> None:
        self._name = name
        self._wait_s = wait_s
        self._scrub = scrub
        self._check_at = time.monotonic() + SCRUB_DELAY_S
        self._lock = threading.Lock()
        self._deletions = 0  # deletions of this process
        self._scrubbed = 0  # those of them whose content is gone
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_working(self) -> bool:
        return self._thread is not None

    def operation_ended(self, *, deleted: bool) -> None:
        """Start the thread if the operation has deleted content, or if a check is due."""
        if not deleted and time.monotonic() < self._check_at:
            return
        with self._lock:
            self._deletions += deleted
            self._check_at = time.monotonic() + SCRUB_CHECK_S
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._work, name=f"magent2-{self._name}-scrub", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Scrub now what this process has deleted: no other process may be running."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None and self._scrubbed < self._deletions:
            thread.join(SCRUB_AT_CLOSE_MAX_S)

    def _work(self) -> None:
        while True:
            try:
                self._scrub_while_needed()
                failed = False
            except Exception as error:  # noqa: BLE001 - foreign errors too: the next operation starts a thread again
                log_error("cannot remove deleted content; will retry", error)
                failed = True
            with self._lock:
                if failed or self._closing.is_set() or self._scrubbed == self._deletions:
                    self._thread = None
                    return

    def _scrub_while_needed(self) -> None:
        while True:
            seen = self._deletions  # read before the log: a deletion in between is not taken for scrubbed
            wait_s = self._wait_s()
            if wait_s is None:
                self._scrubbed = seen
                return
            if self._closing.wait(wait_s) and self._scrubbed == self._deletions:
                return
            seen = self._deletions
            if self._scrub():
                self._scrubbed = seen
                log.info("removed deleted content")
            elif self._closing.wait(SCRUB_RETRY_S):
                return
