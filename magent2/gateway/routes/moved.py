"""Redirects from the paths of 0.1.x to the paths of the API. They remain through 0.2.x."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from magent2.gateway.proxy import route_path

KEPT_IN_PATHS = "/%:@!$&'()*+,;=~"  # `%`: what the client has encoded stays as it is
RECORD_FORMAT_QUERY = b"format=record"


@dataclass(frozen=True, slots=True)
class MovedPaths:
    """An ASGI application that answers 308 with the same method, body and query at another path.

    `old` is replaced by `new_list` where the path ends with it, by `new_item` where an id follows. `query` is added,
    so that a client of 0.1.x which follows the redirect gets the response that it expects.
    """

    old: str
    new_list: str
    new_item: str = ""
    query: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = Response(status_code=308, headers={"location": self.location(scope)})
        await response(scope, receive, send)

    def location(self, scope: Scope) -> str:
        """Return the new address, below the root path. The id stays as the client has encoded it."""
        root = str(scope.get("root_path", ""))
        raw, prefix = scope.get("raw_path") or b"", f"{root}{self.old}".encode()
        # A client may also encode letters of the root path or of the old path: then only the decoded path is usable.
        is_plain = raw.startswith(prefix)
        rest = raw.removeprefix(prefix) if is_plain else route_path(scope).removeprefix(self.old).encode()
        path = root + (self.new_item if len(rest) > 1 else self.new_list) + quote(rest, KEPT_IN_PATHS)
        query = b"&".join(part for part in (scope.get("query_string", b""), self.query) if part)
        return f"{path}?{quote(query, KEPT_IN_PATHS + '?')}" if query else path


MOVED = (
    MovedPaths("/conversations", "/api/sdk/sessions", "/api/sdk/session", RECORD_FORMAT_QUERY),
    MovedPaths("/dead", "/api/dead", "/api/dead"),
    MovedPaths("/agents", "/api/workers"),
)


def _redirects() -> Iterator[Route]:
    for moved in MOVED:
        paths = [moved.old, f"{moved.old}/{{rest:path}}"] if moved.new_item else [moved.old]
        yield from (Route(path, moved, include_in_schema=False) for path in paths)


# The redirects, for every method. The OpenAPI document does not list them.
router = APIRouter(routes=list(_redirects()))
