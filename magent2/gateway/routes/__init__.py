"""The routes, one module per part of the API."""

from __future__ import annotations

from fastapi import APIRouter

from magent2.gateway.routes import (
    agents,
    approvals,
    channels,
    control,
    dead,
    events,
    files,
    me,
    messages,
    moved,
    multi_stream,
    outbox,
    page,
    people,
    probes,
    routing,
    send,
    sessions,
    steering,
    stream,
    tools,
    workers,
)
from magent2.gateway.services import Services

# Order matters within /api/sdk/session/{id:path}: routes with a fixed last word come before the route of the id alone.
MODULES = (
    send, stream, moved, workers, dead, probes, page,
    messages, routing, multi_stream, me, tools, agents, people, channels, outbox, control, files, steering, approvals,
    events, sessions,
)  # fmt: skip


def all_routes(services: Services) -> APIRouter:
    """Return every route of the gateway in one router."""
    routes = APIRouter()
    for module in MODULES:
        routes.routes.extend(module.router(services).routes)
    return routes
