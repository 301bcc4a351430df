"""Notifications of commits: by this process with the records, by others through a thread that looks for them."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from magent2.bus.record_watch import Changes, RecordHub
from magent2.bus.sqlite_engine.errors import translate_error
from magent2.bus.sqlite_engine.peer_sockets import CommitSocket, SocketFolder
from magent2.bus.watch import LocalWatch

log = logging.getLogger(__name__)

POLL_S = 0.01  # where sockets cannot be used
# Datagrams tell of a commit at once. A poll finds the commits of processes that were killed before they sent theirs.
POLL_WITH_SOCKET_S = 0.25
POLL_AFTER_ERROR_S = 1.0
COMMITS_PAUSE_S = 0.005  # between two polls while others commit: each poll takes the GIL from the event loop
KILLED_CHECK_S = 1.0  # between two looks for processes that were killed
LINGER_S = 1.0  # the thread ends this long after the last watch was closed

_CHANGED_SINCE = (
    "SELECT name, version FROM topics WHERE version > ?1"
    " UNION ALL SELECT 'chat:' || agent, version FROM wakes WHERE version > ?1"
)


class PollingHub(RecordHub):
    """A hub that also notifies of commits by other processes."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], path: Path, end_process: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._connect = connect
        self._path = str(path)
        self._end_process = end_process
        self._sockets = SocketFolder(path)
        self._starting = threading.Lock()
        self._poller: CommitPoller | None = None

    def committed(self, changes: Changes) -> None:
        """Notify of a commit by this process, and exclude it from the next poll. Tell the other processes of it."""
        poller = self._poller
        if poller is not None:
            poller.own.add(changes.version)
        self.hand_over(changes)
        self._sockets.wake_others()

    def process_name(self) -> str:
        """Return the name by which other processes find out that this one was killed; empty if they cannot."""
        return self._sockets.name

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        with self._starting:
            if self._poller is None or not self._poller.is_running():
                self._poller = CommitPoller(self, self._connect(), self._path, self._sockets, self._end_process)

    def close(self) -> None:
        with self._starting:
            if self._poller is not None:
                self._poller.stop()
                self._poller = None
            self._sockets.close()


class CommitPoller:
    """Thread that finds out when another process has committed, and which topics have changed.

    SQLite cannot notify other processes, so they send each other datagrams (`SocketFolder`). Where sockets cannot be
    used, the thread polls every 10 ms. `PRAGMA data_version` is the cheapest question to poll with: it compares a
    counter in shared memory, which every commit of another connection changes. The topics are queried only after a
    change, by the number of the last change that was seen.
    """

    def __init__(
        self,
        hub: PollingHub,
        connection: sqlite3.Connection,
        path: str,
        sockets: SocketFolder,
        end_process: Callable[[str], None],
    ) -> None:
        self.own: set[int] = set()  # versions that this process has committed
        self._hub = hub
        self._connection = connection
        self._path = path
        self._sockets = sockets
        self._end_process = end_process
        self._killed_check_at = 0.0
        self._refused: set[str] = set()  # sockets that refused at the last check
        self._socket = self._bind(sockets)
        self._woken = False  # whether a datagram ended the last wait
        self._lock = threading.Lock()
        self._ended = False
        self._stop = threading.Event()
        # Both are read before the first `Watch.add` returns, and after the socket was bound, so that every commit after
        # it is noticed.
        self._seen_data_version = self._data_version()
        self._seen_version = int(connection.execute("SELECT version FROM counters").fetchone()[0])
        self._thread = threading.Thread(target=self._work, name="magent2-sqlite-poll", daemon=True)
        self._thread.start()

    @property
    def _pause_s(self) -> float:
        return POLL_S if self._socket is None else POLL_WITH_SOCKET_S

    def is_running(self) -> bool:
        """Return whether the thread still polls. The new watch is in the hub already, so it does not end after this."""
        with self._lock:
            return not self._ended

    def stop(self) -> None:
        self._stop.set()
        if self._socket is not None:
            self._socket.wake()
        self._thread.join()

    def _bind(self, sockets: SocketFolder) -> CommitSocket | None:
        try:
            return sockets.bind()
        except OSError as error:
            log.info(
                "sqlite log is polled: its processes cannot send each other datagrams",
                extra={"path": self._path, "poll_s": POLL_S, "error": str(error)},
            )
            return None

    def _work(self) -> None:
        unwatched_since: float | None = None
        pause_s = self._pause_s
        try:
            while self._wait(pause_s) and not self._may_end(unwatched_since):
                if self._hub.watched():
                    unwatched_since = None
                elif unwatched_since is None:
                    unwatched_since = time.monotonic()
                pause_s = self._poll()
                self._end_killed_processes()
        finally:  # the next watch starts another thread
            with self._lock:
                self._ended = True
            if self._socket is not None:
                self._socket.close()
            self._connection.close()

    def _end_killed_processes(self) -> None:
        """End the leases of processes that were killed. Otherwise their lanes would wait until the leases run out."""
        now = time.monotonic()
        if now < self._killed_check_at:
            return
        self._killed_check_at = now + KILLED_CHECK_S
        try:
            killed = self._sockets.list_killed()
            refused_before, self._refused = self._refused, set(killed)
            for name in killed:
                sql = "SELECT 1 FROM worker_processes WHERE process = ? LIMIT 1"
                if self._connection.execute(sql, (name,)).fetchone() is None:
                    # Its leases have ended, and that is committed; or it is a process that is starting: a socket
                    # refuses from the moment its file exists until it is bound. That takes less than a check.
                    if name in refused_before:
                        self._sockets.remove(name)
                else:
                    log.info("ending the leases of a killed process", extra={"path": self._path, "socket": name})
                    self._end_process(name)
        except Exception as error:  # noqa: BLE001  leases end by themselves too, only later
            cause = str(translate_error(error, self._path))
            log.warning("cannot end the leases of killed processes", extra={"path": self._path, "error": cause})

    def _wait(self, pause_s: float) -> bool:
        """Wait for a commit of another process, at most `pause_s`; return False when the thread has to end."""
        if self._socket is None:
            return not self._stop.wait(pause_s)
        if self._woken and self._stop.wait(COMMITS_PAUSE_S):
            return False
        try:
            self._woken = self._socket.wait(pause_s)
        except OSError as error:  # such as a lack of memory for buffers; a poll finds every change too
            log.warning("no datagram can be received", extra={"path": self._path, "error": str(error)})
            self._stop.wait(POLL_S)
        return not self._stop.is_set()

    def _may_end(self, unwatched_since: float | None) -> bool:
        if unwatched_since is None or time.monotonic() - unwatched_since < LINGER_S:
            return False
        with self._lock:
            self._ended = not self._hub.watched()
            return self._ended

    def _poll(self) -> float:
        """Notify the hub of changes; return how long to wait before the next poll."""
        try:
            data_version = self._data_version()
            if data_version != self._seen_data_version:
                self._hub.drop_kept()  # nothing tells that another process has erased records
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
                # In place, because the writer thread adds to it. `list` copies the set in one step.
                self.own.difference_update([version for version in list(self.own) if version <= newest])
                self._seen_data_version = data_version  # read before the query: a commit in between is polled again
        except Exception as error:  # noqa: BLE001  followers of other processes' records depend on this thread
            cause = str(translate_error(error, self._path))
            log.warning("polling the sqlite log for changes failed", extra={"path": self._path, "error": cause})
            self._hub.notify_all()  # changes may be missed meanwhile, so every watcher has to read again
            return POLL_AFTER_ERROR_S
        return self._pause_s

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
