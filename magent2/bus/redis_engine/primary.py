"""The server of a log: finds the primary, through Sentinels if the URL names them, and checks every new connection."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import hiredis

from magent2.bus.redis_engine.connection import BlockingConnection, ServerAddress, pack
from magent2.bus.redis_engine.epoch import check_epoch
from magent2.bus.redis_engine.errors import is_missing_function, is_not_primary, is_transient
from magent2.bus.redis_engine.exchanges import Keyspace
from magent2.bus.redis_engine.functions import Exchange, load_library
from magent2.bus.urls import split_bus_url
from magent2.errors import SettingsError, StorageError, StorageUnwritable

log = logging.getLogger(__name__)

REPLICAS_MAX = 16  # the largest N of `?wait=N`
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
SENTINEL_TIMEOUT_S = 1.0  # for a Sentinel to answer; then the next one is asked
SENTINELS_MAX = 16
_SENTINEL_FORM = "redis+sentinel://host1:26379,host2:26379/name/0"


class _ErrorReply(StorageError):
    """An error reply during the check of a new connection."""


@dataclass(frozen=True, slots=True)
class SentinelGroup:
    """Sentinels that know the address of a primary by its name."""

    sentinels: list[ServerAddress]  # the one that answered last comes first
    primary_name: str
    server: ServerAddress  # how to connect to the primary, with a placeholder as its address

    def __str__(self) -> str:
        return f"{self.primary_name} of the Sentinels {','.join(map(str, self.sentinels))}"

    @classmethod
    def parse(cls, url: str) -> SentinelGroup:
        """Read a URL. Its user and password are those of the Redis servers.

        The Sentinels may have a login of their own: `sentinel_username` and `sentinel_password` in the query. With
        `rediss+sentinel` all connections use TLS. Raises `SettingsError`.
        """
        parts = split_bus_url(url)
        scheme = SENTINEL_SCHEMES[parts.scheme]
        login, _, hosts = parts.netloc.rpartition("@")
        name, _, db = parts.path.removeprefix("/").partition("/")
        options = dict(parse_qsl(parts.query))
        if not name:
            raise SettingsError(f"the URL does not say which primary; name it after the Sentinels: {_SENTINEL_FORM}")
        if db and not (db.isascii() and db.isdecimal()):
            raise SettingsError(f"{db[:40]!r} is not the number of a database: {_SENTINEL_FORM}")
        if not 0 < len(hosts.split(",")) <= SENTINELS_MAX:
            raise SettingsError(f"name 1 to {SENTINELS_MAX} Sentinels: {_SENTINEL_FORM}")
        tls = urlencode({option: text for option, text in options.items() if option.startswith("ssl_")})
        server = ServerAddress.parse(f"{scheme}://{login}{'@' if login else ''}primary:6379/{db or 0}?{tls}")
        sentinels = [_sentinel(scheme, host, tls, options) for host in hosts.split(",")]
        return cls(sentinels, unquote(name), server)

    def find(self) -> ServerAddress:
        """Ask the Sentinels for the address of the primary. Raises `OSError` if none of them knows it."""
        failures: list[str] = []
        for sentinel in tuple(self.sentinels):
            try:
                found = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary_name)
            except OSError as error:
                failures.append(f"{sentinel}: {error}")
                continue
            except StorageUnwritable as error:
                raise StorageUnwritable(
                    f"{error}; {sentinel} is a Sentinel, its login is"
                    " ?sentinel_username=NAME&sentinel_password=PASSWORD in the URL"  # pragma: allowlist secret
                ) from None
            if not found:
                failures.append(f"{sentinel} knows no primary {self.primary_name!r}")
                continue
            self.sentinels.sort(key=lambda other: other is not sentinel)
            host, port = (part.decode() if isinstance(part, bytes) else str(part) for part in found)
            options = {**self.server.options, "host": host, "port": int(port)}
            return replace(self.server, name=f"{host}:{port}", options=options)
        raise OSError("; ".join(failures))


def _sentinel(scheme: str, host: str, tls: str, options: dict[str, str]) -> ServerAddress:
    parts: SplitResult = urlsplit(f"//{host}")
    try:
        port = parts.port or SENTINEL_PORT
    except ValueError as error:
        raise SettingsError(f"not a host and port of a Sentinel: {host[:80]!r} ({error})") from None
    name = parts.hostname or "localhost"
    address = ServerAddress.parse(f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}?{tls}")
    given = (name for name in ("username", "password") if f"sentinel_{name}" in options)
    login: dict[str, object] = {name: options[f"sentinel_{name}"] for name in given}
    kept = {key: value for key, value in address.options.items() if key != "db"}  # Sentinels have no databases
    return replace(address, options={**kept, **login}, timeout_s=SENTINEL_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class LogServer:
    """The primary that holds a log, wherever it is now."""

    where: ServerAddress | SentinelGroup
    keyspace: Keyspace = field(repr=False)
    replicas: int = 0  # that must have a write before it is acknowledged: `?wait=N`

    @classmethod
    def parse(cls, url: str, prefix: str, payload_max_bytes: int) -> LogServer:
        """Read the URL of a server or of Sentinels. Raises `SettingsError`."""
        parts = split_bus_url(url)
        by_sentinel = parts.scheme in SENTINEL_SCHEMES
        where = SentinelGroup.parse(url) if by_sentinel else ServerAddress.parse(url)
        replicas = dict(parse_qsl(parts.query, keep_blank_values=True)).get("wait", "0")
        if not (replicas.isascii() and replicas.isdecimal()) or int(replicas) > REPLICAS_MAX:
            raise SettingsError(f"wait={replicas[:40]} in the URL is not a number of replicas from 0 to {REPLICAS_MAX}")
        return cls(where, Keyspace(prefix, payload_max_bytes, by_sentinel=by_sentinel), int(replicas))

    def __str__(self) -> str:
        return str(self.where)

    def open(self) -> socket.socket:
        """Connect to the primary, check that it is one and which epoch its log has, and return the socket.

        Raises `OSError` if that is worth another attempt, and our errors if the server refuses us.
        """
        address = self.where.find() if isinstance(self.where, SentinelGroup) else self.where
        opened = address.open()
        try:
            self._check(BlockingConnection(opened))
        except BaseException:
            opened.close()
            raise
        return opened

    def _check(self, connection: BlockingConnection) -> None:
        """Check the epoch, before anything else uses the connection. A replica refuses the function: it writes.

        What else a server refuses is reported by the operations that need it. The epoch is unknown then, and no
        function that writes accepts the caller before it has checked again.
        """
        try:
            try:
                _run(connection, check_epoch(self.keyspace))
            except _ErrorReply as error:
                if not is_missing_function(str(error)):
                    raise
                _run(connection, load_library(self.keyspace.library))
                _run(connection, check_epoch(self.keyspace))
        except _ErrorReply as error:
            text = str(error)
            if is_not_primary(text) or (is_transient(text) and not text.startswith("NOREPLICAS")):
                raise OSError(text) from None
            self.keyspace.epoch.forget()


def _run(connection: BlockingConnection, exchange: Exchange[None]) -> None:
    """Execute an exchange on a connection that is not in use yet."""
    try:
        command = next(exchange)
        while True:
            reply = connection.exchange(pack(command))
            if isinstance(reply, hiredis.ReplyError):
                command = exchange.throw(_ErrorReply(str(reply)))
            else:
                command = exchange.send(reply)
    except StopIteration:
        return
