"""The server's side of a connection: limits of connections, request heads, slow bodies and unread responses."""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from magent2.gateway.instrumentation import with_security_headers
from magent2.gateway.limits import (
    BODY_GRACE_S,
    CLOSE_LINGER_S,
    PIPELINED_MAX_REQUESTS,
    PROBE_CONNECTIONS,
    PROBE_HEAD_MAX_S,
    GatewayLimits,
)
from magent2.gateway.limits.open_counts import LimitShare
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.proxy import ProxySettings
from magent2.gateway.streaming.open_streams import ABORT
from magent2.telemetry import Metrics

PROBE_PATHS = ("/health", "/ready")
PROBE_METHODS = (b"GET", b"HEAD")
UPLOAD_PATH = "/api/files"  # a POST there has more time for its body

Phase: TypeAlias = Literal["idle", "head", "body"]


class ConnectionTable:
    """The connections of one gateway by address, and those beyond the limits, which may only be probes.

    `share` counts the connections of all gateways of the address. `own_max` limits those of this process: each of them
    is an open file.
    """

    def __init__(
        self,
        limits: GatewayLimits,
        proxy: ProxySettings,
        metrics: Metrics,
        share: LimitShare | None = None,
        own_max: int | None = None,
    ) -> None:
        share = share or LimitShare()
        self.limits = limits
        self.metrics = metrics
        self.root_path = proxy.root_path
        self.probe_targets = frozenset(
            f"{root}{path}".encode() for root in ("", proxy.root_path) for path in PROBE_PATHS
        )
        self.upload_targets = frozenset(f"{root}{UPLOAD_PATH}".encode() for root in ("", proxy.root_path))
        self._proxy = proxy
        self._counts = share.connections
        self._own_max = limits.connections_max if own_max is None else own_max
        self._reserved_max = max(1, PROBE_CONNECTIONS // share.gateways)
        self._reserved: dict[LimitedProtocol, None] = {}  # in the order of their arrival

    def admit(self, connection: LimitedProtocol) -> Problem | None:
        """Count a connection. Return the problem of one that is beyond a limit."""
        key = self._proxy.connection_key(connection.address)
        limits, counts = self.limits, self._counts
        counts.add(key)
        if counts.total > limits.connections_max:
            reason = f"{limits.connections_max} connections are open, which is the limit"
        elif counts.own > self._own_max:
            reason = f"{self._own_max} connections of this process are open, which is the limit"
        elif key is not None and counts.of(key) > limits.connections_per_address_max:
            reason = f"your address has {limits.connections_per_address_max} open connections, which is the limit"
        else:
            return None
        counts.remove(key)
        if len(self._reserved) >= self._reserved_max:
            self._evict()
        self._reserved[connection] = None
        return Problem(503, "too_many_connections", f"{reason}; try again later", RETRY_HEADERS)

    def _evict(self) -> None:
        """Close the oldest reserved connection, one without a request if there is one.

        A probe sends its request at once, so silent connections cannot keep it out.
        """
        oldest = next((one for one in self._reserved if not one.has_request), next(iter(self._reserved)))
        del self._reserved[oldest]
        oldest.refuse_connection()

    def release(self, connection: LimitedProtocol) -> None:
        if connection.over_limit is not None:
            self._reserved.pop(connection, None)
            return
        self._counts.remove(self._proxy.connection_key(connection.address))


class RefusedRequest(Exception):
    """Ends the parser. The protocol has the problem that the client gets."""


class LimitedProtocol(HttpToolsProtocol):
    """Limits what a client can make the gateway hold before a route sees the request: memory, time and connections."""

    table: ConnectionTable

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.limits = self.table.limits
        self.has_request = False  # whether `cycle` is set
        self._phase: Phase = "idle"
        self._body_max_s = self.limits.body_max_s  # of the current request
        self._section_bytes = 0  # received of a head or of trailers that have not ended
        self._has_progressed = False  # whether a head, a part of a body or a message has ended since this was reset
        self._refusal: Problem | None = None
        self._keeps_alive = True  # what the cycle says while the rest of its request is awaited
        self._is_lingering = False
        self._timed_phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_timer: asyncio.TimerHandle | None = None
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.over_limit = self.table.admit(self)
        super().connection_made(transport)
        self._start_timer("idle", self.limits.headers_max_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
        self.table.release(self)
        super().connection_lost(exc)

    # --- receiving

    def data_received(self, data: bytes) -> None:
        """Give the parser no more than a head may still have, so that it never buffers more."""
        if len(data) <= self.limits.head_max_bytes - self._section_bytes:
            self._feed(data)
        else:
            view, start = memoryview(data), 0
            while start < len(data) and not self.transport.is_closing() and not self._is_lingering:
                end = start + self.limits.head_max_bytes - self._section_bytes
                self._feed(cast("bytes", view[start:end]))
                start = end
        if not self.transport.is_closing() and not self._is_lingering:
            self._watch_request()

    def _feed(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_lingering:
            return
        self._has_progressed = False
        super().data_received(data)
        self._section_bytes = 0 if self._has_progressed else self._section_bytes + len(data)
        if self._section_bytes >= self.limits.head_max_bytes:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = "head"
        self.scope["extensions"] = {ABORT: {"now": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > self.limits.target_max_bytes:
            limit = self.limits.target_max_bytes
            self.url += url[:limit]  # the shape of the refusal depends on its path
            self._end_parser(Problem(414, "target_too_long", f"path and query take at most {limit} bytes"))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == "body":
            return  # A trailer. As a header it could replace one that a proxy has checked.
        if len(self.headers) >= self.limits.headers_max:
            self._end_parser(self._head_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._phase = "body"
        self._has_progressed = True
        if self.over_limit is not None and not self._is_probe():
            self._end_parser(self.over_limit)
        if len(self.pipeline) >= PIPELINED_MAX_REQUESTS:
            limit = PIPELINED_MAX_REQUESTS
            self._end_parser(Problem(400, "bad_request", f"at most {limit} requests may wait on one connection"))
        self._body_max_s = self.limits.upload_max_s if self._is_upload() else self.limits.body_max_s
        super().on_headers_complete()
        self.has_request = True
        if self.over_limit is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._has_progressed = True
        self._phase = "idle"
        if isinstance(self.cycle.transport, LingeringTransport) and not self.cycle.response_started:
            self.cycle.transport, self.cycle.keep_alive = self.transport, self._keeps_alive
        super().on_message_complete()

    def _is_probe(self) -> bool:
        target = self.url.partition(b"?")[0]
        return self.parser.get_method() in PROBE_METHODS and target in self.table.probe_targets

    def _is_upload(self) -> bool:
        return self.parser.get_method() == b"POST" and self.url.partition(b"?")[0] in self.table.upload_targets

    # --- time

    def _watch_request(self) -> None:
        """Start the timer of a request that is not complete. A request in one piece needs none."""
        if self._phase == "body":
            if self.cycle.transport is self.transport:
                # A response before the end of the body closes the connection; see `on_message_complete`.
                self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False
                self.cycle.transport = cast("asyncio.Transport", LingeringTransport(self))
            self._start_timer("body", self._body_max_s + BODY_GRACE_S)
        elif self._phase == "head" or self._section_bytes:  # blank lines may precede a head
            self._start_timer("head", self.limits.headers_max_s)
        else:
            self._stop_timer()

    def _start_timer(self, phase: Phase, limit_s: float) -> None:
        if self._timed_phase != phase:
            self._stop_timer()
            if self.over_limit is not None:
                limit_s = min(limit_s, PROBE_HEAD_MAX_S)
            self._timed_phase = phase
            self._timer = self.loop.call_later(limit_s, self._on_timeout, limit_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timed_phase = None

    def _on_timeout(self, limit_s: float) -> None:
        phase, self._timer, self._timed_phase = self._timed_phase, None, None
        if phase == "body" and self.flow.read_paused:
            self._start_timer("body", limit_s)  # the gateway does not read: the client is not late
        elif phase == "body":
            self._refuse(Problem.body_too_slow(self._body_max_s))
        elif self.over_limit is not None:
            self.refuse_connection()
        elif phase == "idle":
            self.transport.close()  # a connection that was opened in advance
        else:
            self._refuse(Problem(408, "head_too_slow", f"the request head did not arrive within {limit_s:g} s"))

    # --- refusing

    def _head_too_large(self) -> Problem:
        size, number = self.limits.head_max_bytes, self.limits.headers_max
        return Problem(431, "head_too_large", f"the head of a request takes at most {size} bytes and {number} headers")

    def _end_parser(self, problem: Problem) -> None:
        self._refusal = problem
        raise RefusedRequest

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refuses. uvicorn calls this and would answer with plain text."""
        problem, self._refusal = self._refusal, None
        if problem is None:
            problem = Problem(
                400, "bad_request", "this is not a valid HTTP/1.1 request; check method, target and headers"
            )
        self._refuse(problem)

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and close the connection.

        While the response to an earlier request is awaited, an answer would be taken for it, so there is none.
        """
        self.table.metrics.count_refusal(problem.code)
        before = self.has_request and not self.cycle.response_complete
        own = self._phase == "body" and not self.pipeline and before and not self.cycle.response_started
        if before and not own:
            self.transport.abort()
            return
        if own:
            self.cycle.disconnected = True  # the route may not answer too
            self.cycle.message_event.set()
        target = b"" if self._phase == "idle" else self.url
        self.transport.write(_encoded(problem, target, self.table.root_path))
        self.linger()

    def refuse_connection(self) -> None:
        """Close a connection beyond the limits, with the reason if no request is being answered."""
        if not self.has_request and self.over_limit is not None and not self.transport.is_closing():
            self._refuse(self.over_limit)
        else:
            self.transport.abort()

    # --- closing

    def linger(self) -> None:
        """Close the connection after the response, and discard for a while what the client still sends.

        Closing at once would reset the connection, and the client would lose the response.
        """
        if self.over_limit is not None or not self.transport.can_write_eof():
            self.transport.close()  # connections beyond the limits are not kept open
            self.watch_unsent()
            return
        if not self._is_lingering:
            self._is_lingering = True
            self._stop_timer()
            self._timer = self.loop.call_later(CLOSE_LINGER_S, self._end_lingering)
            self.transport.write_eof()
            self.flow.resume_reading()

    def _end_lingering(self) -> None:
        self.transport.close()
        self.watch_unsent()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self.watch_unsent()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_unsent()

    def watch_unsent(self, before: int | None = None) -> None:
        """Close the connection if its client accepts nothing for `send_max_s`. A slow client may go on."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent_timer is not None and before is None:
            return
        self._unsent_timer = None
        if before is not None and unsent >= before:
            self.transport.abort()
        elif unsent:
            self._unsent_timer = self.loop.call_later(self.limits.send_max_s, self.watch_unsent, unsent)


class LingeringTransport:
    """What a response is written to whose request is not complete. It lingers instead of closing."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.linger


def protocol_with_limits(table: ConnectionTable) -> type[LimitedProtocol]:
    """Return a protocol class for one server: uvicorn creates the instances and cannot pass anything on."""
    return type("LimitedProtocol", (LimitedProtocol,), {"table": table})


def _encoded(problem: Problem, target: bytes, root_path: str) -> bytes:
    """Return the whole response to a request with this target, of which only the beginning may be known."""
    path = target.partition(b"?")[0].decode("latin-1")
    answer = problem.answer({"path": path, "root_path": root_path})
    status = f"HTTP/1.1 {problem.status} {problem.document()['title']}\r\n".encode()
    headers = b"".join(b"%b: %b\r\n" % pair for pair in with_security_headers(answer.raw_headers))
    ending = b"\r\n" if problem.headers.get("connection") else b"connection: close\r\n\r\n"
    return status + headers + ending + bytes(answer.body)
