"""`/api`: sessions, agents, tools and routing."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from magent2.gateway.routes import dead
from magent2.gateway.routes.api import (
    agents,
    approvals,
    channels,
    control,
    events,
    files,
    me,
    messages,
    people,
    routing,
    sessions,
    steering,
    tools,
)
from magent2.gateway.routes.api import multi_stream as many
from magent2.gateway.routes.api import outbox as outside
from magent2.gateway.routes.api.dependencies import API, admins_only
from magent2.gateway.services import House

# What ends in a word of its own comes before what is found by its id alone.
FAMILIES = (
    messages,
    routing,
    many,
    me,
    tools,
    agents,
    people,
    channels,
    outside,
    control,
    files,
    steering,
    approvals,
    events,
    sessions,
)


def router(house: House) -> APIRouter:
    """All of them in one list. A router that is included in another is built anew for every app, and that is slow."""
    routes = APIRouter()
    for family in FAMILIES:
        routes.routes.extend(family.router(house).routes)
    routes.routes.extend(dead.router(house, API, [Depends(admins_only)]).routes)
    return routes
