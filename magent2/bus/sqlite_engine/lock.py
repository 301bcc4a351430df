"""Taking turns between processes. SQLite's own waiting sleeps and retries, so a busy writer starves the others."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

TRY_AGAIN_S = 0.01
STEP_ASIDE_S = 0.0005  # long enough for a process that waits to wake up and take its turn


class FileLock:
    """One writer at a time over all processes. Only fairness hangs on it: the file itself is guarded by SQLite.

    Whoever has to wait shows it by a shared lock on a second file; whoever gives the turn back and sees somebody there
    steps aside for a moment, and cannot overtake. A process that is stopped while it waits keeps nobody from his turn.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = os.open(path, flags, 0o666)
        self._waiting = os.open(path.with_name(path.name + ".waiting"), flags, 0o666)

    def try_acquire(self) -> bool:
        return _try(self._turn, fcntl.LOCK_EX)

    def acquire(self) -> None:
        _try(self._waiting, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._waiting, fcntl.LOCK_UN)

    def acquire_within(self, limit_s: float) -> bool:
        """For those who cannot wait for ever: whether the turn came in time."""
        deadline = time.monotonic() + limit_s
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                return False
            time.sleep(TRY_AGAIN_S)
        return True

    def release(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        if _try(self._waiting, fcntl.LOCK_EX):
            fcntl.flock(self._waiting, fcntl.LOCK_UN)
        else:
            time.sleep(STEP_ASIDE_S)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._waiting)


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class WalSize:
    """Whether the write-ahead log has grown past its limit.

    The file keeps its size when it is begun anew, so its length says nothing. Each frame carries the salt of its round:
    if the frame at the limit has the salt of the header, this round has come that far.
    """

    _HEADER, _FRAME_HEADER = 32, 24

    def __init__(self, path: str, page_bytes: int, limit_bytes: int) -> None:
        self._path = path
        frame = self._FRAME_HEADER + page_bytes
        self._place = self._HEADER + limit_bytes // frame * frame + 8
        self._handle = -1

    def is_past_limit(self) -> bool:
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        salt = os.pread(self._handle, 8, 16)
        return bool(salt) and os.pread(self._handle, 8, self._place) == salt

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
