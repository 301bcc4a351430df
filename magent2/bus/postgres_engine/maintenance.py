"""Maintenance of a log: retention, erasing, deleting, blobs, scrubs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg import errors
from psycopg.errors import Diagnostic

from magent2.bus.operations import (
    AnyOperation,
    Compact,
    Delete,
    Erase,
    Expire,
    Operation,
    PutBlob,
    Scrub,
    SweepBlobs,
    Trim,
)
from magent2.bus.postgres_engine.connection import STATEMENT_TIMEOUT_MS, Connection
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import rows
from magent2.bus.records import CompactResult, TrimResult
from magent2.bus.scrub import SCRUB_CHECK_S, ScrubState

SCRUB_MAX_BYTES = 256 << 20  # larger tables are rewritten only when asked for: all operations wait meanwhile
SCRUB_LOCK_MS = 1000  # how long a scrub waits for the lock of a table
SCRUBBED_TABLES = ("records", "old_ids", "topics", "lanes", "mail", "blobs", "blob_refs")

_TRIM = render("SELECT * FROM trim$v(%s, %s::bigint, %s::bigint, %s::bigint, %s::bigint)")
_COMPACT = render("SELECT * FROM compact$v(%s, %s::bigint, %s::bigint, %s::bigint)")
_ERASE = render("SELECT erase$v(%s, %s::bigint[], %s)")
_DELETE = render("SELECT * FROM delete$v(%s::text[], %s, %s)")
_EXPIRE = render("SELECT * FROM expire$v(%s::text[], %s, %s::bigint, %s)")
_SWEEP = render("SELECT sweep_blobs$v(%s::bigint, %s::bigint, %s)")
_PUT_BLOB = render(
    "INSERT INTO blobs VALUES (%s, now_ms$v(), %s) ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms"
)
_SCRUB_STATE = render("SELECT requests, asked_ms, rest_until_ms, now_ms$v() FROM scrub")
_SCRUB_DONE = "UPDATE scrub SET requests = 0, rest_until_ms = %s WHERE requests = %s"
_SCRUB_PREVENTED = "UPDATE scrub SET asked_ms = %s, rest_until_ms = %s"
_LOCK_SCRUB = "SELECT pg_try_advisory_lock(hashtextextended('magent2 scrub ' || current_schema(), 0))"
_UNLOCK_SCRUB = "SELECT pg_advisory_unlock(hashtextextended('magent2 scrub ' || current_schema(), 0))"
_TABLE_BYTES = "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS t (name)"


class Maintained(NamedTuple):
    """What an operation returns, and what watches are told of it."""

    result: object
    versions: Mapping[str, int] = {}  # of the topics that have changed
    listed: bool = False  # whether they were deleted
    erased: bool = False  # whether content of records was removed
    left_bytes: int = 0  # of tables that are too large for a scrub


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def trim(connection: Connection, operation: Trim) -> Maintained:
    age_ms = None if operation.max_age_s is None else _ms(operation.max_age_s)
    values = (operation.topic, operation.keep, age_ms, operation.through, operation.limit)
    ((floor, dropped, more, changed, versions),) = rows(connection, _TRIM, values)
    found = dict(zip(changed, versions, strict=True))
    return Maintained(TrimResult(floor, dropped, more), found, erased=bool(dropped))


def compact(connection: Connection, operation: Compact) -> Maintained:
    values = (operation.topic, _ms(operation.min_age_s), operation.after, operation.limit)
    ((dropped, following),) = rows(connection, _COMPACT, values)
    return Maintained(CompactResult(dropped, following))


def erase(connection: Connection, operation: Erase) -> Maintained:
    ((count,),) = rows(connection, _ERASE, (operation.topic, sorted(set(operation.seqs)), operation.forget))
    return Maintained(count, erased=True)


def delete(connection: Connection, operation: Delete) -> Maintained:
    values = (sorted(set(operation.topics)), operation.conversation, operation.scrub)
    ((changed, versions),) = rows(connection, _DELETE, values)
    return Maintained(None, dict(zip(changed, versions, strict=True)), listed=True, erased=True)


def expire(connection: Connection, operation: Expire) -> Maintained:
    values = (sorted(operation.topics), operation.conversation, _ms(operation.idle_s), operation.dry_run)
    ((expired, changed, versions),) = rows(connection, _EXPIRE, values)
    found = dict(zip(changed, versions, strict=True))
    return Maintained(expired, found, listed=True, erased=bool(found))


def put_blob(connection: Connection, operation: PutBlob) -> Maintained:
    connection.execute(_PUT_BLOB, (operation.name, operation.data))
    return Maintained(operation.name)


def sweep_blobs(connection: Connection, operation: SweepBlobs) -> Maintained:
    ((count,),) = rows(connection, _SWEEP, (_ms(operation.min_age_s), operation.limit, operation.dry_run))
    return Maintained(count)


# --- scrubs ---


@dataclass(frozen=True, slots=True)
class ScrubWait(Operation[float | None]):
    """Return the seconds until a scrub is due; `None` if none is needed."""


def scrub_wait(connection: Connection, _operation: ScrubWait) -> Maintained:
    state, now_ms = _scrub_state(connection)
    return Maintained(state.wait_s(now_ms))


def _scrub_state(connection: Connection) -> tuple[ScrubState, int]:
    """Return what the log knows of the next scrub, and the time by which it is due."""
    ((requests, asked_ms, rest_until_ms, now_ms),) = rows(connection, _SCRUB_STATE)
    return ScrubState(requests, asked_ms, rest_until_ms), int(now_ms)


def scrub(connection: Connection, operation: Scrub) -> Maintained:
    """Rewrite the tables that have held deleted content. Its result is whether no copy is left in them.

    VACUUM makes the space of deleted rows free, but leaves their bytes in it until new rows overwrite them. Only VACUUM
    FULL writes the tables anew. It locks them, so large ones are left to `any_size`. A scrub that was prevented is due
    again after `SCRUB_CHECK_S`, in whichever process looks first.
    """
    ((is_locked,),) = rows(connection, _LOCK_SCRUB)
    if not is_locked:
        return Maintained(False)
    try:
        state, began_ms = _scrub_state(connection)
        if not state.requests and not operation.any_size:
            return Maintained(True)
        ((size_bytes,),) = rows(connection, _TABLE_BYTES, (list(SCRUBBED_TABLES),))
        if size_bytes > SCRUB_MAX_BYTES and not operation.any_size:
            connection.execute(_SCRUB_PREVENTED, (began_ms, began_ms + round(SCRUB_CHECK_S * 1000)))
            return Maintained(False, left_bytes=size_bytes)
        is_clean = _rewrite_tables(connection)
        _, now_ms = _scrub_state(connection)
        if is_clean:
            rest_until_ms = ScrubState.done(now_ms, now_ms - began_ms).rest_until_ms
            connection.execute(_SCRUB_DONE, (rest_until_ms, state.requests))
        else:
            connection.execute(_SCRUB_PREVENTED, (now_ms, now_ms + round(SCRUB_CHECK_S * 1000)))
        return Maintained(is_clean)
    finally:
        rows(connection, _UNLOCK_SCRUB)


def _rewrite_tables(connection: Connection) -> bool:
    """Write the tables anew; return whether all deleted rows are gone.

    A row that an open transaction may still see is copied, also if that transaction only reads other tables. And VACUUM
    leaves out tables that the user does not own, with a warning only. So its report is read, which begins with the
    number of deleted rows that were kept. The report is in the language of the server, the number is not.
    """
    details: list[str] = []

    def note(report: Diagnostic) -> None:
        if report.message_detail is not None:
            details.append(report.message_detail)

    connection.add_notice_handler(note)
    reply_timeout_s, connection.reply_timeout_s = connection.reply_timeout_s, None
    try:
        connection.execute(f"SET statement_timeout = 0; SET lock_timeout = {SCRUB_LOCK_MS}")
        for table in SCRUBBED_TABLES:
            connection.execute(f"VACUUM (FULL, VERBOSE) {table}")
    except errors.LockNotAvailable:
        return False  # all later operations wait behind VACUUM, so it does not wait for a long reader
    finally:
        connection.remove_notice_handler(note)
        connection.reply_timeout_s = reply_timeout_s
        connection.execute(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}; SET lock_timeout = 0")
    return len(details) == len(SCRUBBED_TABLES) and all(re.match(r"0\D", detail) for detail in details)


MAINTENANCE: dict[type[AnyOperation], Callable[[Connection, Any], Maintained]] = {
    Trim: trim,
    Compact: compact,
    Erase: erase,
    Delete: delete,
    Expire: expire,
    PutBlob: put_blob,
    SweepBlobs: sweep_blobs,
    Scrub: scrub,
    ScrubWait: scrub_wait,
}
