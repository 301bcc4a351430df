"""A client that takes its time: the gateway has to wait for it, and it comes back after every cut."""

from __future__ import annotations

import http.client
import socket
from types import TracebackType
from typing import Self

from tests.support.http_client.audit import SeenEvent
from tests.support.http_client.clients import Frames

RECEIVE_BUFFER_BYTES = 4096
SEGMENT_BYTES = 1400  # as over a real network; the loopback's are so large that the kernel would take it all
SILENCE_MAX_S = 30.0


class SlowReader:
    """Reads no more than it is told to. What it has not read waits in the gateway."""

    def __init__(self, port: int, conversation: str, token: str) -> None:
        self.seen: list[SeenEvent] = []
        self._port = port
        self._path = f"/stream/{conversation}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._frames = Frames()
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None

    def connect(self) -> None:
        """Begin, or go on behind the last event."""
        self.close()
        self._frames.forget_half()
        resume = {} if self._frames.last_id is None else {"Last-Event-ID": self._frames.last_id}
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SILENCE_MAX_S)
        self._connection.sock = self._narrow_socket()
        self._connection.request("GET", self._path, headers={**self._headers, **resume})
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.status

    def _narrow_socket(self) -> socket.socket:
        narrow = socket.socket()
        narrow.settimeout(SILENCE_MAX_S)
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        narrow.connect(("127.0.0.1", self._port))
        return narrow

    def read(self, count: int) -> None:
        """Read until there are so many events in all."""
        while len(self.seen) < count:
            assert self._read_line(), f"cut off after {len(self.seen)} of {count} events"

    def read_to_the_cut(self) -> None:
        """Read what is still on the way from a gateway that is gone."""
        while self._read_line():
            pass

    def _read_line(self) -> bool:
        assert self._response is not None, "connect first"
        try:
            line = self._response.readline()
        except (http.client.HTTPException, ConnectionError):
            return False
        if not line.endswith(b"\n"):
            return False
        event = self._frames.take(line.decode().rstrip("\n"))
        if event is not None:
            self.seen.append(event)
        return True

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
