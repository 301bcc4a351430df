"""Names of requests for metrics, spans and the audit log. They never contain text that a client chose."""

from __future__ import annotations

from starlette.types import Scope

METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def route_template(scope: Scope) -> str | None:
    """Return the path template of the request's route, as in the OpenAPI document, or `None` without a route.

    For a route that was included with a prefix, only FastAPI's context has the whole path.
    """
    route = scope.get("route")
    whole = scope.get("fastapi", {}).get("effective_route_context")
    found = getattr(whole, "path_format", None) or getattr(route, "path_format", None) or getattr(route, "path", None)
    return found if isinstance(found, str) else None


def method_of(scope: Scope) -> str:
    """Return the method, or `other` for one that is not known: clients can send any text."""
    method: str = scope["method"]
    return method if method in METHODS else "other"
