"""Middleware that checks Host, Origin and credential of each request, and the rate limits."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from magent2.errors import Magent2Error
from magent2.gateway.access.auth import ANONYMOUS, IDENTITY_KEY, TOKEN_IDENTITY, Access, Identity, bearer
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.instrumentation import log_refused_credential
from magent2.gateway.limits.rate_limits import RequestRates, kind_of
from magent2.gateway.problems import Problem, logged_problem
from magent2.gateway.proxy import SCHEME_KEY, client_address, route_path

SINGLE_HEADERS = frozenset({b"host", b"origin", b"authorization", b"content-type"})
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})
OPEN_PREFIX = "/page/"  # the status page's own files
ADMIN_PATHS = ("/metrics", "/api/dead", "/api/workers", "/agents", "/dead")  # and all below; the last two redirect
ADMIN_PREFIXES = tuple(f"{path}/" for path in ADMIN_PATHS)


class AccessMiddleware:
    """Refuses requests that may not pass, and sets the identity of all others."""

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
        headers = _single_headers(scope)
        self._check_host_and_origin(headers, scope.get(SCHEME_KEY))
        path = route_path(scope)
        if is_open(path):
            has_token = self._access.has_token(headers.get(b"authorization", b""))
            scope[IDENTITY_KEY] = TOKEN_IDENTITY if has_token else ANONYMOUS
            return
        identity = scope[IDENTITY_KEY] = await self._identify(scope, headers.get(b"authorization", b""))
        if identity.principal.admin:
            return
        if is_for_admins(path):
            raise Problem.admins_only()
        self._rates.take(identity.principal.name, kind_of(scope["method"], path))

    def _check_host_and_origin(self, headers: dict[bytes, bytes], scheme: str | None) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._access.accepts_host(host):
            raise Problem.foreign_host()
        origin = headers.get(b"origin")
        if origin is not None and not self._access.accepts_origin(origin.decode("latin-1"), host, scheme):
            raise Problem(
                403,
                "foreign_origin",
                "pages of other origins may not call this gateway",
            )

    async def _identify(self, scope: Scope, authorization: bytes) -> Identity:
        text = bearer(authorization).decode("latin-1")
        known = self._keys.known(text) if self._keys is not None else None
        if known is not None:
            return known
        if self._access.has_token(authorization):
            return TOKEN_IDENTITY
        if self._keys is not None and not self._access.was_token(text):
            found = await self._keys.find(text, client_address(scope))
            if found is not None:
                return found
        if authorization:
            log_refused_credential(scope, text)
        raise Problem.unauthorized()


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers that decide on access. Of two, a proxy may have checked one and the gateway the other."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in SINGLE_HEADERS:
            if name in found:
                raise Problem(400, "repeated_header", f"send the header {name.decode()!r} once")
            found[name] = value
    return found


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def is_for_admins(path: str) -> bool:
    return path.startswith(ADMIN_PREFIXES) or path in ADMIN_PATHS
