"""`/api`: sessions, agents, tools and routing."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from magent2.gateway.house import House
from magent2.gateway.routes import dead
from magent2.gateway.routes.api import (
    agents,
    approvals,
    channels,
    control,
    events,
    files,
    many,
    me,
    messages,
    outside,
    people,
    routing,
    sessions,
    steering,
    tools,
)
from magent2.gateway.routes.api.asking import API, admins_only

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
