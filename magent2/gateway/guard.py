"""The door: Host, Origin and token are looked at before a request goes any further, and each request is counted."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magent2.gateway.auth import Access
from magent2.gateway.problems import Problem
from magent2.telemetry import Metrics

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})
OPEN_PREFIX = "/page/"  # the status page's own files
UNKNOWN_ROUTE = "unknown"


class Guard:
    """Refuses who may not come in."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._refusal(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await problem.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        given = _wanted_headers(scope)
        host = given.get(b"host", b"").decode("latin-1")
        if not self._access.knows_host(host):
            return Problem(421, "foreign_host", "this gateway answers only to names of its own machine")
        origin = given.get(b"origin")
        if origin is not None and not self._access.knows_origin(origin.decode("latin-1"), host):
            return Problem(403, "foreign_origin", "pages of other origins may not call this gateway")
        if is_open(scope["path"]) or self._access.admits(given.get(b"authorization", b"")):
            return None
        return Problem(
            401,
            "unauthorized",
            "give the gateway's token as 'Authorization: Bearer TOKEN'; 'magent2 token show' prints it",
            {"www-authenticate": "Bearer"},
        )


def _wanted_headers(scope: Scope) -> dict[bytes, bytes]:
    return {name: value for name, value in scope["headers"] if name in (b"host", b"origin", b"authorization")}


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


class Count:
    """Counts requests by route and status; a stream counts when it begins."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, counted)

    def _note(self, scope: Scope, status: int, taken_s: float) -> None:
        route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
        self._metrics.answered(route, _method(scope), status, taken_s)


def _method(scope: Scope) -> str:
    """A method is text that a client chose: only known ones become a label."""
    method: str = scope["method"]
    return method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS") else "other"
