"""Execution of exchanges with the server: on blocking connections, or on the pipelined connection of an event loop.

Both make the same decisions about error replies. Commands may be sent twice, because every operation of the bus has the
same effect once and twice: a lost connection leaves open whether the server has run a command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TypeVar

import hiredis

from magent2.bus.redis_engine.connection import BlockingConnection, pack
from magent2.bus.redis_engine.epoch import check_epoch
from magent2.bus.redis_engine.errors import (
    is_missing_function,
    is_not_primary,
    is_stale_epoch,
    is_transient,
    translate,
    unavailable,
)
from magent2.bus.redis_engine.exchanges import Keyspace
from magent2.bus.redis_engine.functions import Command, Exchange, Reply, load_library
from magent2.bus.redis_engine.pipeline import CLOSED, PipelinedConnection
from magent2.bus.redis_engine.primary import LogServer
from magent2.bus.redis_engine.replication import is_write, not_replicated, wait_command
from magent2.bus.servers import FIRST_CONTACT_S, retry_delays
from magent2.errors import BusUnavailable, Magent2Error

R = TypeVar("R")

IDLE_CONNECTIONS_MAX = 16  # connections kept for the next call of a thread


class ConnectionPool:
    """Executes exchanges on the calling thread. Each thread has a connection to itself during a command."""

    def __init__(self, server: LogServer, retry_for_s: float) -> None:
        self._server = server
        self._keyspace = server.keyspace
        self._retry_for_s = retry_for_s
        self._idle: list[BlockingConnection] = []
        self._was_connected = False
        self._closed = False

    def execute(self, exchange: Exchange[R]) -> R:
        try:
            command = next(exchange)
            while True:
                try:
                    reply = self._send(pack(command))
                    if isinstance(reply, hiredis.ReplyError):
                        reply = self._retry(command, reply)
                except Magent2Error as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(reply)
        except StopIteration as end:
            result: R = end.value
            return result

    def _retry(self, command: Command, reply: Reply) -> Reply:
        """Send a command again after an error reply, while that can help."""
        for delay in retry_delays(self._retry_for_s):
            time.sleep(delay)
            repair = repair_after(reply, command, self._keyspace, str(self._server))
            if repair is not None:
                self.execute(repair)
            command = self._keyspace.with_current_epoch(command)
            reply = self._send(pack(command))
            if not isinstance(reply, hiredis.ReplyError):
                return reply
        raise translate(str(reply), str(self._server))

    def _send(self, packed: bytes) -> Reply:
        """Send a command and return its reply; a connection that fails is replaced by another one."""
        delays: Iterator[float] | None = None
        while True:
            try:
                return self._send_once(packed)
            except (OSError, hiredis.ProtocolError) as error:
                self._drop_idle()
                if delays is None:
                    delays = retry_delays(self._retry_for_s if self._was_connected else FIRST_CONTACT_S)
                delay = next(delays, None)
                if delay is None:
                    raise unavailable(str(self._server), error) from error
                time.sleep(delay)

    def _send_once(self, packed: bytes) -> Reply:
        connection = self._take()
        needed, replicas = self._server.replicas, None
        try:
            if needed and is_write(packed):
                reply = connection.exchange(packed + wait_command(needed))
                replicas = connection.next_reply()
            else:
                reply = connection.exchange(packed)
            if isinstance(reply, hiredis.ReplyError) and is_not_primary(str(reply)):
                raise ConnectionResetError(str(reply))
            if isinstance(replicas, hiredis.ReplyError):
                raise ConnectionResetError(str(replicas))
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        if replicas is not None and replicas < needed and not isinstance(reply, hiredis.ReplyError):
            raise not_replicated(str(self._server), needed, replicas)
        return reply

    def _take(self) -> BlockingConnection:
        if self._closed:
            raise BusUnavailable(CLOSED)
        try:
            return self._idle.pop()
        except IndexError:
            connection = BlockingConnection(self._server.open())
            self._was_connected = True
            return connection

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self._drop_idle()


async def execute_pipelined(connection: PipelinedConnection, keyspace: Keyspace, exchange: Exchange[R]) -> R:
    """Execute an exchange on the connection of an event loop, like `ConnectionPool.execute` on a thread."""
    try:
        command = next(exchange)
        while True:
            try:
                if connection.is_full:
                    await connection.room()
                reply = await connection.send(pack(command))
                if isinstance(reply, hiredis.ReplyError):
                    reply = await _retry_pipelined(connection, keyspace, command, reply)
            except Magent2Error as error:
                command = exchange.throw(error)
            else:
                command = exchange.send(reply)
    except StopIteration as end:
        result: R = end.value
        return result


async def _retry_pipelined(
    connection: PipelinedConnection, keyspace: Keyspace, command: Command, reply: Reply
) -> Reply:
    for delay in retry_delays(connection.retry_for_s):
        await asyncio.sleep(delay)
        repair = repair_after(reply, command, keyspace, str(connection.server))
        if repair is not None:
            await execute_pipelined(connection, keyspace, repair)
        command = keyspace.with_current_epoch(command)
        reply = await connection.send(pack(command))
        if not isinstance(reply, hiredis.ReplyError):
            return reply
    raise translate(str(reply), str(connection.server))


def repair_after(reply: hiredis.ReplyError, command: Command, keyspace: Keyspace, server: str) -> Exchange[None] | None:
    """What has to be done before the next attempt. Raises the error if no further attempt can help.

    The library is missing on a new server, after FUNCTION FLUSH, and after a failover to a server that never had it.
    The epoch is stale if another process has begun one, and unknown if a new connection could not check it.
    """
    text = str(reply)
    if is_missing_function(text):
        return load_library(keyspace.library)
    if is_stale_epoch(text):
        # Of many commands that are refused at once, the first one asks for the epoch.
        return check_epoch(keyspace) if command[4] == keyspace.epoch.text else None
    if is_transient(text):
        return None
    raise translate(text, server)
