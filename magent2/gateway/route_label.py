"""What a request asks for, as metrics, spans and the audit log name it: never by what a client has made up."""

from __future__ import annotations

from starlette.types import Scope

METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def route_template(scope: Scope) -> str | None:
    """The path of the route, as the OpenAPI document has it; `None` when there is none.

    Of a route that was included with a prefix FastAPI keeps the whole beside it.
    """
    route = scope.get("route")
    whole = scope.get("fastapi", {}).get("effective_route_context")
    found = getattr(whole, "path_format", None) or getattr(route, "path_format", None) or getattr(route, "path", None)
    return found if isinstance(found, str) else None


def method_of(scope: Scope) -> str:
    """A method is text that a client chose: only known ones are told."""
    method: str = scope["method"]
    return method if method in METHODS else "other"
