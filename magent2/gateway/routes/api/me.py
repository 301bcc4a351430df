"""`/api/me`: who asks, as the gateway sees it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from magent2.gateway.house import House
from magent2.gateway.routes.api.asking import API, OF_HOUSE, asked_by
from magent2.gateway.schemas import example, problems
from magent2.models.principal import ADMIN_SCOPE


class Me(BaseModel):
    """Whoever asks. `principal` owns what they begin and signs what they send."""

    model_config = example(principal="user:ann", scopes=["user:ann"])

    principal: str
    scopes: list[str] = Field(description="`admin`, or the one user whose things these are, or both")


def router(_: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["house"])

    @routes.get("/me", responses=problems(*OF_HOUSE))
    async def me(request: Request) -> Me:
        """Who the credential stands for, and what it may do."""
        principal = asked_by(request)
        return Me(principal=principal.name, scopes=[*([ADMIN_SCOPE] if principal.admin else []), principal.name])

    return routes
