"""`/api`: sessions, agents, tools and routing."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from magent2.gateway.house import House
from magent2.gateway.identity import principal_of
from magent2.gateway.problems import Problem
from magent2.gateway.routes import dead
from magent2.gateway.routes.api import agents, control, events, many, messages, routing, sessions, steering, tools
from magent2.gateway.routes.api.asking import API

# What ends in a word of its own comes before what is found by its id alone.
FAMILIES = (messages, routing, many, tools, agents, control, steering, events, sessions)


def router(house: House) -> APIRouter:
    """All of them in one list. A router that is included in another is built anew for every app, and that is slow."""
    routes = APIRouter()
    for family in FAMILIES:
        routes.routes.extend(family.router(house).routes)
    routes.routes.extend(dead.router(house, API, [Depends(admins_only)]).routes)
    return routes


def admins_only(request: Request) -> None:
    if not principal_of(request.scope).admin:
        raise Problem.admins_only()
