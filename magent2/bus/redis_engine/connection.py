"""A connection to the server: where it is, how to open one, and one that blocks its thread."""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any

import hiredis
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url

from magent2.bus.redis_engine.errors import translate
from magent2.bus.redis_engine.functions import Command, Reply
from magent2.errors import SettingsError

DEFAULT_PORT = 6379
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 15.0  # a server that is silent for longer is taken for lost
RECEIVE_BYTES = 65_536
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 15, 5, 3
CLIENT_NAME = "magent2"

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def pack(command: Command) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server is and how to get in. The password does not print."""

    host: str
    port: int
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        try:
            parts: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise SettingsError(f"not a Redis URL, use redis://host:6379/0 ({error})") from None
        kind = parts.get("connection_class")
        tls = {name: value for name, value in parts.items() if name.startswith("ssl_")}
        return cls(
            host=parts.get("host") or "localhost",
            port=parts.get("port") or DEFAULT_PORT,
            path=parts.get("path") if kind is UnixDomainSocketConnection else None,
            db=int(parts.get("db") or 0),
            username=parts.get("username"),
            password=parts.get("password"),
            tls=tls if kind is SSLConnection else None,
        )

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def open(self) -> socket.socket:
        """A socket that the server has let in; it blocks, with timeouts."""
        sock = socket.socket(socket.AF_UNIX) if self.path else None
        if sock is None:
            sock = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT_S)
            _keep_alive(sock)
        try:
            sock.settimeout(CONNECT_TIMEOUT_S)
            if self.path:
                sock.connect(self.path)
            if self.tls is not None:
                sock = _context(self.tls).wrap_socket(sock, server_hostname=self.host)
            self._greet(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _greet(self, sock: socket.socket) -> None:
        commands: list[Command] = []
        if self.password is not None:
            commands.append(("AUTH", *([self.username] if self.username else []), self.password))
        if self.db:
            commands.append(("SELECT", self.db))
        commands.append(("CLIENT", "SETNAME", CLIENT_NAME))
        reader = hiredis.Reader()
        for command in commands:
            reply = exchange(sock, reader, pack(command))
            if isinstance(reply, hiredis.ReplyError) and command[0] != "CLIENT":
                raise translate(str(reply), str(self))


def _keep_alive(sock: socket.socket) -> None:
    """So that a server that is gone without a word is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    """TLS as the URL says, by the names that redis-py has for it."""
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"), cadata=options.get("ssl_ca_data")
    )
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in _VERIFY:
        raise SettingsError(f"ssl_cert_reqs must be one of {', '.join(_VERIFY)}, not {str(verify)[:40]!r}")
    context.check_hostname = verify == "required" and str(options.get("ssl_check_hostname", True)) != "False"
    context.verify_mode = _VERIFY[verify]
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))
    return context


def exchange(sock: socket.socket, reader: hiredis.Reader, packed: bytes) -> Reply:
    """Send a command and wait for its reply. An `OSError` leaves open whether the server ran it."""
    sock.sendall(packed)
    reply = reader.gets()
    while reply is False:
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        reader.feed(data)
        reply = reader.gets()
    return reply


class BlockingConnection:
    """One connection for one thread at a time."""

    __slots__ = ("_reader", "_socket")

    def __init__(self, server: ServerAddress) -> None:
        self._socket = server.open()
        self._socket.settimeout(None)
        # Timeouts of the kernel: those of Python cost a system call more per send and receive.
        timeout = struct.pack("ll", int(REPLY_TIMEOUT_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._reader = hiredis.Reader()

    def exchange(self, packed: bytes) -> Reply:
        return exchange(self._socket, self._reader, packed)

    def close(self) -> None:
        self._socket.close()
