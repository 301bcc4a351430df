"""Maintenance of a log: retention, erasing, deleting, blobs, scrubs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from magent2.bus.operations import AnyOperation, Compact, Delete, Erase, Expire, PutBlob, Scrub, SweepBlobs, Trim
from magent2.bus.postgres_engine.connection import STATEMENT_TIMEOUT_MS, Connection
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import rows
from magent2.bus.records import CompactResult, TrimResult
from magent2.bus.scrub import ScrubState

SCRUB_MAX_BYTES = 256 << 20  # larger tables are rewritten only when asked for: all operations wait meanwhile
SCRUBBED_TABLES = ("records", "old_ids", "topics", "lanes", "mail", "blobs", "blob_refs")

_TRIM = render("SELECT * FROM trim$v(%s, %s::bigint, %s::bigint, %s::bigint, %s::bigint)")
_COMPACT = render("SELECT * FROM compact$v(%s, %s::bigint, %s::bigint, %s::bigint)")
_ERASE = render("SELECT erase$v(%s, %s::bigint[], %s)")
_DELETE = render("SELECT * FROM delete$v(%s::text[], %s)")
_EXPIRE = render("SELECT * FROM expire$v(%s::text[], %s, %s::bigint, %s)")
_SWEEP = render("SELECT sweep_blobs$v(%s::bigint, %s::bigint, %s)")
_PUT_BLOB = render(
    "INSERT INTO blobs VALUES (%s, now_ms$v(), %s) ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms"
)
_SCRUB_STATE = render("SELECT requests, asked_ms, rest_until_ms, now_ms$v() FROM scrub")
_SCRUB_DONE = "UPDATE scrub SET requests = 0, rest_until_ms = %s WHERE requests = %s"
_LOCK_SCRUB = "SELECT pg_try_advisory_lock(hashtextextended('magent2 scrub ' || current_schema(), 0))"
_UNLOCK_SCRUB = "SELECT pg_advisory_unlock(hashtextextended('magent2 scrub ' || current_schema(), 0))"
_TABLE_BYTES = "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS t (name)"


class Maintained(NamedTuple):
    """What an operation returns, and what watches are told of it."""

    result: object
    versions: Mapping[str, int] = {}  # of the topics that have changed
    listed: bool = False  # whether they were deleted
    erased: bool = False  # whether content of records was removed


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
    ((changed, versions),) = rows(connection, _DELETE, (sorted(set(operation.topics)), operation.conversation))
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


def scrub_state(connection: Connection) -> tuple[ScrubState, int]:
    """Return what the log knows of the next scrub, and the time by which it is due."""
    ((requests, asked_ms, rest_until_ms, now_ms),) = rows(connection, _SCRUB_STATE)
    return ScrubState(requests, asked_ms, rest_until_ms), int(now_ms)


def scrub(connection: Connection, operation: Scrub) -> Maintained:
    """Rewrite the tables that have held deleted content. Its result is whether no copy is left in them.

    VACUUM makes the space of deleted rows free, but leaves their bytes in it until new rows overwrite them. Only VACUUM
    FULL writes the tables anew. It locks them, so large ones are left to `any_size`.
    """
    ((is_locked,),) = rows(connection, _LOCK_SCRUB)
    if not is_locked:
        return Maintained(False)
    try:
        state, began_ms = scrub_state(connection)
        if not state.requests and not operation.any_size:
            return Maintained(True)
        ((size_bytes,),) = rows(connection, _TABLE_BYTES, (list(SCRUBBED_TABLES),))
        is_rewritten = operation.any_size or size_bytes <= SCRUB_MAX_BYTES
        connection.execute("SET statement_timeout = 0")
        for table in SCRUBBED_TABLES:
            connection.execute(f"VACUUM (FULL) {table}" if is_rewritten else f"VACUUM {table}")
        connection.execute(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}")
        if is_rewritten:
            _, now_ms = scrub_state(connection)
            rest_until_ms = ScrubState.done(now_ms, now_ms - began_ms).rest_until_ms
            connection.execute(_SCRUB_DONE, (rest_until_ms, state.requests))
        return Maintained(is_rewritten)
    finally:
        rows(connection, _UNLOCK_SCRUB)


MAINTENANCE: dict[type[AnyOperation], Callable[[Connection, Any], Maintained]] = {
    Trim: trim,
    Compact: compact,
    Erase: erase,
    Delete: delete,
    Expire: expire,
    PutBlob: put_blob,
    SweepBlobs: sweep_blobs,
    Scrub: scrub,
}
