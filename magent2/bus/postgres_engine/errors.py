"""Errors of the server and the connection as errors of magent2."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from magent2.errors import (
    BusUnavailable,
    LimitError,
    Magent2Error,
    NoPermission,
    StorageCorrupt,
    StorageFull,
    StorageUnwritable,
)

# The same statement may succeed later, on this or on another connection.
_TRANSIENT = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.OutOfMemory,
    errors.IdleInTransactionSessionTimeout,
    errors.IdleSessionTimeout,
)
# Functions of the engine were dropped. The next connection creates them again.
_DROPPED = (errors.UndefinedFunction,)
# The server is not the primary any more, so the next connection may reach another one.
_NOT_PRIMARY = (errors.ReadOnlySqlTransaction,)
_DENIED = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification)
# Errors while connecting have no code, only a text.
_REFUSED_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r'|role "[^"]*" (does not exist|is not permitted to log in)'
)
_NO_DATABASE = "has no such database; create it with CREATE DATABASE"
_NO_RIGHT = (
    "does not permit its user to do this; let the user own the schema of the log, or give it CONNECT and CREATE on the"
    " database"
)
_REFUSED_DATABASE: tuple[tuple[re.Pattern[str], type[Magent2Error], str], ...] = (
    (re.compile(r'database "[^"]*" does not exist'), StorageUnwritable, _NO_DATABASE),
    (re.compile(r"permission denied for database"), NoPermission, _NO_RIGHT),
)
_NAMED: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[Magent2Error], str], ...] = (
    (errors.DiskFull, StorageFull, "has no space left; free space, or trim topics"),
    (errors.InsufficientPrivilege, NoPermission, _NO_RIGHT),
    (errors.ProgramLimitExceeded, LimitError, "has no index for names of this length; take shorter ones"),
    (errors.InvalidCatalogName, StorageUnwritable, _NO_DATABASE),
    (
        _DROPPED,
        StorageCorrupt,
        "loses the functions of this log again and again; find out what drops them",
    ),
    (_NOT_PRIMARY, BusUnavailable, "is a read-only standby; name the primary, or all servers"),
)


def is_transient(error: Exception) -> bool:
    """Return whether the operation may be tried again by the engine itself."""
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return isinstance(error, (*_TRANSIENT, *_DROPPED, *_NOT_PRIMARY)) or error.sqlstate.startswith("08")
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return False
    return not _is_denied(error) and not any(pattern.search(str(error)) for pattern, *_ in _REFUSED_DATABASE)


def _is_denied(error: Exception) -> bool:
    return isinstance(error, _DENIED) or (
        isinstance(error, psycopg.OperationalError) and _REFUSED_LOGIN.search(str(error)) is not None
    )


def translate(error: Exception, server: str) -> Exception:
    """Return the error that callers get. Errors that are not of the server or its connection stay as they are."""
    if isinstance(error, Magent2Error) or not isinstance(error, psycopg.Error | OSError):
        return error
    text = " ".join(str(error).split())[:300]
    for kinds, made, reason in _NAMED:
        if isinstance(error, kinds):
            return made(f"PostgreSQL at {server} {reason} ({text})")
    for pattern, made, reason in _REFUSED_DATABASE:
        if isinstance(error, psycopg.OperationalError) and pattern.search(text):
            return made(f"PostgreSQL at {server} {reason} ({text})")
    if _is_denied(error):
        return StorageUnwritable(
            f"PostgreSQL at {server} refuses user or password ({text});"
            " put them into the URL: postgresql://user:password@host/database"  # pragma: allowlist secret
        )
    if is_transient(error):
        return BusUnavailable(
            f"PostgreSQL at {server} does not answer ({text}); check that it runs, and that address, port and TLS are"
            " right"
        )
    return StorageCorrupt(
        f"PostgreSQL at {server} answers {text!r}; has another program changed the schema of this log?"
    )
