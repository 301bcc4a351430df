"""A fair lock between the processes that write one file.

SQLite serializes writers by itself, but a writer that finds the database locked sleeps and retries. A process that
commits without a pause then starves all others: their retries come while it holds the lock. The kernel wakes the
processes that wait for this lock instead.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from magent2.private_files import create_if_missing

RETRY_S = 0.01
YIELD_S = 0.0005  # long enough for a waiting process to wake up and take the lock


class FileLock:
    """A lock that one process holds at a time. It only provides fairness: SQLite's own locks protect the file.

    A process that has to wait holds a shared lock on a second file meanwhile. A process that releases the lock and sees
    that second file locked sleeps for a moment, so that it cannot take the lock again before the one that waits. That
    sleep is bounded: a waiting process that was suspended cannot stop the others. Only the users who may read the
    database can open the two files: any process that can open them could hold the lock for ever.
    """

    def __init__(self, path: Path) -> None:
        waiting = path.with_name(path.name + ".waiting")
        for file in (path, waiting):
            create_if_missing(file)
        self._lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._waiting = os.open(waiting, os.O_RDWR | os.O_CLOEXEC)

    def try_acquire(self) -> bool:
        return _try_flock(self._lock, fcntl.LOCK_EX)

    def acquire(self) -> None:
        _try_flock(self._waiting, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._waiting, fcntl.LOCK_UN)

    def acquire_within(self, limit_s: float) -> bool:
        """Try to acquire the lock for up to `limit_s`; return whether it succeeded."""
        deadline = time.monotonic() + limit_s
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_S)
        return True

    def release(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        if _try_flock(self._waiting, fcntl.LOCK_EX):
            fcntl.flock(self._waiting, fcntl.LOCK_UN)
        else:
            time.sleep(YIELD_S)

    def close(self) -> None:
        os.close(self._lock)
        os.close(self._waiting)


def _try_flock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
