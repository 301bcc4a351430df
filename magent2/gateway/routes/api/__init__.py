"""`/api`: sessions, agents, tools and routing."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from magent2.gateway.house import House
from magent2.gateway.identity import principal_of
from magent2.gateway.problems import Problem
from magent2.gateway.routes import dead
from magent2.gateway.routes.api import agents, control, events, many, messages, routing, sessions, tools

# What ends in a word of its own comes before what is found by its id alone.
FAMILIES = (messages, routing, many, tools, agents, control, events, sessions)


def router(house: House) -> APIRouter:
    routes = APIRouter(prefix="/api")
    for family in FAMILIES:
        routes.include_router(family.router(house))
    routes.include_router(dead.router(house), dependencies=[Depends(admins_only)])
    return routes


def admins_only(request: Request) -> None:
    if not principal_of(request.scope).admin:
        raise Problem.admins_only()
