"""Writes that are acknowledged once replicas have them: `?wait=N` in the URL of the bus."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import cache

import hiredis

from magent2.bus.redis_engine.connection import pack
from magent2.bus.redis_engine.functions import Reply
from magent2.bus.redis_engine.pipeline import PipelinedConnection, ReplyFuture
from magent2.bus.redis_engine.primary import LogServer
from magent2.errors import Magent2Error, NotReplicated

WAIT_TIMEOUT_S = 5.0  # for the replicas to confirm a batch; shorter than REPLY_TIMEOUT_S

_WRITES = frozenset({b"FCALL", b"HSET", b"HSETNX"})  # the commands of exchanges that change the log
_HEAD_BYTES = 32  # of a packed command: number of arguments, size of the name, name


def is_write(packed: bytes) -> bool:
    """Whether a packed command may change the log."""
    return packed[:_HEAD_BYTES].split(b"\r\n", 3)[2] in _WRITES


@cache
def wait_command(replicas: int) -> bytes:
    return pack(("WAIT", replicas, round(WAIT_TIMEOUT_S * 1000)))


def not_replicated(server: str, needed: int, replicas: int) -> NotReplicated:
    return NotReplicated(
        f"the primary of Redis at {server} has the write, but {replicas} of {needed} replicas have confirmed it within"
        f" {WAIT_TIMEOUT_S:g} s; check the replicas, then write it again: a repeat has no further effect"
    )


class ReplicatedConnection(PipelinedConnection):
    """A pipelined connection that acknowledges writes once enough replicas have them.

    The commands of one flush are a batch. A batch with writes ends with one WAIT, which the server answers when the
    replicas have everything before it. Replies to writes are held until then. Meanwhile the server does not read from
    this connection, so further commands gather for the next batch.
    """

    def __init__(
        self, server: LogServer, opener: Executor, loop: asyncio.AbstractEventLoop, retry_for_s: float
    ) -> None:
        super().__init__(server, opener, loop, retry_for_s)
        self._batch = 0  # commands of the current batch whose replies have not come
        self._waits = False  # a WAIT follows them
        self._held: list[tuple[bytes, ReplyFuture, Reply]] = []  # replies to writes of the current batch

    def _flush(self) -> None:
        if self._waits or self._socket is None or not self._out or self._unsent:
            return
        self._begin_batch(self._out)
        super()._flush()

    def _begin_batch(self, commands: list[bytes]) -> None:
        """Count the commands of a batch, and add the WAIT if it needs one."""
        self._batch += len(commands)
        if any(map(is_write, commands)):
            self._waits = True
            commands.append(wait_command(self.server.replicas))

    def received(self, reply: Reply) -> None:
        if self._batch == 0:
            self._waited(reply)
            return
        packed, future = self._waiting[0]
        if isinstance(reply, hiredis.ReplyError) or not is_write(packed):
            super().received(reply)
        else:
            self._waiting.popleft()
            self._replies += 1
            self._held.append((packed, future, reply))
        self._batch -= 1

    def _waited(self, reply: Reply) -> None:
        """Handle the reply to a WAIT: the number of replicas that have the batch."""
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionResetError(str(reply))
        self._replies += 1
        held, self._held, self._waits = self._held, [], False
        for packed, future, result in held:
            self._waiting_bytes -= len(packed)
            if future.done():
                continue
            if reply >= self.server.replicas:
                future.set_result(result)
            else:
                future.set_exception(not_replicated(str(self.server), self.server.replicas, reply))
        self._release_senders()
        self._flush()

    def connected(self) -> bytes:
        commands = [packed for packed, _ in self._waiting]
        self._begin_batch(commands)
        return b"".join(commands)

    def disconnected(self) -> bool:
        self._abandon_batch()
        return super().disconnected()

    def gave_up(self, error: Magent2Error) -> None:
        self._abandon_batch()
        super().gave_up(error)

    def _abandon_batch(self) -> None:
        """Put the commands whose replies are held back in front: they were not acknowledged."""
        self._waiting.extendleft((packed, future) for packed, future, _ in reversed(self._held))
        self._batch, self._waits, self._held = 0, False, []
