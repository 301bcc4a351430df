"""The routes, one module per part of the API."""

from __future__ import annotations

from fastapi import APIRouter

from magent2.gateway.routes import (
    administration,
    control,
    directory,
    events,
    messages,
    moved,
    page,
    send,
    sessions,
    streams,
    team,
    tools,
)
from magent2.gateway.services import Services

MODULES = (
    send, moved, page, messages, team, streams, tools, directory, administration, control, events, sessions,
)  # fmt: skip


def all_routes(services: Services) -> APIRouter:
    """Return every route of the gateway in one router."""
    routes = APIRouter()
    for module in MODULES:
        routes.routes.extend(module.router(services).routes)
    return routes
