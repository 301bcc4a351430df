"""Translates errors of SQLite and of the operating system into errors of the bus."""

from __future__ import annotations

import errno
import sqlite3

from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnwritable,
)

_PRIMARY_CODE = 0xFF  # the low byte of SQLite's extended error codes is the primary code
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT}


def primary_code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY_CODE


def is_busy(error: BaseException) -> bool:
    return primary_code(error) in _BUSY


def translate_error(error: Exception, where: str) -> Exception:
    """Return the error to raise in place of this one. Errors of the bus and bugs are returned unchanged.

    `where` names the file or the log for the message.
    """
    if isinstance(error, Magent2Error):
        return error
    if isinstance(error, sqlite3.Error):
        return _translate_sqlite_error(error, where)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"no space left for {where} ({error}); free some space on its disk and try again")
        return StorageUnwritable(f"{where} cannot be opened or written ({error}); check path and permissions")
    return error


def _translate_sqlite_error(error: sqlite3.Error, where: str) -> Magent2Error:
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"no space left for {where} ({error}); free some space on its disk and try again")
    if code in _UNWRITABLE:
        return StorageUnwritable(
            f"{where} cannot be opened or written ({error}); check that the file and its folder are writable"
        )
    if code in _CORRUPT:
        return StorageCorrupt(f"{where} is not a log or is damaged ({error}); restore a backup or choose another path")
    if code in _BUSY:
        return BusUnavailable(f"{where} is locked by another program ({error}); let it finish, then try again")
    return StorageError(f"{where} failed: {type(error).__name__}: {error}; check the disk and the system's log")
