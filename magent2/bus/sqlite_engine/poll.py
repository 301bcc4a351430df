"""News from other processes: a thread that looks, while somebody in this process watches."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable

from magent2.bus.sqlite_engine.errors import explain
from magent2.bus.watch import LocalWatch, WatchHub

log = logging.getLogger(__name__)

POLL_S = 0.01
POLL_AFTER_ERROR_S = 1.0
LINGER_S = 1.0  # the thread stays this long after the last watch has gone

_NEWS = (
    "SELECT name, version FROM topics WHERE version > ?1"
    " UNION ALL SELECT 'chat:' || agent, version FROM wakes WHERE version > ?1"
)


class PollingHub(WatchHub):
    """A hub that also hears of what other processes have committed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: str) -> None:
        super().__init__()
        self._connect = connect
        self._path = path
        self._starting = threading.Lock()
        self._poller: Poller | None = None

    def committed(self, topics: set[str], version: int) -> None:
        """This process has committed: tell at once, and leave it out of the next look."""
        poller = self._poller
        if poller is not None:
            poller.own.add(version)
        self.notify(topics)

    def entered(self, watch: LocalWatch, topic: str, first: bool) -> None:
        with self._starting:
            if self._poller is None or not self._poller.keep():
                self._poller = Poller(self, self._connect(), self._path)

    def close(self) -> None:
        with self._starting:
            if self._poller is not None:
                self._poller.stop()
                self._poller = None


class Poller:
    """Asks every 10 ms whether anything was committed, and if so what."""

    def __init__(self, hub: WatchHub, connection: sqlite3.Connection, path: str) -> None:
        self.own: set[int] = set()  # versions that this process has committed
        self._hub = hub
        self._connection = connection
        self._path = path
        self._lock = threading.Lock()
        self._ended = False
        self._stop = threading.Event()
        # Before the thread begins, so that no change after `add` is missed.
        self._seen_data = self._data_version()
        self._seen = int(connection.execute("SELECT version FROM counters").fetchone()[0])
        self._thread = threading.Thread(target=self._work, name="magent2-sqlite-poll", daemon=True)
        self._thread.start()

    def keep(self) -> bool:
        """Whether the thread still looks; if so, it goes on for the new watch."""
        with self._lock:
            return not self._ended

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        idle_s, pause_s = 0.0, POLL_S
        while not self._stop.wait(pause_s) and not self._may_end(idle_s):
            idle_s = 0.0 if self._hub.watched() else idle_s + pause_s
            pause_s = self._look()
        with self._lock:
            self._ended = True
        self._connection.close()

    def _may_end(self, idle_s: float) -> bool:
        if idle_s < LINGER_S:
            return False
        with self._lock:
            self._ended = not self._hub.watched()
            return self._ended

    def _look(self) -> float:
        """Tell the hub what is new; how long to wait before the next look."""
        try:
            seen_data = self._data_version()
            if seen_data != self._seen_data:
                self._tell()
                self._seen_data = seen_data
        except sqlite3.Error as error:
            log.warning("watching waits for the log", extra={"error": str(explain(error, self._path))})
            self._hub.notify_all()
            return POLL_AFTER_ERROR_S
        return POLL_S

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _tell(self) -> None:
        news = self._connection.execute(_NEWS, (self._seen,)).fetchall()
        self._hub.notify([topic for topic, version in news if version not in self.own])
        self._seen = max((version for _, version in news), default=self._seen)
        self.own = {version for version in self.own if version > self._seen}
