"""Scrubs of a process on Redis: removes deleted content from the server's memory some time after its deletion."""

from __future__ import annotations

import logging
import threading
import time

from magent2.background import log_error
from magent2.bus.operations import Scrub
from magent2.bus.redis_engine.exchanges import Keyspace, scrub, scrub_wait
from magent2.bus.redis_engine.execute import ConnectionPool
from magent2.bus.scrub import SCRUB_CHECK_S, SCRUB_DELAY_S, SCRUB_RETRY_S

log = logging.getLogger(__name__)

SCRUB_AT_CLOSE_MAX_S = 5.0  # how long `close` waits for the scrub of what this process has deleted


class Scrubber:
    """Scrubs what this process deletes, and what a process that died has left.

    Its thread exists only while a scrub is due. Operations start it: a deletion at once, any other operation if the
    log was not checked for `SCRUB_CHECK_S`.
    """

    def __init__(self, pool: ConnectionPool, keyspace: Keyspace) -> None:
        self._pool = pool
        self._keyspace = keyspace
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
                self._thread = threading.Thread(target=self._work, name="magent2-redis-scrub", daemon=True)
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
            wait_s = self._pool.execute(scrub_wait(self._keyspace))
            if wait_s is None:
                self._scrubbed = seen
                return
            if self._closing.wait(wait_s) and self._scrubbed == self._deletions:
                return
            seen = self._deletions
            if self._pool.execute(scrub(self._keyspace, Scrub())):
                self._scrubbed = seen
                log.info("removed deleted content")
            elif self._closing.wait(SCRUB_RETRY_S):
                return
