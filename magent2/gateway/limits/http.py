"""Limits of HTTP requests: number of connections, time of headers, size and time of bodies."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from magent2.gateway.instrumentation import with_security_headers
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.streaming.open_streams import ABORT


class LimitedProtocol(HttpToolsProtocol):
    """Refuses connections beyond the limit, and closes those that send their headers too slowly."""

    limits = GatewayLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        if len(self.connections) >= self.limits.connections_max:
            self.transport = transport
            transport.write(_refusal(self.limits.connections_max))
            transport.close()
            return
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"now": self.transport.abort}}
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.headers_max_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_with_limits(limits: GatewayLimits) -> type[LimitedProtocol]:
    """Return a protocol class with these limits: uvicorn creates the instances and cannot pass them on."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


def _refusal(limit: int) -> bytes:
    problem = Problem(
        503, "too_many_connections", f"{limit} connections are open, which is the limit; try again later", RETRY_HEADERS
    )
    answer = problem.response()
    headers = b"".join(b"%b: %b\r\n" % pair for pair in with_security_headers(answer.raw_headers))
    return b"HTTP/1.1 503 Service Unavailable\r\n" + headers + b"connection: close\r\n\r\n" + bytes(answer.body)


CLOSE = {"connection": "close"}  # the rest of the body is not read
LENGTH_MAX_DIGITS = 15
# A body of up to this many times the limit is read to its end before it is refused: a client or proxy that is still
# sending when the connection closes reports a connection error (a proxy: 502), not our 413.
DISCARD_FACTOR = 4


async def read_body(scope: Scope, receive: Receive, limits: GatewayLimits) -> bytes:
    """Read a body of bounded size in bounded time."""
    declared = header(scope, b"content-length")
    too_large = declared.isdigit() and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > limits.body_max_bytes)
    if too_large and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > DISCARD_FACTOR * limits.body_max_bytes):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_max_s):
            if too_large:
                while (await receive()).get("more_body", False):
                    pass
                raise _too_large(limits)
            return await _read(receive, limits)
    except TimeoutError:
        raise Problem(
            408, "body_too_slow", f"the body did not arrive within {limits.body_max_s:g} s; send it again", CLOSE
        ) from None


async def _read(receive: Receive, limits: GatewayLimits) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "body_incomplete", "the connection closed within the body; send it again")
        body += message.get("body", b"")
        if len(body) > limits.body_max_bytes:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return body


def _too_large(limits: GatewayLimits) -> Problem:
    return Problem(413, "too_large", f"a body takes at most {limits.body_max_bytes} bytes", CLOSE)


def check_json(scope: Scope) -> None:
    """Refuse a body that is not declared as JSON. A form of another site cannot declare JSON."""
    declared = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if declared != b"application/json" and not (declared.startswith(b"application/") and declared.endswith(b"+json")):
        raise Problem(415, "not_json", "send JSON, with the header 'Content-Type: application/json'")


def header(scope: Scope, name: bytes) -> bytes:
    value: bytes
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
