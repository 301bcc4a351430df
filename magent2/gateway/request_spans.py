"""A trace span for each request, as a child of the `traceparent` that the client sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magent2.gateway.access.middleware import UNKNOWN_ROUTE
from magent2.gateway.problems import PROBLEM_CODE
from magent2.gateway.proxy import route_path
from magent2.gateway.route_label import method_of, route_template

if TYPE_CHECKING:
    from magent2.telemetry.tracing import AttributeValue, Span, Tracer

QUIET_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/openapi.json"})  # probes and static files
QUIET_PREFIX = "/page/"
PATH_MAX_CHARS = 300


class RequestSpans:
    """Middleware that traces requests. The span of a stream ends when its response begins: a stream may last days."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_quiet(route_path(scope)):
            await self._app(scope, receive, send)
            return
        span = self._begin(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                _answered(span, scope, message["status"])
            await send(message)

        try:
            with span.current():
                await self._app(scope, receive, noting)
        finally:
            span.end()  # of one that had no answer

    def _begin(self, scope: Scope) -> Span:
        method = method_of(scope)
        attributes: dict[str, AttributeValue | None] = {
            "http.request.method": method,
            "url.path": str(scope["path"])[:PATH_MAX_CHARS],
            "url.scheme": str(scope.get("scheme", "http")),
        }
        return self._tracer.begin(method, "server", parent=_parent(scope), attributes=attributes)


def is_quiet(path: str) -> bool:
    return path in QUIET_PATHS or path.startswith(QUIET_PREFIX)


def _parent(scope: Scope) -> str:
    """What the client is part of; nothing, as text, begins a trace."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), "")


def _answered(span: Span, scope: Scope, status: int) -> None:
    route = route_template(scope)
    span.set_name(f"{method_of(scope)} {route or UNKNOWN_ROUTE}")
    span.set_attributes(
        {"http.route": route, "http.response.status_code": status, "magent2.problem": scope.get(PROBLEM_CODE)}
    )
    if status >= 500:
        span.set_error(str(status))
    span.end()
