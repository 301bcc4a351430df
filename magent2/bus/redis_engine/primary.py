"""The server of a log: checks every new connection to it before anything else uses it."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field

import hiredis

from magent2.bus.redis_engine.connection import BlockingConnection, ServerAddress, pack
from magent2.bus.redis_engine.epoch import check_epoch
from magent2.bus.redis_engine.errors import is_missing_function, is_not_primary, is_transient
from magent2.bus.redis_engine.exchanges import Keyspace
from magent2.bus.redis_engine.functions import Exchange, load_library
from magent2.errors import StorageError

log = logging.getLogger(__name__)


class _ErrorReply(StorageError):
    """An error reply during the check of a new connection."""


@dataclass(frozen=True, slots=True)
class LogServer:
    """The primary that holds a log, wherever it is now."""

    where: ServerAddress
    keyspace: Keyspace = field(repr=False)

    @classmethod
    def parse(cls, url: str, prefix: str, payload_max_bytes: int) -> LogServer:
        return cls(ServerAddress.parse(url), Keyspace(prefix, payload_max_bytes))

    def __str__(self) -> str:
        return str(self.where)

    def open(self) -> socket.socket:
        """Connect to the primary, check that it is one and which epoch its log has, and return the socket.

        Raises `OSError` if that is worth another attempt, and our errors if the server refuses us.
        """
        opened = self.where.open()
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
    """Execute an exchange on a connection that nobody else uses yet."""
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
