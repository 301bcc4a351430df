"""Whose request it is: the guard says it once, the routes ask."""

from __future__ import annotations

from starlette.types import Scope

from magent2.models.principal import ADMIN, Principal

KEY = "magent2.principal"


def principal_of(scope: Scope) -> Principal:
    """Whoever the guard found; an application without access rules is everybody's."""
    found = scope.get(KEY, ADMIN)
    return found if isinstance(found, Principal) else ADMIN
