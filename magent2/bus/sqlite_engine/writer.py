"""The writer thread: runs write operations in groups, with one commit per group.

A commit waits for the disk, which takes far longer than the operations in it. While one group is committed, the next
operations queue up; they become the next group. So the number of operations per second is not bounded by the number of
commits per second that the disk manages, and a single caller waits for one commit only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from magent2.background import log_error
from magent2.bus.operations import AnyOperation, Claim, Renew, Scrub
from magent2.bus.record_watch import Changes
from magent2.bus.scrub import SCRUB_CHECK_S, SCRUB_DELAY_S, SCRUB_RETRY_S, ScrubState
from magent2.bus.sqlite_engine.connection import WriteConnection
from magent2.bus.sqlite_engine.dispatch import run_group
from magent2.bus.sqlite_engine.errors import is_busy, translate_error
from magent2.bus.sqlite_engine.file_lock import FileLock
from magent2.bus.sqlite_engine.schema import BUSY_TIMEOUT_MS, transaction
from magent2.bus.waiters import LoopBatches, QueuedOperation, Waiter, finish_all
from magent2.errors import BusUnavailable, InvalidInput

log = logging.getLogger(__name__)

GROUP_MAX = 1024  # operations per commit
# A power failure may undo these. It ends all workers of the log too, so their lanes and leases are free afterwards, and
# mail that a claim has sorted into lanes is sorted again.
NOT_SYNCED = frozenset((Claim, Renew))
LOCK_WAIT_MAX_S = 30.0  # how long operations wait for a process that holds the file lock and does not release it
LOCK_WATCH_S = 0.5

WAL_MAX_BYTES = 8 << 20  # size of the write-ahead log that triggers a checkpoint
CHECKPOINT_WAIT_MS = 50  # how long a checkpoint may wait for readers
CHECKPOINT_RETRY_S = 1.0  # pause after a checkpoint that a reader has blocked

DROPPED_ROWS_MIN = 1000  # deleted rows after which free pages are given back
VACUUM_PAGES_MAX = 1024  # pages given back per group, so that the next group does not wait long
FREE_PAGES_KEPT = 1024  # pages left in the file for the next appends
VACUUM_PAUSE_S = 0.02  # between two groups that only give pages back, so that other processes get the file lock
VACUUM_AT_CLOSE_MAX_S = 5.0  # how long closing may go on with giving pages back

SCRUB_MAX_BYTES = 512 << 20  # a larger file is rewritten only when asked for: writers would wait longer than a lease


def closed_message(path: str) -> str:
    return f"the bus on {path} is closed; open another with SqliteBus({path!r})"


def lock_held_message(path: str) -> str:
    return f"another process has held the lock of {path} for {LOCK_WAIT_MAX_S:g} s; resume or end it, then try again"


Notify: TypeAlias = Callable[[Changes], None]


class WriterThread:
    """Runs the write operations of this process on one thread, for callers on threads and on event loops.

    `notify` is called after each commit that has changed topics or erased content.
    """

    def __init__(self, db: WriteConnection, lock: FileLock, path: str, notify: Notify) -> None:
        self._db = db
        self._connection = db.connection
        self._lock = lock
        self._path = path
        self._notify = notify
        self._page_bytes = int(self._connection.execute("PRAGMA page_size").fetchone()[0])
        self._wal = WalSize(f"{path}-wal", self._page_bytes, WAL_MAX_BYTES)
        self._queue: deque[QueuedOperation] = deque()
        self._batches = LoopBatches(self.submit_all)
        self._wake = threading.Event()
        self._idle = False
        self._closing = False
        self._synced = True  # whether a commit waits for the disk
        self._ended = ""  # why operations are refused, once the thread has ended
        self._vacuuming = False  # free pages are left to be given back
        self._vacuum_until = math.inf  # on the monotonic clock
        self._checkpoint_at = 0.0
        self._scrub_at = 0.0  # no scrub before this time: the last one has failed
        self._look_at = time.monotonic() + SCRUB_DELAY_S  # when to look for a scrub that another process has left
        self._rewritten = ScrubState()  # the request for which the file was rewritten last
        self._reported = ScrubState()  # the request for which a warning was logged
        self._blocked_since: float | None = None
        self._lock_watcher: threading.Thread | None = None
        self._thread = threading.Thread(target=self._work, name="magent2-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: AnyOperation, waiter: Waiter) -> None:
        self._queue.append((operation, waiter))
        self._wake_thread()

    def submit_soon(self, operation: AnyOperation, loop: asyncio.AbstractEventLoop) -> asyncio.Future[object]:
        """Submit an operation together with those of other tasks: see `LoopBatches`."""
        return self._batches.submit(operation, loop)

    def submit_all(self, batch: Sequence[QueuedOperation]) -> None:
        if not self._thread.is_alive():  # the bus was closed from another thread meanwhile
            finish_all([waiter for _, waiter in batch], [InvalidInput(closed_message(self._path)) for _ in batch])
            return
        self._queue.extend(batch)
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._idle:
            self._idle = False  # one `set` is enough: later callers skip it while the thread waits for the GIL
            self._wake.set()
        elif self._ended:
            self._refuse_waiting(self._ended)

    def close(self) -> bool:
        """Run the queued operations, then stop. Return False if the thread still waits for the file lock."""
        self._batches.flush()
        self._vacuum_until = time.monotonic() + VACUUM_AT_CLOSE_MAX_S
        self._closing = True
        self._wake.set()
        self._thread.join(2 * LOCK_WAIT_MAX_S)
        if self._thread.is_alive():
            log.error("sqlite log was not closed: another process holds its lock", extra={"path": self._path})
            return False
        self._wal.close()
        return True

    # --- the thread ---

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._run_next_group()
            self._finish_scrub()
        finally:  # also after an error that is no `Exception`: no caller may wait for ever
            self._ended = f"the bus on {self._path} was closed; open another"
            self._refuse_waiting(self._ended)

    def _run_next_group(self) -> None:
        """Run the operations that wait. Whatever fails, every one of them gets an outcome, and the thread goes on."""
        group: list[QueuedOperation] = []
        try:
            # The file lock comes before BEGIN IMMEDIATE, and the group is taken after it. A process that waits here is
            # queued by the kernel, while one that waits in BEGIN sleeps, retries and starves. And all that is submitted
            # during the wait joins the group, so a busy log has fewer and larger commits.
            self._acquire_lock()
            group = self._take_group()
            self._run_group(group)
        except BaseException as error:
            self._fail_group(group or self._take_group(), error)
            if not isinstance(error, Exception):
                raise
        finally:
            with suppress(OSError):  # the lock is not held, because acquiring it failed; the callers were told
                self._lock.release()

    def _run_group(self, group: Sequence[QueuedOperation]) -> None:
        scrubs = [(operation, waiter) for operation, waiter in group if isinstance(operation, Scrub)]
        writes = [queued for queued in group if not isinstance(queued[0], Scrub)] if scrubs else group
        outcomes = self._run([operation for operation, _ in writes])
        # The callers get their outcomes before maintenance: it may take longer than the commit.
        finish_all([waiter for _, waiter in writes], outcomes)
        self._maintain_file()
        if scrubs:  # after the commit: VACUUM cannot be part of a transaction
            self._run_scrubs(scrubs)

    def _fail_group(self, group: Sequence[QueuedOperation], error: BaseException) -> None:
        """Give the error to all callers of the group that have no outcome yet."""
        log_error("the writer of the sqlite log failed", error, path=self._path)
        failure = translate_error(error, self._path) if isinstance(error, Exception) else BusUnavailable(repr(error))
        waiting = [waiter for _, waiter in group if not waiter.done()]
        finish_all(waiting, [failure for _ in waiting])

    def _wait_for_work(self) -> bool:
        """Wait until operations are queued or the file needs maintenance; return False when the thread has to end.

        While nothing is queued, look now and then for a scrub that another process has left undone.

        `_idle` is set before the queue is checked once more. A caller appends first and reads `_idle` then, so either
        this thread sees the operation or the caller sees `_idle` and wakes the thread.
        """
        while not self._queue:
            vacuum_due = self._vacuuming and time.monotonic() < self._vacuum_until
            if self._closing:
                return vacuum_due
            self._idle = True
            called = True
            if not self._queue and not self._closing:
                # Pages are given back without further operations too: after a sweep there may be none for hours.
                called = self._wake.wait(VACUUM_PAUSE_S if vacuum_due else self._scrub_wait_s())
            self._idle = False
            self._wake.clear()
            if not called and (vacuum_due or self._look_for_scrub()):
                return True  # no operations, but maintenance to go on with
        return True

    def _take_group(self) -> list[QueuedOperation]:
        group: list[QueuedOperation] = []
        with suppress(IndexError):  # the lock watcher may take from the queue at the same time
            while len(group) < GROUP_MAX:
                group.append(self._queue.popleft())
        return group

    def _run(self, operations: Sequence[AnyOperation]) -> list[object]:
        """Run a group; return the outcome of each operation.

        An unexpected error rolls the whole group back. One operation may be its cause, and the others must not fail
        with it, so each is then run again in a transaction of its own. That is safe: the rollback left no trace.
        A busy database is no operation's fault and would only cost each of them the same wait again.
        """
        try:
            return self._commit(operations)
        except Exception as error:  # noqa: BLE001 - the callers get the error; the thread has to go on
            self._roll_back()
            failure = error
        if len(operations) == 1 or is_busy(failure):
            return [translate_error(failure, self._path) for _ in operations]
        return [self._run([operation])[0] for operation in operations]

    def _commit(self, operations: Sequence[AnyOperation]) -> list[object]:
        if not operations:
            return []
        self._sync_commits(not all(type(operation) in NOT_SYNCED for operation in operations))
        self._connection.execute("BEGIN IMMEDIATE")
        outcomes = run_group(self._db, operations)
        self._connection.execute("COMMIT")
        changes = self._db.take_changes()
        if changes.topics or changes.erased:
            self._notify_watches(changes)
        return outcomes

    def _sync_commits(self, synced: bool) -> None:
        """Choose whether commits wait until they are on disk.

        One that does so brings all earlier ones to disk with it: they are in front of it in the write-ahead log.
        """
        if synced != self._synced:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._synced = synced

    def _notify_watches(self, changes: Changes) -> None:
        """Report the changes of a commit. The commit is done, so an error here must not fail its callers."""
        try:
            self._notify(changes)
        except Exception as error:  # noqa: BLE001  followers find the records in their next sweep
            log_error("watches were not notified of a commit", error, path=self._path)

    def _roll_back(self) -> None:
        self._db.reset()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except Exception as error:  # noqa: BLE001  if the connection is unusable, the next BEGIN fails and is reported
            log.warning("rollback of the sqlite log failed", extra={"path": self._path, "error": str(error)})

    # --- the file lock ---

    def _acquire_lock(self) -> None:
        if self._lock.try_acquire():
            return
        self._blocked_since = time.monotonic()
        if self._lock_watcher is None or not self._lock_watcher.is_alive():
            self._lock_watcher = threading.Thread(target=self._watch_lock, name="magent2-sqlite-lock", daemon=True)
            self._lock_watcher.start()
        try:
            self._lock.acquire()
        finally:
            self._blocked_since = None

    def _watch_lock(self) -> None:
        """Refuse queued operations while another process has held the file lock for too long.

        Runs on a thread of its own, because the writer thread is blocked in the kernel until it gets the lock.
        """
        while True:
            time.sleep(LOCK_WATCH_S)
            since = self._blocked_since
            if since is None:
                return
            try:
                if time.monotonic() - since > LOCK_WAIT_MAX_S:
                    self._refuse_waiting(lock_held_message(self._path))
            except Exception as error:  # noqa: BLE001  callers wait for the lock as long as nothing refuses them
                log_error("operations cannot be refused", error, path=self._path)

    def _refuse_waiting(self, why: str) -> None:
        while self._queue:
            group = self._take_group()
            finish_all([waiter for _, waiter in group], [BusUnavailable(why) for _ in group])

    # --- maintenance of the file, between groups ---

    def _maintain_file(self) -> None:
        """Shrink the file, remove deleted text and run checkpoints as needed. A failure is only logged.

        This runs under the file lock, so VACUUM and the checkpoint compete with no other writer.
        """
        try:
            if self._vacuuming or self._db.dropped_rows >= DROPPED_ROWS_MIN:
                self._vacuum_some_pages()
            if self._is_scrub_due():
                self._scrub()
            if self._wal.is_past_limit() and time.monotonic() >= self._checkpoint_at:
                self._checkpoint("RESTART")  # the next group writes from the start of the write-ahead log again
        except Exception as error:  # noqa: BLE001  the next group must not fail because of it
            log.warning("maintenance of the sqlite log failed", extra={"path": self._path, "error": str(error)})

    def _vacuum_some_pages(self) -> None:
        """Give free pages back to the file system, a bounded number per group.

        A full VACUUM would rewrite the file and block writers meanwhile; an incremental one moves pages from the end
        of the file. Some free pages stay, because a file that shrinks and grows with every sweep costs more than it
        saves.
        """
        self._db.dropped_rows = 0
        # The pragma frees one page per step, and `execute` makes a single step; `executescript` runs it to its end.
        self._connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES_MAX})")
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        self._vacuuming = free > FREE_PAGES_KEPT
        if not self._vacuuming:
            self._checkpoint("RESTART")  # the file becomes shorter only when the write-ahead log is moved into it

    # --- scrubs: removing deleted content from the file and from the write-ahead log

    def _scrub_wait_s(self) -> float:
        """Return the seconds until a scrub is due, or until the next look for one."""
        now, wait_s = time.monotonic(), self._db.scrub.wait_s(self._db.clock.wall_ms())
        return max(0.0, self._look_at - now) if wait_s is None else max(wait_s, self._scrub_at - now)

    def _is_scrub_due(self) -> bool:
        return time.monotonic() >= self._scrub_at and self._db.scrub.wait_s(self._db.clock.wall_ms()) == 0

    def _look_for_scrub(self) -> bool:
        """Read the state of another process; return whether a scrub is due."""
        self._look_at = time.monotonic() + SCRUB_CHECK_S
        try:
            self._db.load_scrub()
        except Exception as error:  # noqa: BLE001 - the thread has to go on
            log_error("cannot read the state of the sqlite log", error, path=self._path)
        return self._is_scrub_due()

    def _scrub(self, *, any_size: bool = False) -> bool:
        """Remove deleted content: rewrite the file, then empty the write-ahead log; return whether nothing is left.

        `secure_delete` overwrites a deleted row where it is. But when a page is split, rows move to another page, and
        copies of them stay in the free space of the first, out of reach of a later delete. Only VACUUM removes those.
        The request is read under the file lock and removed after the last step, so that no deletion is missed and a
        crash in between only repeats the work.
        """
        self._sync_commits(True)
        started = time.monotonic()
        self._scrub_at = started + SCRUB_CHECK_S  # after an error, or for a file that is too large
        request = self._db.load_scrub()
        if not request.requests:  # another process was faster
            self._db.has_asked_for_scrub = False
            self._scrub_at = 0.0
            return True
        if self._rewritten != request and not self._rewrite_file(request, any_size):
            self._checkpoint("TRUNCATE")
            return False
        self._rewritten = request  # after a checkpoint that a reader blocks, only the checkpoint is repeated
        if not self._checkpoint("TRUNCATE"):
            self._scrub_at = started + SCRUB_RETRY_S
            return False
        with transaction(self._connection):
            took_ms = 1000 * (time.monotonic() - started)
            self._db.store_scrub(ScrubState.done(self._db.clock.wall_ms(), took_ms))
        self._db.has_asked_for_scrub = False
        self._scrub_at = 0.0
        log.info("removed deleted content", extra={"deletions": request.requests, "took_ms": round(took_ms)})
        return True

    def _rewrite_file(self, request: ScrubState, any_size: bool) -> bool:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        if any_size or pages * self._page_bytes <= SCRUB_MAX_BYTES:
            self._connection.execute("VACUUM")
            return True
        if self._reported != request:
            self._reported = request
            log.warning(
                "sqlite log is too large to remove deleted content while in use; see 'magent2 erase --wait'",
                extra={"path": self._path, "bytes": pages * self._page_bytes},
            )
        return False

    def _run_scrubs(self, scrubs: Sequence[tuple[Scrub, Waiter]]) -> None:
        """Run `Scrub` operations, all at once."""
        outcome: object
        try:
            outcome = self._scrub(any_size=any(operation.any_size for operation, _ in scrubs))
        except Exception as error:  # noqa: BLE001 - the callers get the error; the thread has to go on
            self._roll_back()
            outcome = translate_error(error, self._path)
        finish_all([waiter for _, waiter in scrubs], [outcome for _ in scrubs])

    def _finish_scrub(self) -> None:
        """Scrub what this process has deleted, before it closes the log: no other process may be running."""
        if not self._db.has_asked_for_scrub or not self._lock.acquire_within(LOCK_WAIT_MAX_S):
            return
        try:
            self._scrub()
        except Exception as error:  # noqa: BLE001 - the log is closed in any case
            log_error("cannot remove deleted content; another process will", error, path=self._path)
        finally:
            self._lock.release()

    def _checkpoint(self, mode: str) -> bool:
        """Move the write-ahead log into the database file; return whether all of it was moved.

        Both modes wait until no reader needs the old frames. That wait is short, because the next group waits too;
        after a failure the next attempt comes a second later. RESTART keeps the file of the write-ahead log at its
        size, so that it need not be allocated again; TRUNCATE empties it, with the deleted text that it holds.
        """
        self._connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
        try:
            busy, _, _ = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            self._checkpoint_at = time.monotonic() + CHECKPOINT_RETRY_S if busy else 0.0
            return not busy
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


class WalSize:
    """Tells whether the write-ahead log has grown past a limit.

    The length of the file does not tell: after a checkpoint SQLite writes from its start again and keeps its size. But
    each frame carries the salt of its round, and the header the salt of the current one. If the frame at the limit has
    the salt of the header, the current round has come that far. Opening and closing this file is safe: SQLite keeps its
    locks on the database file and on the `-shm` file.
    """

    _HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
    _SALT_BYTES, _HEADER_SALT_OFFSET, _FRAME_SALT_OFFSET = 8, 16, 8

    def __init__(self, path: str, page_bytes: int, limit_bytes: int) -> None:
        self._path = path
        frame_bytes = self._FRAME_HEADER_BYTES + page_bytes
        self._offset = self._HEADER_BYTES + limit_bytes // frame_bytes * frame_bytes + self._FRAME_SALT_OFFSET
        self._handle = -1

    def is_past_limit(self) -> bool:
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        salt = os.pread(self._handle, self._SALT_BYTES, self._HEADER_SALT_OFFSET)
        return bool(salt) and os.pread(self._handle, self._SALT_BYTES, self._offset) == salt

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
