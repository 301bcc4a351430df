"""The audit log: one line per request that changes something, and per refused credential. Ids only, never text.

The logger is `magent2.audit`. Requests are logged at INFO, refused credentials at WARNING.
"""

from __future__ import annotations

import logging
from typing import Any

from starlette.types import Scope

from magent2.directory.keys import split_key
from magent2.gateway.access.identity import identity_of
from magent2.gateway.proxy import client_address, route_path
from magent2.gateway.route_label import route_template

log = logging.getLogger("magent2.audit")

FACTS = "magent2.audit"
QUIET_METHODS = ("GET", "HEAD", "OPTIONS")
VALUE_MAX_CHARS = 200


def add_ids(scope: Scope, **ids: str | int | None) -> None:
    """Add ids to the audit line of the request, which is written with the response."""
    if log.isEnabledFor(logging.INFO):
        scope.setdefault(FACTS, {}).update(ids)


def log_request(scope: Scope, status: int) -> None:
    """Log a request that may have changed something."""
    if scope["method"] in QUIET_METHODS or not log.isEnabledFor(logging.INFO):
        return
    route = route_template(scope)
    if route is None:  # nothing was there to act on
        return
    acted = {**scope.get("path_params", {}), **scope.get(FACTS, {})}
    log.info(
        "acted", extra={"act": f"{scope['method']} {route}", "status": status, "ids": _short(acted), **_who(scope)}
    )


def log_key_used(key: str, principal: str) -> None:
    """A key that this process had not seen, or not for a while."""
    log.info("key used", extra={"key": key, "principal": principal})


def log_key_revoked(key: str, streams: int) -> None:
    log.info("key revoked", extra={"key": key, "streams_ended": streams})


def log_refused_credential(scope: Scope, text: str) -> None:
    """Log a credential that was refused: the id of a key, and nothing of any other text."""
    parts = split_key(text)
    path = route_path(scope)[:VALUE_MAX_CHARS]
    key = parts[0] if parts else None
    log.warning("refused", extra={"method": scope["method"], "path": path, "key": key, "client": client_address(scope)})


def _who(scope: Scope) -> dict[str, Any]:
    identity = identity_of(scope)
    principal = identity.principal
    return {"principal": principal.name, "admin": principal.admin, "key": identity.key, "client": client_address(scope)}


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        field: value[:VALUE_MAX_CHARS] if isinstance(value, str) else value
        for field, value in facts.items()
        if value is not None
    }
