"""The schema of a log: creating it, migrating it, and the functions that this release uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

from psycopg import sql

from magent2 import __version__
from magent2.bus.postgres_engine import maintenance
from magent2.bus.postgres_engine.connection import Connection, PostgresAddress
from magent2.bus.postgres_engine.functions import FUNCTION_NAMES, FUNCTIONS, TABLES
from magent2.bus.records import LogInfo
from magent2.errors import SchemaTooNew, StorageCorrupt

SCHEMA = 1
# Schema n → the function that migrates to n + 1. All steps of one migration share a transaction.
MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {}

_CHECKED_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "synchronous_standby_names", "autovacuum")
_STATE = (
    "SELECT current_setting('server_version'),"
    " (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8 FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'),"
    " count(s), CASE WHEN bool_and(s.sync_state IS NOT NULL) THEN"
    " count(s) FILTER (WHERE s.sync_state IN ('sync', 'quorum')) END FROM pg_stat_replication s"
)


def prepare(connection: Connection, schema: str) -> None:
    """Create the tables and functions of a log, or migrate an older log. Several processes may do so at once."""
    facts = _facts(connection, schema)
    if facts is not None and _schema_of(facts) == SCHEMA and _has_functions(connection, schema):
        return
    with connection.transaction():
        # Held until the end of the transaction: two processes that start at once do not create the same tables.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('magent2 ' || %s, 0))", (schema,))
        facts = _facts(connection, schema)
        if facts is None:
            facts = _create(connection, schema)
        found = _schema_of(facts)
        for number in range(found, SCHEMA):
            MIGRATIONS[number](connection)
        if found < SCHEMA:
            connection.execute("UPDATE meta SET value = %s WHERE key = 'schema'", (str(SCHEMA),))
        if not _has_functions(connection, schema):
            connection.execute(FUNCTIONS.encode())


def _facts(connection: Connection, schema: str) -> dict[str, str] | None:
    """Return what the log says of itself; `None` if there is no log yet."""
    # Not `to_regclass`: it may answer from a cache that does not know yet what another process has created.
    found = (
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'meta'"
    )
    if connection.execute(found, (schema,)).fetchone() is None:
        return None
    # With the name of the schema: without the right to use it, the server would say that there is no such table.
    facts = connection.execute(sql.SQL("SELECT key, value FROM {}").format(sql.Identifier(schema, "meta")))
    return {str(key): str(value) for key, value in facts}


def _has_functions(connection: Connection, schema: str) -> bool:
    """Return whether the functions of this release exist. A person may have dropped them."""
    found = (
        "SELECT count(DISTINCT p.proname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = %s AND p.proname = ANY (%s)"
    )
    return connection.execute(found, (schema, list(FUNCTION_NAMES))).fetchone() == (len(FUNCTION_NAMES),)


def _create(connection: Connection, schema: str) -> dict[str, str]:
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    connection.execute(TABLES.encode())
    facts = {"schema": str(SCHEMA), "log_id": str(uuid.uuid4()), "release": __version__}
    for item in facts.items():
        connection.execute("INSERT INTO meta VALUES (%s, %s)", item)
    return facts


def _schema_of(facts: Mapping[str, str]) -> int:
    if "schema" not in facts:
        raise StorageCorrupt("the schema version is missing from the log; restore a backup")
    found = int(facts["schema"])
    if found > SCHEMA:
        raise SchemaTooNew(f"the log has schema {found}, this release knows {SCHEMA}; upgrade magent2 to open it")
    return found


def log_info(connection: Connection, server: PostgresAddress) -> LogInfo:
    facts = _facts(connection, server.schema) or {}
    warnings = tuple(_warnings(connection, server.has_several_hosts))
    details = tuple(_details(connection, server.schema))
    return LogInfo("postgres", _schema_of(facts), facts["log_id"], facts["release"], warnings, details)


def _details(connection: Connection, schema: str) -> Iterator[str]:
    ((version, size_bytes, standbys, synchronous),) = connection.execute(_STATE, (schema,)).fetchall()
    yield f"PostgreSQL {version}"
    yield f"tables of {size_bytes / 1e6:.1f} MB"
    ((waits_for_scrub,),) = connection.execute("SELECT requests > 0 FROM scrub").fetchall()
    if waits_for_scrub and size_bytes > maintenance.SCRUB_MAX_BYTES:
        yield (
            f"bytes of deleted content stay, as more than {maintenance.SCRUB_MAX_BYTES >> 20} MiB are not rewritten"
            " while in use; see 'magent2 erase --wait'"
        )
    # A user without the rights of a monitor sees that there are standbys, but not of which kind.
    kind = "" if synchronous is None else f" ({synchronous} synchronous)"
    yield f"{standbys} standby servers connected{kind}"


def _warnings(connection: Connection, has_standbys: bool) -> list[str]:
    """Settings under which an acknowledged write can be lost, or the tables grow without end."""
    rows = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(_CHECKED_SETTINGS),))
    found = {str(name): str(setting) for name, setting in rows}
    warnings = [
        f"{name} is off: a crash of the server's machine loses acknowledged messages; set it to on"
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if found.get(name) == "off"
    ]
    if found.get("autovacuum") == "off":
        warnings.append("autovacuum is off: the tables grow with every message; set it to on")
    if has_standbys and not found.get("synchronous_standby_names"):
        warnings.append(
            "synchronous_standby_names is empty, and the URL names several hosts: a promotion loses the acknowledged"
            " messages that the standby did not have, and their numbers are used again; name the standbys in it"
        )
    elif has_standbys and found.get("synchronous_commit") == "local":
        warnings.append(
            "synchronous_commit is local, so it does not wait for the synchronous standby: a promotion loses"
            " acknowledged messages; set it to on"
        )
    return warnings
