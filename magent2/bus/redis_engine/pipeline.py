"""Connections on an event loop: the pipelined connection for commands, and the base that the subscriber shares.

The pipelined connection is written by hand because it is measured to be better. With 64 tasks on one connection a
command takes 7 to 13 µs of this process's processor time; with redis.asyncio (redis-py 8.1, 64 connections) it takes
150 to 180 µs. `make bench-bus` compares publishes with pipelined XADD: `redis_publish_ratio` in docs/benchmarks.md.

It is neither a transport nor a task, but a socket with a reader callback. A loop that is closed early, as in tests and
scripts, therefore leaves nothing pending. Sockets are opened with blocking calls on threads of the bus.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TypeAlias

import hiredis

from magent2.background import log_error
from magent2.bus.redis_engine.connection import RECEIVE_BYTES, REPLY_TIMEOUT_S
from magent2.bus.redis_engine.errors import is_not_primary, unavailable
from magent2.bus.redis_engine.functions import Reply
from magent2.bus.redis_engine.primary import LogServer
from magent2.bus.servers import FIRST_CONTACT_S, retry_delays
from magent2.errors import BusUnavailable, Magent2Error

IN_FLIGHT_MAX = 8192  # commands without a reply; further ones wait in `room`
IN_FLIGHT_MAX_BYTES = 64 << 20
FAULT_PAUSE_S = 1.0  # before connecting again after a reply that could not be handled; the next one may be the same
FLUSH_AT = 16  # commands per write; with more the server would be idle while the loop packs them
CLOSED = "the bus was closed; open another"

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
ReplyFuture: TypeAlias = "asyncio.Future[Reply]"


class LoopConnection(ABC):
    """A connection on an event loop that reconnects by itself. All methods but `close` run on the loop's thread."""

    def __init__(
        self, server: LogServer, opener: Executor, loop: asyncio.AbstractEventLoop, retry_for_s: float
    ) -> None:
        self.loop = loop
        self.server = server
        self.retry_for_s = retry_for_s
        self._opener = opener
        self._socket: socket.socket | None = None
        self._file = -1
        self._reader = hiredis.Reader()
        self._out: list[bytes] = []
        self._unsent = memoryview(b"")
        self._delays: Iterator[float] | None = None  # before the next attempts, while it is connecting
        self._was_connected = False
        self._closed = False

    @abstractmethod
    def received(self, reply: Reply) -> None:
        """Handle a reply."""

    @abstractmethod
    def connected(self) -> bytes:
        """Return what a new connection sends first."""

    @abstractmethod
    def disconnected(self) -> bool:
        """Handle the loss of the connection. Returns whether to reconnect now."""

    @abstractmethod
    def gave_up(self, error: Magent2Error) -> None:
        """Handle the end of all attempts: their time is over, or the server refused us."""

    # --- connecting

    def open(self) -> None:
        if self._delays is None and self._socket is None and not self._closed:
            for_s = self.retry_for_s if self._was_connected else min(FIRST_CONTACT_S, self.retry_for_s)
            self._delays = retry_delays(for_s)
            self._try_again(OSError("not connected"))

    def _try_again(self, error: OSError) -> None:
        delay = next(self._delays, None) if self._delays is not None else None
        if delay is None:
            self._stop_trying(unavailable(str(self.server), error))
        elif delay:
            self.loop.call_later(delay, self._attempt)
        else:
            self._attempt()

    def _attempt(self) -> None:
        if self._closed:
            return
        try:
            self._opener.submit(self._open_socket)
        except RuntimeError:  # the bus was closed and its threads ended
            self._stop_trying(BusUnavailable(CLOSED))

    def _open_socket(self) -> None:
        """Open a socket on a thread of the bus.

        The threads are not those of asyncio's default executor: tools may occupy all of those for minutes, and the bus
        could not reconnect. The result is handed over by hand, because `run_in_executor` would lose the socket when the
        loop is closed meanwhile.
        """
        result: socket.socket | Exception
        try:
            result = self.server.open()
        except Exception as error:  # noqa: BLE001  every error has to reach the loop, or its callers wait for ever
            result = error
        try:
            self.loop.call_soon_threadsafe(self._opened, result)
        except RuntimeError:  # the loop is closed
            if isinstance(result, socket.socket):
                result.close()

    def _opened(self, result: socket.socket | Exception) -> None:
        if isinstance(result, socket.socket):
            try:
                self._attach(result)
            except Exception as error:  # noqa: BLE001  callers wait for the end of these attempts
                log_error("a redis connection cannot be used", error)
                result.close()
                self._detach()
                self._stop_trying(unavailable(str(self.server), repr(error)))
        elif isinstance(result, OSError):
            self._try_again(result)
        elif isinstance(result, Magent2Error):
            self._stop_trying(result)
        else:
            self._stop_trying(unavailable(str(self.server), repr(result)))

    def _stop_trying(self, error: Magent2Error) -> None:
        self._delays = None
        self.gave_up(error)

    def _attach(self, opened: socket.socket) -> None:
        if self._closed:
            opened.close()
            return
        opened.setblocking(False)
        self._socket, self._file = opened, opened.fileno()
        self._reader = hiredis.Reader()
        self._delays = None
        self._was_connected = True
        self.loop.add_reader(self._file, self._readable)
        self._write(memoryview(self.connected()))

    # --- reading and writing

    def write(self, packed: bytes) -> None:
        """Send a command together with all others of this turn of the loop: one system call for many commands."""
        if self._socket is None:
            self.open()  # `connected` then returns what has to be sent
            return
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(packed)
        if len(self._out) == FLUSH_AT:
            self._flush()

    def _flush(self) -> None:
        # While bytes are unsent, commands stay in `_out`: they must not overtake the rest of an earlier write.
        if self._socket is not None and self._out and not self._unsent:
            packed = b"".join(self._out)
            self._out.clear()
            self._write(memoryview(packed))

    def _write(self, data: memoryview) -> None:
        if self._socket is None or not data:
            return
        try:
            sent = self._socket.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError:
            self._lost()
            return
        was_waiting, self._unsent = bool(self._unsent), data[sent:]
        if self._unsent and not was_waiting:
            self.loop.add_writer(self._file, lambda: self._write(self._unsent))
        elif was_waiting and not self._unsent:
            self.loop.remove_writer(self._file)
            self._flush()

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(RECEIVE_BYTES)
            # TLS may have decrypted more than was asked for; the loop is not told of bytes that left the socket.
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(RECEIVE_BYTES)
        except _NOT_NOW:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._reader.feed(data)
        try:
            reply = self._reader.gets()
            while reply is not False:
                self.received(reply)
                reply = self._reader.gets()
        except (hiredis.ProtocolError, ConnectionError):
            self._lost()
        except Exception as error:  # noqa: BLE001  replies belong to commands by their order, which is unknown now
            log_error("a reply of redis cannot be handled; connecting again", error)
            self._detach()
            if self.disconnected():
                self.loop.call_later(FAULT_PAUSE_S, self.open)

    # --- closing

    def _lost(self) -> None:
        self._detach()
        if self.disconnected() and not self._closed:
            self.open()

    def _detach(self) -> None:
        attached, self._socket = self._socket, None
        self._out.clear()
        if attached is None:
            return
        if not self.loop.is_closed():
            self.loop.remove_reader(self._file)
            self.loop.remove_writer(self._file)
        self._unsent = memoryview(b"")
        attached.close()

    def abandon(self) -> None:
        """Close the socket and nothing else, in a child process: the loop belongs to the parent."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """Close the connection, from any thread; the loop may have ended."""
        self._closed = True
        if self.loop.is_closed() or not self.loop.is_running() or on_loop(self.loop):
            self._end()
            return
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop was closed after the check
            self._end()

    def _end(self) -> None:
        self._detach()
        if not self.loop.is_closed():
            self.gave_up(BusUnavailable(CLOSED))


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class PipelinedConnection(LoopConnection):
    """Sends commands without waiting for earlier replies; replies come in the order of the commands.

    `_waiting` holds every command that has no reply yet. When the connection is lost, all of them are sent again, in
    the same order, over the next one. The server may have run some of them: operations of the bus can be repeated.
    """

    def __init__(
        self, server: LogServer, opener: Executor, loop: asyncio.AbstractEventLoop, retry_for_s: float
    ) -> None:
        super().__init__(server, opener, loop, retry_for_s)
        self._waiting: deque[tuple[bytes, ReplyFuture]] = deque()
        self._waiting_bytes = 0
        self._senders: list[asyncio.Future[None]] = []  # that wait until there is room
        self._replies = 0  # so far
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= IN_FLIGHT_MAX or self._waiting_bytes >= IN_FLIGHT_MAX_BYTES

    async def room(self) -> None:
        """Wait until the connection is not full."""
        while self.is_full:
            turn: asyncio.Future[None] = self.loop.create_future()
            self._senders.append(turn)
            await turn

    def send(self, packed: bytes) -> ReplyFuture:
        """Send a command. The future gets its reply, which may be an error reply, or a `BusUnavailable`."""
        if self._closed:
            raise BusUnavailable(CLOSED)
        future: ReplyFuture = self.loop.create_future()
        self._waiting.append((packed, future))
        self._waiting_bytes += len(packed)
        self.write(packed)
        if self._watchdog is None:
            self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._check_server, self._replies)
        return future

    def _check_server(self, replies_before: int) -> None:
        """Drop the connection if commands wait and the server has not replied at all since the last check.

        One timer serves all commands: a timer per command would take longer than the rest of `send`.
        """
        self._watchdog = None
        if self._waiting and not self._closed:
            self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._check_server, self._replies)
            if self._replies == replies_before and self._socket is not None:
                self._lost()

    def received(self, reply: Reply) -> None:
        if isinstance(reply, hiredis.ReplyError) and is_not_primary(str(reply)):
            raise ConnectionResetError(str(reply))  # all commands go to the primary, this one too
        packed, future = self._waiting.popleft()
        self._replies += 1
        self._waiting_bytes -= len(packed)
        if not future.done():  # a cancelled caller leaves its command in the queue, because its reply still comes
            future.set_result(reply)
        if self._senders:
            self._release_senders()

    def _release_senders(self) -> None:
        if not self.is_full:
            for turn in self._senders:
                if not turn.done():
                    turn.set_result(None)
            self._senders.clear()

    def connected(self) -> bytes:
        return b"".join(packed for packed, _ in self._waiting)

    def disconnected(self) -> bool:
        waiting = [(packed, future) for packed, future in self._waiting if not future.done()]
        self._waiting = deque(waiting)
        self._waiting_bytes = sum(len(packed) for packed, _ in waiting)
        return bool(waiting)

    def gave_up(self, error: Magent2Error) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for _, future in waiting:
            if not future.done():
                # A new error for each caller: one object raised in many tasks would collect all their tracebacks.
                future.set_exception(type(error)(*error.args))
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._release_senders()
