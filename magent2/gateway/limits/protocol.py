"""uvicorn's HTTP protocol, with limits: on connections, and on how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from magent2.gateway.access.middleware import with_security_headers
from magent2.gateway.limits.limits import GatewayLimits
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.streaming.response import ABORT


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
