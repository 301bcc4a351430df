"""Notifications between processes: a thread that polls for commits of others while this process has watches."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable

from magent2.bus.sqlite_engine.errors import translate_error
from magent2.bus.watch import LocalWatch, WatchHub

log = logging.getLogger(__name__)

POLL_S = 0.01
POLL_AFTER_ERROR_S = 1.0
LINGER_S = 1.0  # the thread ends this long after the last watch was closed

_CHANGED_SINCE = (
    "SELECT name, version FROM topics WHERE version > ?1"
    " UNION ALL SELECT 'chat:' || agent, version FROM wakes WHERE version > ?1"
)


class PollingHub(WatchHub):
    """A hub that also notifies of commits by other processes."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: str) -> None:
        super().__init__()
        self._connect = connect
        self._path = path
        self._starting = threading.Lock()
        self._poller: CommitPoller | None = None

    def committed(self, topics: set[str], listed: set[str], version: int) -> None:
        """Notify at once of a commit by this process, and exclude it from the next poll."""
        poller = self._poller
        if poller is not None:
            poller.own.add(version)
        self.notify(topics, listed)

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        with self._starting:
            if self._poller is None or not self._poller.is_running():
                self._poller = CommitPoller(self, self._connect(), self._path)

    def close(self) -> None:
        with self._starting:
            if self._poller is not None:
                self._poller.stop()
                self._poller = None


class CommitPoller:
    """Thread that asks every 10 ms whether another process has committed, and which topics have changed.

    SQLite cannot notify other processes. `PRAGMA data_version` is the cheapest question to poll with: it compares a
    counter in shared memory, which every commit of another connection changes. The topics are queried only after a
    change, by the number of the last change that was seen.
    """

    def __init__(self, hub: WatchHub, connection: sqlite3.Connection, path: str) -> None:
        self.own: set[int] = set()  # versions that this process has committed
        self._hub = hub
        self._connection = connection
        self._path = path
        self._lock = threading.Lock()
        self._ended = False
        self._stop = threading.Event()
        # Both are read before the first `Watch.add` returns, so that every commit after it is noticed.
        self._seen_data_version = self._data_version()
        self._seen_version = int(connection.execute("SELECT version FROM counters").fetchone()[0])
        self._thread = threading.Thread(target=self._work, name="magent2-sqlite-poll", daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        """Return whether the thread still polls. The new watch is in the hub already, so it does not end after this."""
        with self._lock:
            return not self._ended

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        idle_s, pause_s = 0.0, POLL_S
        try:
            while not self._stop.wait(pause_s) and not self._may_end(idle_s):
                idle_s = 0.0 if self._hub.watched() else idle_s + pause_s
                pause_s = self._poll()
        finally:  # the next watch starts another thread
            with self._lock:
                self._ended = True
            self._connection.close()

    def _may_end(self, idle_s: float) -> bool:
        if idle_s < LINGER_S:
            return False
        with self._lock:
            self._ended = not self._hub.watched()
            return self._ended

    def _poll(self) -> float:
        """Notify the hub of changes; return how long to wait before the next poll."""
        try:
            data_version = self._data_version()
            if data_version != self._seen_data_version:
                changes = self._connection.execute(_CHANGED_SINCE, (self._seen_version,)).fetchall()
                newest = max((version for _, version in changes), default=self._seen_version)
                foreign = not self.own.issuperset(range(self._seen_version + 1, newest + 1))
                # A version does not tell a new head from a new record, and a commit of this process hides the version
                # that another process has given the same topic. So after a commit of another process every topic may
                # have a new head.
                self._hub.notify(
                    [topic for topic, version in changes if version not in self.own],
                    [topic for topic, _ in changes] if foreign else (),
                )
                self._seen_version = newest
                self.own = {version for version in self.own if version > self._seen_version}
                self._seen_data_version = data_version  # read before the query: a commit in between is polled again
        except Exception as error:  # noqa: BLE001  followers of other processes' records depend on this thread
            cause = str(translate_error(error, self._path))
            log.warning("polling the sqlite log for changes failed", extra={"path": self._path, "error": cause})
            self._hub.notify_all()  # changes may be missed meanwhile, so every watcher has to read again
            return POLL_AFTER_ERROR_S
        return POLL_S

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
