"""`/api/me`: who asks, as the gateway sees it."""

from __future__ import annotations

from fastapi import APIRouter, Request

from magent2.gateway.openapi import problems
from magent2.gateway.routes.api.dependencies import API, OF_HOUSE, asked_by
from magent2.gateway.services import House
from magent2.models.api.administration import PrincipalInfo
from magent2.models.principal import ADMIN_SCOPE


def router(_: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["house"])

    @routes.get("/me", responses=problems(*OF_HOUSE))
    async def me(request: Request) -> PrincipalInfo:
        """Who the credential stands for, and what it may do."""
        principal = asked_by(request)
        return PrincipalInfo(
            principal=principal.name, scopes=[*([ADMIN_SCOPE] if principal.admin else []), principal.name]
        )

    return routes
