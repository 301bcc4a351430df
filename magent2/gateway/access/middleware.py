"""Middleware: check Host, Origin and credential of each request, and count it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magent2.errors import Magent2Error
from magent2.gateway.access import audit
from magent2.gateway.access.auth import Access, bearer
from magent2.gateway.access.identity import ANONYMOUS, IDENTITY_KEY, TOKEN_IDENTITY, Identity
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.limits.rate_limits import RequestRates, kind_of
from magent2.gateway.problems import PROBLEM_CODE, Problem, logged_problem
from magent2.gateway.proxy import SCHEME_KEY, client_address, route_path
from magent2.gateway.route_label import method_of, route_template
from magent2.telemetry import Metrics

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})
OPEN_PREFIX = "/page/"  # the status page's own files
ADMIN_PATHS = ("/metrics", "/api/dead", "/api/workers", "/agents", "/dead")  # and all below; the last two have moved
ADMIN_PREFIXES = tuple(f"{place}/" for place in ADMIN_PATHS)
UNKNOWN_ROUTE = "unknown"

Header: TypeAlias = tuple[bytes, bytes]

# On every answer; a route may give its own policy, as the page does.
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
SECURITY = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


class AccessMiddleware:
    """Refuses requests without access, and sets the identity of all others."""

    def __init__(self, app: ASGIApp, access: Access, keys: KeyCache | None, rates: RequestRates) -> None:
        self._app = app
        self._access = access
        self._keys = keys
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._admit(scope)
            except Magent2Error as error:
                await logged_problem(error).answer(scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        given = _wanted_headers(scope)
        self._check_place(given, scope.get(SCHEME_KEY))
        path = route_path(scope)
        if is_open(path):
            scope[IDENTITY_KEY] = TOKEN_IDENTITY if self._access.token is None else ANONYMOUS
            return
        identity = scope[IDENTITY_KEY] = await self._identify(scope, given.get(b"authorization", b""))
        if identity.principal.admin:
            return
        if is_for_admins(path):
            raise Problem.admins_only()
        self._rates.take(identity.principal.name, kind_of(scope["method"], path))

    def _check_place(self, given: dict[bytes, bytes], scheme: str | None) -> None:
        host = given.get(b"host", b"").decode("latin-1")
        if not self._access.knows_host(host):
            raise Problem.foreign_host()
        origin = given.get(b"origin")
        if origin is not None and not self._access.knows_origin(origin.decode("latin-1"), host, scheme):
            raise Problem(403, "foreign_origin", "pages of other origins may not call this gateway")

    async def _identify(self, scope: Scope, authorization: bytes) -> Identity:
        text = bearer(authorization).decode("latin-1")
        known = self._keys.known(text) if self._keys is not None else None
        if known is not None:
            return known
        if self._access.admits(authorization):
            return TOKEN_IDENTITY
        found = await self._keys.find(text, client_address(scope)) if self._keys is not None else None
        if found is not None:
            return found
        if authorization:
            audit.log_refused_credential(scope, text)
        raise Problem.unauthorized()


def _wanted_headers(scope: Scope) -> dict[bytes, bytes]:
    return {name: value for name, value in scope["headers"] if name in (b"host", b"origin", b"authorization")}


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def is_for_admins(path: str) -> bool:
    return path.startswith(ADMIN_PREFIXES) or path in ADMIN_PATHS


class MetricsMiddleware:
    """Counts requests by route and status, and adds security headers to every response.

    A stream is counted when it begins.
    """

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
                message["headers"] = with_security_headers(message.get("headers", ()))
                audit.log_request(scope, message["status"])
                self._note(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, counted)

    def _note(self, scope: Scope, status: int, taken_s: float) -> None:
        self._metrics.count_request(route_template(scope) or UNKNOWN_ROUTE, method_of(scope), status, taken_s)
        if PROBLEM_CODE in scope:
            self._metrics.count_refusal(scope[PROBLEM_CODE])


def with_security_headers(headers: Iterable[Header]) -> list[Header]:
    given = [*headers, *SECURITY]
    return given if any(name == POLICY[0] for name, _ in given) else [*given, POLICY]
