"""Accepting connections from a listening socket that several gateways share.

A server of asyncio or uvloop accepts all connections that wait whenever it is woken, so the gateway that wakes first
gets most of them. Streams last for hours: one gateway could have nearly all of them, and one core would do the work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from magent2.background import start_task
from magent2.gateway.limits.open_counts import LimitShare

log = logging.getLogger(__name__)

CONNECTIONS_AHEAD_MAX = (
    2  # connections that a gateway may have above the average before it leaves new ones to the others
)
OTHERS_FIRST_S = 0.002  # for the others to accept a connection; after it, this gateway takes what still waits
BATCH_MAX = 4  # connections that are accepted at a time after the others had their chance
ACCEPT_RETRY_S = 1.0  # after an error, such as too many open files


class SharedListener:
    """Accepts connections one at a time, and leaves them to other gateways while those have fewer."""

    def __init__(
        self, listener: socket.socket, share: LimitShare, create_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._number = listener.fileno()  # still known when the server has closed the socket
        self._share = share
        self._create_protocol = create_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        self._loop.add_reader(self._number, self._on_waiting)

    def close(self) -> None:
        """Accept no more connections. Those that wait are left to other gateways."""
        if not self._is_open:
            return
        self._is_open = False
        if self._pause is None:
            self._loop.remove_reader(self._number)
        else:
            self._pause.cancel()

    def _on_waiting(self) -> None:
        counts = self._share.connections
        if counts.own > counts.total / self._share.gateways + CONNECTIONS_AHEAD_MAX:
            self._pause_for(OTHERS_FIRST_S)
        else:
            self._accept(1)

    def _pause_for(self, delay_s: float) -> None:
        self._loop.remove_reader(self._number)
        self._pause = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._number, self._on_waiting)
        self._accept(BATCH_MAX)

    def _accept(self, most: int) -> None:
        for _ in range(most):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another gateway was faster
                return
            except OSError as error:
                log.error("cannot accept a connection", extra={"error": str(error), "retry_s": ACCEPT_RETRY_S})  # noqa: TRY400
                self._pause_for(ACCEPT_RETRY_S)
                return
            connection.setblocking(False)
            start_task(self._serve(connection), "serve a connection", self._tasks)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._create_protocol, connection)
        except BaseException:
            connection.close()
            raise
