"""Metrics, trace spans and the audit log of requests.

The audit log has one line per request that may change something or is forbidden, and one per refused credential. The
logger is `magent2.audit`: requests are logged at INFO, refused credentials at WARNING. Lines contain ids, never message
text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magent2.directory.keys import split_key
from magent2.gateway.access.auth import IDENTITY_KEY, identity_of
from magent2.gateway.problems import PROBLEM_CODE
from magent2.gateway.proxy import client_address, route_path
from magent2.telemetry import Metrics

if TYPE_CHECKING:
    from magent2.telemetry.tracing import AttributeValue, Span, Tracer

audit_log = logging.getLogger("magent2.audit")

METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"})
UNKNOWN_ROUTE = "unknown"
UNTRACED_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/openapi.json"})  # probes and static files
UNTRACED_PREFIX = "/page/"
PATH_MAX_CHARS = 300
AUDIT_IDS = "magent2.audit"  # scope key: ids for the audit line of the request
UNAUDITED_METHODS = ("GET", "HEAD", "OPTIONS")
AUDIT_VALUE_MAX_CHARS = 200
FORBIDDEN = 403
REFUSED_STATUSES = (FORBIDDEN, 429)  # of requests with a valid credential that did not reach a route

Header: TypeAlias = tuple[bytes, bytes]

# Headers of every response. A route may set its own content security policy, as the page does.
CONTENT_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
SECURITY_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


# --- names of requests, which never contain text that a client chose


def route_template(scope: Scope) -> str | None:
    """Return the path template of the request's route, as in the OpenAPI document, or `None` without a route.

    For a route that was included with a prefix, only FastAPI's context has the whole path.
    """
    route = scope.get("route")
    context = scope.get("fastapi", {}).get("effective_route_context")
    found = getattr(context, "path_format", None) or getattr(route, "path_format", None) or getattr(route, "path", None)
    return found if isinstance(found, str) else None


def method_of(scope: Scope) -> str:
    """Return the method, or `other` for an unknown one: clients can send any text."""
    method: str = scope["method"]
    return method if method in METHODS else "other"


# --- middleware


class MetricsMiddleware:
    """Counts requests by route and status, writes their audit lines, and adds security headers to every response.

    A stream is counted when it begins.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_security_headers(message.get("headers", ()))
                self._record(scope, message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_counted)

    def _record(self, scope: Scope, status: int, duration_s: float) -> None:
        route = route_template(scope)
        if route is not None:
            _log_request(scope, route, status)
        elif status in REFUSED_STATUSES and IDENTITY_KEY in scope:  # refused before its route was found
            _log_request(scope, route_path(scope)[:AUDIT_VALUE_MAX_CHARS], status)
        self._metrics.count_request(route or UNKNOWN_ROUTE, method_of(scope), status, duration_s)
        if PROBLEM_CODE in scope:
            self._metrics.count_refusal(scope[PROBLEM_CODE])


def with_security_headers(headers: Iterable[Header]) -> list[Header]:
    combined = [*headers, *SECURITY_HEADERS]
    return combined if CONTENT_POLICY[0] in dict(combined) else [*combined, CONTENT_POLICY]


class RequestSpans:
    """Traces requests. A span is a child of the `traceparent` that the client sends.

    The span of a stream ends when its response begins: a stream may last days.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_untraced(route_path(scope)):
            await self._app(scope, receive, send)
            return
        span = self._begin(scope)

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                _finish_span(span, scope, message["status"])
            await send(message)

        try:
            with span.current():
                await self._app(scope, receive, send_traced)
        finally:
            span.end()  # of a request without a response

    def _begin(self, scope: Scope) -> Span:
        method = method_of(scope)
        attributes: dict[str, AttributeValue | None] = {
            "http.request.method": method,
            "url.path": str(scope["path"])[:PATH_MAX_CHARS],
            "url.scheme": str(scope.get("scheme", "http")),
        }
        # An empty parent starts a new trace.
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), "")
        return self._tracer.begin(method, "server", parent=parent, attributes=attributes)


def is_untraced(path: str) -> bool:
    return path in UNTRACED_PATHS or path.startswith(UNTRACED_PREFIX)


def _finish_span(span: Span, scope: Scope, status: int) -> None:
    route = route_template(scope)
    span.set_name(f"{method_of(scope)} {route or UNKNOWN_ROUTE}")
    span.set_attributes(
        {"http.route": route, "http.response.status_code": status, "magent2.problem": scope.get(PROBLEM_CODE)}
    )
    if status >= 500:
        span.set_error(str(status))
    span.end()


# --- audit log


def add_audit_ids(scope: Scope, **ids: str | int | None) -> None:
    """Add ids to the audit line of the request, which is written when the response begins."""
    if audit_log.isEnabledFor(logging.INFO):
        scope.setdefault(AUDIT_IDS, {}).update(ids)


def _log_request(scope: Scope, route: str, status: int) -> None:
    is_read = scope["method"] in UNAUDITED_METHODS and status != FORBIDDEN
    if is_read or not audit_log.isEnabledFor(logging.INFO):
        return
    identity = identity_of(scope)
    ids: dict[str, object] = {**scope.get("path_params", {}), **scope.get(AUDIT_IDS, {})}
    audit_log.info(
        "acted",
        extra={
            "act": f"{scope['method']} {route}",
            "status": status,
            "ids": {name: _short(value) for name, value in ids.items() if value is not None},
            "principal": identity.principal.name,
            "admin": identity.principal.admin,
            "key": identity.key,
            "client": client_address(scope),
            **({"problem": scope[PROBLEM_CODE]} if PROBLEM_CODE in scope else {}),
        },
    )


def _short(value: object) -> object:
    return value[:AUDIT_VALUE_MAX_CHARS] if isinstance(value, str) else value


def log_key_used(key: str, principal: str) -> None:
    """Log the first use of a key in this process, or the first one since it left the cache."""
    audit_log.info("key used", extra={"key": key, "principal": principal})


def log_key_revoked(key: str, streams: int) -> None:
    audit_log.info("key revoked", extra={"key": key, "streams_ended": streams})


def log_refused_credential(scope: Scope, text: str) -> None:
    """Log a refused credential: the id if it is an API key, and nothing of any other text."""
    parts = split_key(text)
    fields = {
        "method": scope["method"],
        "path": route_path(scope)[:AUDIT_VALUE_MAX_CHARS],
        "key": parts[0] if parts else None,
        "client": client_address(scope),
    }
    audit_log.warning("refused", extra=fields)
