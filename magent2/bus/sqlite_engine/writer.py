"""The writer thread: operations that wait together are committed together."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from magent2.bus.sqlite_engine.errors import explain, is_busy
from magent2.bus.sqlite_engine.lock import FileLock, WalSize
from magent2.bus.sqlite_engine.schema import BUSY_TIMEOUT_MS
from magent2.bus.sqlite_engine.state import State
from magent2.bus.sqlite_engine.store import AnyOperation, run_group
from magent2.errors import BusUnavailable, InvalidInput

log = logging.getLogger(__name__)

GROUP_MAX = 1024  # operations per commit
WAL_MAX_BYTES = 8 << 20
CHECKPOINT_WAIT_MS = 50  # how long a checkpoint may wait for readers before the next group goes on
LOCK_WAIT_MAX_S = 30.0  # how long to wait for a process that holds the lock and does not move
LOCK_WATCH_S = 0.5
FREED_ROWS_MIN = 1000  # dropped rows that make it worth while to look for free pages
VACUUM_PAGES_MAX = 1024  # pages given back per group, so that nobody waits long
FREE_PAGES_KEPT = 1024  # left in the file for what comes next
SCRUB_MAX_BYTES = 512 << 20  # a larger file is not written anew while it is in use: that would take longer than a lease
SCRUB_SHARE = 20  # of the writer's time, one part in so many may go into that
CHECKPOINT_RETRY_S = 1.0  # after one that a reader stood in the way of


def closed(path: str) -> str:
    return f"the bus on {path} is closed; open another with SqliteBus({path!r})"


def held_elsewhere(path: str) -> str:
    return f"another process has held the lock of {path} for {LOCK_WAIT_MAX_S:g} s; continue or end it, then try again"


class ThreadWaiter:
    """A thread that waits for one outcome."""

    __slots__ = ("_lock", "outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.outcome: Any = None

    def finish(self, outcome: Any) -> None:
        self.outcome = outcome
        self._lock.release()

    def wait(self) -> Any:
        self._lock.acquire()
        return self.outcome


Waiter = ThreadWaiter | asyncio.Future[Any]
Notify = Callable[[set[str], int], None]


class Writer:
    """Runs operations in groups on a thread of its own, for waiters on threads and on event loops."""

    def __init__(self, state: State, lock: FileLock, path: str, notify: Notify) -> None:
        self._state = state
        self._connection = state.connection
        self._lock = lock
        self._path = path
        self._notify = notify
        self._page_bytes = int(self._connection.execute("PRAGMA page_size").fetchone()[0])
        self._wal = WalSize(f"{path}-wal", self._page_bytes, WAL_MAX_BYTES)
        self._queue: deque[tuple[AnyOperation, Waiter]] = deque()
        self._bursts: dict[asyncio.AbstractEventLoop, list[tuple[AnyOperation, Waiter]]] = {}
        self._wake = threading.Event()
        self._idle = False
        self._closing = False
        self._ended = ""  # why the thread takes nothing more
        self._vacuuming = False
        self._checkpoint_at = 0.0
        self._scrub_at = 0.0
        self._blocked_since: float | None = None
        self._watchman: threading.Thread | None = None
        self._thread = threading.Thread(target=self._work, name="magent2-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: AnyOperation, waiter: Waiter) -> None:
        self._queue.append((operation, waiter))
        self._call()

    def submit_soon(self, operation: AnyOperation, future: asyncio.Future[Any]) -> None:
        """For an event loop: what its tasks ask for in one round goes out together at the end of it.

        The thread that was called at the first would fight with the loop over the interpreter for all the others.
        """
        loop = future.get_loop()
        burst = self._bursts.get(loop)
        if burst is None:
            self._bursts[loop] = [(operation, future)]
            loop.call_soon(self.submit_burst, loop)
        else:
            burst.append((operation, future))

    def submit_burst(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread of the loop."""
        burst = self._bursts.pop(loop, None)
        if burst is None:
            return
        if not self._thread.is_alive():  # closed from another thread between the asking and now
            finish_all([waiter for _, waiter in burst], [InvalidInput(closed(self._path)) for _ in burst])
            return
        self._queue.extend(burst)
        self._call()

    def _call(self) -> None:
        if self._idle:
            self._idle = False  # one call is enough: the thread may need a while to get the interpreter
            self._wake.set()
        elif self._ended:
            self._refuse_waiting(self._ended)

    def close(self) -> bool:
        """Run what waits, then stop; whether that was possible while another process may hold the lock."""
        with suppress(RuntimeError):  # when no loop runs on this thread
            self.submit_burst(asyncio.get_running_loop())
        self._closing = True
        self._wake.set()
        self._thread.join(2 * LOCK_WAIT_MAX_S)
        if self._thread.is_alive():
            log.error("sqlite log could not be closed: another process holds its lock", extra={"path": self._path})
            return False
        self._wal.close()
        return True

    # --- the thread ---

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._take_turn()
                group = self._take_group()
                outcomes = self._run([operation for operation, _ in group])
                finish_all([waiter for _, waiter in group], outcomes)
                self._tidy()
                self._lock.release()
        finally:  # whatever happens, nobody waits for ever
            self._ended = f"the bus on {self._path} was closed; open another"
            self._refuse_waiting(self._ended)

    def _wait_for_work(self) -> bool:
        while not self._queue:
            if self._closing:
                return False
            self._idle = True
            called = True
            if not self._queue and not self._closing:
                called = self._wake.wait(CHECKPOINT_RETRY_S if self._state.stale else None)
            self._idle = False
            self._wake.clear()
            if not called:
                return True  # nothing to run, but something to tidy
        return True

    def _take_group(self) -> list[tuple[AnyOperation, Waiter]]:
        group: list[tuple[AnyOperation, Waiter]] = []
        with suppress(IndexError):  # until it is empty, whoever else takes from it
            while len(group) < GROUP_MAX:
                group.append(self._queue.popleft())
        return group

    def _run(self, operations: Sequence[AnyOperation]) -> list[Any]:
        try:
            return self._commit(operations)
        except Exception as error:  # noqa: BLE001 - the thread bridge: whoever waits gets it
            self._roll_back()
            failure = error
        if len(operations) == 1 or is_busy(failure):
            return [explain(failure, self._path) for _ in operations]
        return [self._run([operation])[0] for operation in operations]

    def _commit(self, operations: Sequence[AnyOperation]) -> list[Any]:
        if not operations:
            return []
        self._connection.execute("BEGIN IMMEDIATE")
        outcomes = run_group(self._state, operations)
        self._connection.execute("COMMIT")
        if self._state.changed:
            self._notify(self._state.changed, self._state.version)
        return outcomes

    def _roll_back(self) -> None:
        self._state.reset()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:  # the next BEGIN tells whether anything is left to be saved
            log.warning("sqlite log could not be rolled back", extra={"path": self._path, "error": str(error)})

    # --- taking turns ---

    def _take_turn(self) -> None:
        if self._lock.try_acquire():
            return
        self._blocked_since = time.monotonic()
        if self._watchman is None or not self._watchman.is_alive():
            self._watchman = threading.Thread(target=self._watch_lock, name="magent2-sqlite-lock", daemon=True)
            self._watchman.start()
        try:
            self._lock.acquire()
        finally:
            self._blocked_since = None

    def _watch_lock(self) -> None:
        """While another process does not let go of the lock, refuse what has waited for too long."""
        while True:
            time.sleep(LOCK_WATCH_S)
            since = self._blocked_since
            if since is None:
                return
            if time.monotonic() - since > LOCK_WAIT_MAX_S:
                self._refuse_waiting(held_elsewhere(self._path))

    def _refuse_waiting(self, why: str) -> None:
        while self._queue:
            group = self._take_group()
            finish_all([waiter for _, waiter in group], [BusUnavailable(why) for _ in group])

    # --- between groups ---

    def _tidy(self) -> None:
        """A log that cannot be tidied now is still a good log: say so and go on."""
        try:
            if self._vacuuming or self._state.freed >= FREED_ROWS_MIN:
                self._give_pages_back()
            if self._state.stale and time.monotonic() >= self._scrub_at:
                self._scrub()
            if self._wal.is_past_limit() and time.monotonic() >= self._checkpoint_at:
                self._checkpoint("RESTART")
        except (sqlite3.Error, OSError) as error:
            log.warning("sqlite log could not be tidied", extra={"path": self._path, "error": str(error)})

    def _give_pages_back(self) -> None:
        self._state.freed = 0
        # `execute` would stop after the first page.
        self._connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES_MAX})")
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        self._vacuuming = free > FREE_PAGES_KEPT

    def _scrub(self) -> None:
        """Write the file anew without what was deleted, and empty the write-ahead log.

        SQLite overwrites what it deletes where it stands. But when a page is split, rows move to another page, and what
        they said stays behind in the free space of the first.
        """
        begun = time.monotonic()
        self._scrub_at = begun + CHECKPOINT_RETRY_S
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        if pages * self._page_bytes <= SCRUB_MAX_BYTES:
            self._connection.execute("VACUUM")
        else:
            log.warning("sqlite log is too large to be rid of deleted text while in use", extra={"path": self._path})
        self._state.stale = not self._checkpoint("TRUNCATE")
        self._scrub_at = max(self._scrub_at, begun + SCRUB_SHARE * (time.monotonic() - begun))

    def _checkpoint(self, mode: str) -> bool:
        """Whether all of it went into the file. Truncating also empties the write-ahead log of what was deleted."""
        self._connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
        try:
            busy, _, _ = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            self._checkpoint_at = time.monotonic() + CHECKPOINT_RETRY_S if busy else 0.0
            return not busy
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


def finish_all(waiters: Sequence[Waiter], outcomes: Sequence[Any]) -> None:
    """Hand every outcome to whoever waits for it; an event loop is woken once for all of its own."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if isinstance(waiter, ThreadWaiter):
            waiter.finish(outcome)
        else:
            loops.setdefault(waiter.get_loop(), []).append((waiter, outcome))
    for loop, pairs in loops.items():
        try:
            loop.call_soon_threadsafe(_finish_futures, pairs)
        except RuntimeError:  # the loop was closed while its tasks waited: nobody is left to tell
            log.info("an event loop was closed before its operations ended", extra={"operations": len(pairs)})


def _finish_futures(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in pairs:
        if future.done():  # cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
