"""`/api/me`: who asks, as the gateway sees it."""

from __future__ import annotations

from fastapi import APIRouter, Request

from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, caller
from magent2.gateway.services import Services
from magent2.models.api.administration import PrincipalInfo
from magent2.models.principal import ADMIN_SCOPE


def router(_: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["services"])

    @routes.get("/me", responses=problems(*ACCESS_ERRORS))
    async def me(request: Request) -> PrincipalInfo:
        """Who the credential stands for, and what it may do."""
        principal = caller(request)
        return PrincipalInfo(
            principal=principal.name, scopes=[*([ADMIN_SCOPE] if principal.admin else []), principal.name]
        )

    return routes
