"""Limits of HTTP: connections, the time that headers take, and the size and time of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

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
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"now": self.transport.abort}}
        if self._head_timer is None:
            self._arm()

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.headers_max_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_with_limits(limits: GatewayLimits) -> type[LimitedProtocol]:
    """The protocol with these limits: uvicorn makes its protocols itself and hands nothing over."""
    fields: dict[str, Any] = {"limits": limits}
    return type("LimitedProtocol", (LimitedProtocol,), fields)


def _refusal(limit: int) -> bytes:
    problem = Problem(
        503, "too_many_connections", f"{limit} connections are open, which is the limit; try again later", RETRY_HEADERS
    )
    answer = problem.response()
    headers = b"".join(b"%b: %b\r\n" % pair for pair in with_security_headers(answer.raw_headers))
    return b"HTTP/1.1 503 Service Unavailable\r\n" + headers + b"connection: close\r\n\r\n" + bytes(answer.body)


CLOSE = {"connection": "close"}  # what is left of the body is not worth reading
LENGTH_MAX_DIGITS = 15
# Times the cap: so much of a body that is too large is read past, because who still sends hears nothing.
DRAINED_MAX = 4


async def read_body(scope: Scope, receive: Receive, limits: GatewayLimits) -> bytes:
    declared = header(scope, b"content-length")
    too_large = declared.isdigit() and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > limits.body_max_bytes)
    if too_large and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > DRAINED_MAX * limits.body_max_bytes):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_max_s):
            if too_large:
                await _read_past(receive)
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
            raise Problem(400, "body_incomplete", "the connection ended within the body")
        body += message.get("body", b"")
        if len(body) > limits.body_max_bytes:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return body


async def _read_past(receive: Receive) -> None:
    """A proxy that is cut off while it sends tells its client of a bad gateway, not of the answer that it got."""
    while (await receive()).get("more_body", False):
        pass


def _too_large(limits: GatewayLimits) -> Problem:
    return Problem(413, "too_large", f"a body takes at most {limits.body_max_bytes} bytes", CLOSE)


def check_json(scope: Scope) -> None:
    """Only a declared JSON body is read: a form of another site cannot declare one."""
    declared = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if declared != b"application/json" and not (declared.startswith(b"application/") and declared.endswith(b"+json")):
        raise Problem(415, "not_json", "send JSON, with the header 'Content-Type: application/json'")


def header(scope: Scope, name: bytes) -> bytes:
    value: bytes
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
