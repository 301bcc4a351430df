"""Connections that live on an event loop: writes of one turn of the loop go out together, replies come in order.

Sockets are opened by the same blocking code as those of threads, on the loop's executor, and then only watched by the
loop. So there is no transport and no task that a loop which is closed early could leave behind.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

import hiredis

from magent2.bus.redis_engine.connection import RECEIVE_BYTES, REPLY_TIMEOUT_S, ServerAddress
from magent2.bus.redis_engine.errors import FIRST_CONTACT_S, retry_delays, unavailable
from magent2.bus.redis_engine.functions import Reply
from magent2.errors import BusUnavailable, Magent2Error

IN_FLIGHT_MAX = 8192  # commands without a reply; more of them wait their turn
IN_FLIGHT_MAX_BYTES = 64 << 20
FLUSH_AT = 16  # commands that go out together; more would keep the server waiting while the loop makes them
CLOSED = "the bus was closed; open another"

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
ReplyFuture: TypeAlias = "asyncio.Future[Reply]"


class LoopConnection(ABC):
    """A connection on an event loop that finds its way back. All of it runs on the loop's thread."""

    def __init__(self, server: ServerAddress, loop: asyncio.AbstractEventLoop, retry_for_s: float) -> None:
        self.loop = loop
        self.server = server
        self.retry_for_s = retry_for_s
        self._socket: socket.socket | None = None
        self._file = -1
        self._reader = hiredis.Reader()
        self._out: list[bytes] = []
        self._unsent = memoryview(b"")
        self._pauses: Iterator[float] | None = None  # while it is being connected
        self._was_connected = False
        self._closed = False

    @abstractmethod
    def received(self, reply: Reply) -> None:
        """A reply came in."""

    @abstractmethod
    def connected(self) -> bytes:
        """There is a new connection; what it begins with."""

    @abstractmethod
    def disconnected(self) -> bool:
        """The connection was lost; whether another is wanted now."""

    @abstractmethod
    def gave_up(self, error: Magent2Error) -> None:
        """The bounded time is over, or the server does not let us in."""

    # --- opening

    def open(self) -> None:
        if self._pauses is None and self._socket is None and not self._closed:
            self._pauses = retry_delays(
                self.retry_for_s if self._was_connected else min(FIRST_CONTACT_S, self.retry_for_s)
            )
            self._try_again(OSError("not connected"))

    def _try_again(self, error: OSError) -> None:
        pause = next(self._pauses, None) if self._pauses is not None else None
        if pause is None:
            self._stop_trying(unavailable(str(self.server), error))
        elif pause:
            self.loop.call_later(pause, self._attempt)
        else:
            self._attempt()

    def _attempt(self) -> None:
        if not self._closed:
            self.loop.run_in_executor(None, self.server.open).add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Future[socket.socket]) -> None:
        try:
            opened = opening.result()
        except asyncio.CancelledError:
            self._stop_trying(unavailable(str(self.server), "the attempt was cancelled"))
        except OSError as error:
            self._try_again(error)
        except Magent2Error as error:
            self._stop_trying(error)
        else:
            self._attach(opened)

    def _stop_trying(self, error: Magent2Error) -> None:
        self._pauses = None
        self.gave_up(error)

    def _attach(self, opened: socket.socket) -> None:
        if self._closed:
            opened.close()
            return
        opened.setblocking(False)
        self._socket, self._file = opened, opened.fileno()
        self._reader = hiredis.Reader()
        self._pauses = None
        self._was_connected = True
        self.loop.add_reader(self._file, self._readable)
        self._write(memoryview(self.connected()))

    # --- reading and writing

    def write(self, packed: bytes) -> None:
        """Send with all else that this turn of the loop sends."""
        if self._socket is None:
            self.open()  # what is to be sent then, `connected` says
            return
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(packed)
        if len(self._out) == FLUSH_AT:
            self._flush()

    def _flush(self) -> None:
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
            self.loop.add_writer(self._file, self._writable)
        elif was_waiting and not self._unsent:
            self.loop.remove_writer(self._file)
            self._flush()

    def _writable(self) -> None:
        self._write(self._unsent)

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(RECEIVE_BYTES)
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
        self._take_replies()

    def _take_replies(self) -> None:
        try:
            reply = self._reader.gets()
            while reply is not False:
                self.received(reply)
                reply = self._reader.gets()
        except hiredis.ProtocolError:
            self._lost()

    # --- closing

    def _lost(self) -> None:
        self._detach()
        if self.disconnected() and not self._closed:
            self.open()

    def _detach(self) -> None:
        opened, self._socket = self._socket, None
        self._out.clear()
        if opened is None:
            return
        if not self.loop.is_closed():
            self.loop.remove_reader(self._file)
            self.loop.remove_writer(self._file)
        self._unsent = memoryview(b"")
        opened.close()

    def abandon(self) -> None:
        """Close the socket and nothing else: the loop is another process's."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """From any thread; the loop need not run any more."""
        self._closed = True
        if self.loop.is_closed() or not self.loop.is_running() or on_loop(self.loop):
            self._end()
            return
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # it was closed since we looked
            self._end()

    def _end(self) -> None:
        self._detach()
        if not self.loop.is_closed():
            self.gave_up(BusUnavailable(CLOSED))


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class PipelinedConnection(LoopConnection):
    """Commands and their replies. What had no reply when the connection was lost is sent again."""

    def __init__(self, server: ServerAddress, loop: asyncio.AbstractEventLoop, retry_for_s: float) -> None:
        super().__init__(server, loop, retry_for_s)
        self._waiting: deque[tuple[bytes, ReplyFuture]] = deque()
        self._bytes = 0
        self._queue: list[asyncio.Future[None]] = []
        self._heard = 0  # replies so far
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= IN_FLIGHT_MAX or self._bytes >= IN_FLIGHT_MAX_BYTES

    async def room(self) -> None:
        while self.is_full:
            turn: asyncio.Future[None] = self.loop.create_future()
            self._queue.append(turn)
            await turn

    def send(self, packed: bytes) -> ReplyFuture:
        if self._closed:
            raise BusUnavailable(CLOSED)
        answer: ReplyFuture = self.loop.create_future()
        self._waiting.append((packed, answer))
        self._bytes += len(packed)
        self.write(packed)
        if self._watchdog is None:
            self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._listen_for_life, self._heard)
        return answer

    def _listen_for_life(self, heard: int) -> None:
        """A server that has not said a word since the watchdog was set is taken for lost."""
        self._watchdog = None
        if self._waiting and not self._closed:
            self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._listen_for_life, self._heard)
            if self._heard == heard and self._socket is not None:
                self._lost()

    def received(self, reply: Reply) -> None:
        packed, answer = self._waiting.popleft()
        self._heard += 1
        self._bytes -= len(packed)
        if not answer.done():
            answer.set_result(reply)
        if self._queue:
            self._call_up()

    def _call_up(self) -> None:
        if not self.is_full:
            for turn in self._queue:
                if not turn.done():
                    turn.set_result(None)
            self._queue.clear()

    def connected(self) -> bytes:
        return b"".join(packed for packed, _ in self._waiting)

    def disconnected(self) -> bool:
        waiting = [(packed, answer) for packed, answer in self._waiting if not answer.done()]
        self._waiting = deque(waiting)
        self._bytes = sum(len(packed) for packed, _ in waiting)
        return bool(waiting)

    def gave_up(self, error: Magent2Error) -> None:
        waiting, self._waiting, self._bytes = self._waiting, deque(), 0
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(_again(error))
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._call_up()


def _again(error: Magent2Error) -> Magent2Error:
    """The same error for another waiter: one object raised in many tasks would collect all their traces."""
    return type(error)(*error.args)
