"""The address of a server, how to open a connection to it, and the blocking connection that threads use."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from magent2.bus.redis_engine.errors import refused_login, refused_permission, translate
from magent2.bus.redis_engine.functions import Command, Reply
from magent2.errors import SettingsError

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 15.0  # a server that is silent for longer is considered lost
RECEIVE_BYTES = 65_536
CLIENT_NAME = "magent2"
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # finds a lost server within 30 s
_URL_PARTS = frozenset(("host", "port", "path", "db", "username", "password"))
_TCP_DEFAULTS: dict[str, object] = {
    "host": "localhost",
    "port": 6379,
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
    },
}


def pack(command: Command) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is and how to log in, from a URL. redis-py reads the URL and makes the connections."""

    name: str  # for messages: host and port, or the path of the socket; without user and password
    connection_class: Callable[..., Any] = field(repr=False)  # of redis-py, which has no types for it
    options: Mapping[str, object] = field(repr=False)
    timeout_s: float = CONNECT_TIMEOUT_S

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read a URL. Options in its query other than `db` and `ssl_*` are ignored."""
        try:
            parts: dict[str, object] = dict(parse_url(url))  # type: ignore[no-untyped-call]
            kind = parts.get("connection_class", Connection)
            options = {name: value for name, value in parts.items() if name in _URL_PARTS}
            if kind is SSLConnection:
                options |= {name: value for name, value in parts.items() if name.startswith("ssl_")}
            if kind is UnixDomainSocketConnection:
                address = cls(str(options.get("path")), UnixDomainSocketConnection, options)
            else:
                options = {**_TCP_DEFAULTS, **options}
                tcp = SSLConnection if kind is SSLConnection else Connection
                address = cls(f"{options['host']}:{options['port']}", tcp, options)
            address._connection()  # refuses options that cannot be used; contacts no server
        except (ValueError, TypeError, RedisError) as error:
            raise SettingsError(f"not a Redis URL, use redis://host:6379/0 ({error})") from None
        return address

    def __str__(self) -> str:
        return self.name

    def _connection(self) -> Any:
        # RESP2, because the engine reads replies as lists. No retries, because the callers of `open` retry. No driver
        # info, because it takes two more round trips per connection; CLIENT LIST shows the client name instead.
        return self.connection_class(
            **self.options,
            socket_connect_timeout=self.timeout_s,
            socket_timeout=self.timeout_s,
            protocol=2,
            driver_info=None,
            retry=Retry(NoBackoff(), 0),
        )

    def open(self) -> socket.socket:
        """Connect, with TLS and AUTH and SELECT as the URL says, and return the socket, in blocking mode.

        redis-py does all of this. Then the socket is taken from its connection object: redis-py has no public way to do
        so, therefore `_sock` (tests/unit/bus/test_redis_connection.py fails when redis-py renames it).
        Raises `OSError` if the server cannot be reached, which is worth another attempt, and our errors if it refuses.
        """
        connection = self._connection()
        with self._our_errors():
            connection.connect()
            with suppress(ResponseError):  # the name is a help for operators; a user without this right works too
                connection.send_command("CLIENT", "SETNAME", CLIENT_NAME)
                connection.read_response()
        opened: socket.socket = connection._sock
        connection._sock = None  # else the connection object would close the socket when it is collected
        return opened

    def ask(self, *command: str) -> Reply:
        """Send one command over a connection of its own and return the reply. Raises as `open` does."""
        connection = self._connection()
        try:
            with self._our_errors():
                connection.connect()
                connection.send_command(*command)
                return connection.read_response()
        finally:
            connection.disconnect()

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError as error:
            raise refused_login(self.name, str(error)) from None
        except NoPermissionError as error:
            raise refused_permission(self.name, str(error)) from None
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise OSError(str(error)) from error
        except RedisError as error:
            raise translate(str(error), self.name) from None


class BlockingConnection:
    """One connection for one thread at a time.

    Written by hand on the socket that redis-py opened: a command takes 22 to 27 µs of processor time, and 30 to 43 µs
    with `send_packed_command` and `read_response` of redis-py 8.1 (XADD of 500 bytes). Error replies also keep their
    codes, like those of the pipelined connection.
    """

    __slots__ = ("_reader", "_socket")

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._socket.settimeout(None)
        # Timeouts of the kernel: those of Python take another system call per send and receive.
        timeout = struct.pack("ll", int(REPLY_TIMEOUT_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._reader = hiredis.Reader()

    def exchange(self, packed: bytes) -> Reply:
        """Send a command and wait for its reply. After an `OSError` it is unknown whether the server has run it."""
        self._socket.sendall(packed)
        return self.next_reply()

    def next_reply(self) -> Reply:
        reply = self._reader.gets()
        while reply is False:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
            reply = self._reader.gets()
        return reply

    def close(self) -> None:
        self._socket.close()
