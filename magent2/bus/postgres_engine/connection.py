"""Connections to the server: the address, opening, and what is checked once for each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_loads

from magent2.errors import SettingsError, UnsupportedServer

log = logging.getLogger(__name__)

R = TypeVar("R")

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
REPLY_TIMEOUT_S = 70.0  # longer than a statement may take: after this, the server hangs


# With these, a client only ever uses a primary.
_FIND_PRIMARY = ("read-write", "primary")
_FACTS = "SELECT pg_backend_pid(), current_setting('server_encoding'), pg_is_in_recovery()"
_TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that fails if no reply comes for `reply_timeout_s`.

    A server whose disk hangs, or that waits for a synchronous standby, keeps its connections open. Clients have to look
    for another one that was promoted.
    """

    reply_timeout_s: float | None = None

    def wait(self, gen: PQGen[R], *arguments: Any, **options: Any) -> R:
        limited = gen if self.reply_timeout_s is None else _limit(gen, self.reply_timeout_s)
        return super().wait(limited, *arguments, **options)


def _limit(gen: PQGen[R], limit_s: float) -> PQGen[R]:
    """Run the exchange of `gen` for a limited time. psycopg sends 0 when the socket was not ready for 0.1 s."""
    end = time.monotonic() + limit_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise psycopg.OperationalError(f"no reply within {limit_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        result: R = done.value
        return result


class PostgresAddress:
    """Where the log is: parameters of libpq, and the schema.

    With several hosts, `connect` takes the first that is a primary, beginning with the last one used: a host that does
    not answer costs `connect_timeout` seconds. A promotion gives the new primary a higher timeline. Once a connection
    has found it, a primary with a lower one is not used any more: it is an old one that came back, and what it
    acknowledges would be lost.
    """

    def __init__(self, hosts: tuple[str, ...], schema: str, shown: str) -> None:
        self.schema = schema
        self.has_several_hosts = len(hosts) > 1
        self._hosts = hosts  # parameters for each host
        self._shown = shown  # without a password
        self._timeline = 0  # the highest that was found

    @classmethod
    def parse(cls, url: str, prefix: str) -> PostgresAddress:
        if not 0 < len(prefix.encode()) <= PREFIX_MAX_BYTES or not prefix.isprintable() or prefix.startswith("pg_"):
            raise SettingsError(
                f"invalid prefix {prefix[:80]!r}: it names a schema, so use 1 to {PREFIX_MAX_BYTES} bytes of printable"
                " characters, not beginning with pg_"
            )
        try:
            found = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            # What libpq quotes may be a part of the password. The name of an unknown option cannot be.
            reason = str(error).strip()
            shown = reason if "query parameter" in reason else reason.partition('"')[0].strip(" :")
            raise SettingsError(
                f"invalid PostgreSQL URL: {shown}; write it as postgresql://user@host:port/database?option=value, and"
                " special characters such as % and @ in user and password as %25 and %40"
            ) from None
        wanted = found.get("target_session_attrs", _FIND_PRIMARY[0])
        if wanted not in _FIND_PRIMARY:
            raise SettingsError(
                f"target_session_attrs={str(wanted)[:80]} may choose a standby, which does not have the newest records;"
                " leave it out, or use read-write"
            )
        hosts = _split_hosts(found)
        chosen = {**_DEFAULTS, **found}
        if len(hosts) > 1:
            chosen["target_session_attrs"] = wanted
        place = f"{chosen.get('host', 'localhost')}:{chosen.get('port', 5432)}/{chosen.get('dbname', '')}"
        return cls(tuple(make_conninfo("", **{**chosen, **host}) for host in hosts), prefix, place)

    def __str__(self) -> str:
        return self._shown

    def connect(self) -> Connection:
        """Open a connection to the primary, and check what cannot be used."""
        failures: list[psycopg.OperationalError | errors.ReadOnlySqlTransaction] = []
        for conninfo in self._hosts:
            try:
                connection = self._connect_to(conninfo)
                self._hosts = (conninfo, *(other for other in self._hosts if other != conninfo))
                return connection
            except (psycopg.OperationalError, errors.ReadOnlySqlTransaction) as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise type(failures[-1])("; ".join(str(error).strip() for error in failures))

    def _connect_to(self, conninfo: str) -> Connection:
        connection = Connection.connect(conninfo, autocommit=True, prepare_threshold=2)
        try:
            connection.reply_timeout_s = REPLY_TIMEOUT_S
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
        row = connection.execute(_FACTS).fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            raise UnsupportedServer(
                f"a connection pooler such as PgBouncer answers at {self}; it does not deliver notifications, so"
                " connect to PostgreSQL itself"
            )
        if row[1] != "UTF8":
            raise UnsupportedServer(
                f"the database at {self} has the encoding {row[1]}; create one with ENCODING 'UTF8'"
            )
        place = f"{connection.info.host}:{connection.info.port}"
        if row[2]:
            raise errors.ReadOnlySqlTransaction(f"{place} is a standby")
        timeline = _timeline_of(connection)
        if timeline < self._timeline:
            raise errors.ReadOnlySqlTransaction(
                f"{place} is an old primary: it is on timeline {timeline}, and a server on timeline {self._timeline}"
                " was promoted; stop it, and make it a standby of the other one"
            )
        if 0 < self._timeline < timeline:
            log.warning("a standby of the postgres log was promoted", extra={"server": place, "timeline": timeline})
        self._timeline = max(self._timeline, timeline)  # other threads connect at the same time


def _timeline_of(connection: Connection) -> int:
    """Return the timeline of a primary; 0 if its provider does not let users ask."""
    try:
        row = connection.execute(_TIMELINE).fetchone()
    except (errors.FeatureNotSupported, errors.InsufficientPrivilege, errors.UndefinedFunction):
        return 0
    return 0 if row is None else int(row[0])


def _split_hosts(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters in which the hosts of a URL differ, for each host."""
    lists = {name: str(found[name]).split(",") for name in ("host", "hostaddr", "port") if name in found}
    count = max(map(len, lists.values()), default=1)
    if any(len(values) not in (1, count) for values in lists.values()):
        raise SettingsError("invalid PostgreSQL URL: give one port for all hosts, or one for each")
    return [{name: values[index % len(values)] for name, values in lists.items()} for index in range(count)]
