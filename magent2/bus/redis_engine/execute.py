"""Running exchanges with the server: on a thread that blocks, or on an event loop. The same decisions for both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TypeVar

import hiredis

from magent2.bus.redis_engine.connection import BlockingConnection, ServerAddress, pack
from magent2.bus.redis_engine.errors import (
    FIRST_CONTACT_S,
    is_transient,
    is_unknown_script,
    retry_delays,
    translate,
    unavailable,
)
from magent2.bus.redis_engine.functions import Command, Exchange, Reply, script_of
from magent2.bus.redis_engine.pipeline import CLOSED, PipelinedConnection
from magent2.errors import BusUnavailable, Magent2Error

R = TypeVar("R")

IDLE_CONNECTIONS_MAX = 16  # connections kept for threads


def remedy(command: Command, error: hiredis.ReplyError, server: ServerAddress) -> Command | None:
    """What to send before the command is tried again; `None` when waiting is all there is to do."""
    text = str(error)
    if is_unknown_script(text):
        return ("SCRIPT", "LOAD", script_of(command).source)
    if is_transient(text):
        return None
    raise translate(text, str(server))


class ConnectionPool:
    """Exchanges on the calling thread, over as many connections as there are threads at it."""

    def __init__(self, server: ServerAddress, retry_for_s: float) -> None:
        self._server = server
        self._retry_for_s = retry_for_s
        self._idle: list[BlockingConnection] = []
        self._was_connected = False
        self._closed = False

    def run(self, exchange: Exchange[R]) -> R:
        try:
            command = next(exchange)
            while True:
                try:
                    reply = self._execute(command)
                except Magent2Error as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(reply)
        except StopIteration as end:
            result: R = end.value
            return result

    def _execute(self, command: Command) -> Reply:
        packed = pack(command)
        reply = self._deliver(packed)
        if isinstance(reply, hiredis.ReplyError):
            return self._insist(command, packed, reply)
        return reply

    def _insist(self, command: Command, packed: bytes, reply: Reply) -> Reply:
        for pause in retry_delays(self._retry_for_s):
            before = remedy(command, reply, self._server)
            if before is None:
                time.sleep(pause)
            else:
                self._deliver(pack(before))
            reply = self._deliver(packed)
            if not isinstance(reply, hiredis.ReplyError):
                return reply
        raise translate(str(reply), str(self._server))

    def _deliver(self, packed: bytes) -> Reply:
        """A reply, over another connection if one fails: what is sent twice happens once."""
        attempts: Iterator[float] | None = None
        while True:
            try:
                return self._try(packed)
            except (OSError, hiredis.ProtocolError) as error:
                self._drop_idle()
                if attempts is None:
                    attempts = retry_delays(self._retry_for_s if self._was_connected else FIRST_CONTACT_S)
                pause = next(attempts, None)
                if pause is None:
                    raise unavailable(str(self._server), error) from error
                time.sleep(pause)

    def _try(self, packed: bytes) -> Reply:
        connection = self._take()
        try:
            reply = connection.exchange(packed)
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return reply

    def _take(self) -> BlockingConnection:
        if self._closed:
            raise BusUnavailable(CLOSED)
        try:
            return self._idle.pop()
        except IndexError:
            connection = BlockingConnection(self._server)
            self._was_connected = True
            return connection

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self._drop_idle()


async def run_on(connection: PipelinedConnection, exchange: Exchange[R], retry_for_s: float) -> R:
    """`ConnectionPool.run` for an event loop."""
    try:
        command = next(exchange)
        while True:
            try:
                if connection.is_full:
                    await connection.room()
                reply = await connection.send(pack(command))
                if isinstance(reply, hiredis.ReplyError):
                    reply = await _insist_on(connection, command, reply, retry_for_s)
            except Magent2Error as error:
                command = exchange.throw(error)
            else:
                command = exchange.send(reply)
    except StopIteration as end:
        result: R = end.value
        return result


async def _insist_on(connection: PipelinedConnection, command: Command, reply: Reply, retry_for_s: float) -> Reply:
    for pause in retry_delays(retry_for_s):
        before = remedy(command, reply, connection.server)
        if before is None:
            await asyncio.sleep(pause)
        else:
            await connection.send(pack(before))
        reply = await connection.send(pack(command))
        if not isinstance(reply, hiredis.ReplyError):
            return reply
    raise translate(str(reply), str(connection.server))
