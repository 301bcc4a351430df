"""Connections to the server: the address, opening, and what is checked once for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_loads

from magent2.errors import SettingsError, UnsupportedServer

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SERVER_VERSION_MIN = 150_000
PREFIX_MAX_BYTES = 63  # the longest name of a schema
CONNECT_TIMEOUT_S = 5
APPLICATION_NAME = "magent2"
# Keepalives find a server whose machine has gone away within 30 s; without them that takes hours.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": APPLICATION_NAME,
}
# All statements of the engine are lookups by index. Plans that were made while a table was empty would read all of it.
_SETTINGS = (
    "SET client_min_messages = warning; SET jit = off; SET plan_cache_mode = force_generic_plan;"
    " SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;"
    " SET default_transaction_isolation = 'read committed'; SET statement_timeout = {statement_timeout};"
    " SET lock_timeout = 0; SET idle_in_transaction_session_timeout = {statement_timeout}"
)
STATEMENT_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the log is: parameters of libpq, and the schema."""

    conninfo: str
    schema: str
    shown: str  # without a password

    @classmethod
    def parse(cls, url: str, prefix: str) -> ServerAddress:
        if not 0 < len(prefix.encode()) <= PREFIX_MAX_BYTES or not prefix.isprintable() or prefix.startswith("pg_"):
            raise SettingsError(
                f"invalid prefix {prefix[:80]!r}: it names a schema, so use 1 to {PREFIX_MAX_BYTES} bytes of printable"
                " characters, not beginning with pg_"
            )
        try:
            found = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise SettingsError(f"invalid PostgreSQL URL: {str(error).strip()}") from error
        chosen = {**_DEFAULTS, **found}
        if "," in str(found.get("host", "")) and "target_session_attrs" not in found:
            chosen["target_session_attrs"] = "read-write"
        place = f"{chosen.get('host', 'localhost')}:{chosen.get('port', 5432)}/{chosen.get('dbname', '')}"
        return cls(make_conninfo("", **chosen), prefix, place)

    def __str__(self) -> str:
        return self.shown

    def connect(self) -> Connection:
        """Open a connection to the primary, and check what cannot be used."""
        connection = psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=2)
        try:
            set_json_loads(orjson.loads, connection)
            self._check(connection)
            settings = sql.SQL(_SETTINGS).format(statement_timeout=STATEMENT_TIMEOUT_MS)
            connection.execute(settings)
            connection.execute(sql.SQL("SET search_path = {}, pg_catalog").format(sql.Identifier(self.schema)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: Connection) -> None:
        if connection.info.server_version < SERVER_VERSION_MIN:
            raise UnsupportedServer(
                f"PostgreSQL at {self} is version {connection.info.server_version // 10_000}; use 15 or newer"
            )
        row = connection.execute("SELECT pg_backend_pid(), current_setting('server_encoding')").fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            raise UnsupportedServer(
                f"a connection pooler such as PgBouncer answers at {self}; it does not deliver notifications, so"
                " connect to PostgreSQL itself"
            )
        if row[1] != "UTF8":
            raise UnsupportedServer(
                f"the database at {self} has the encoding {row[1]}; create one with ENCODING 'UTF8'"
            )
