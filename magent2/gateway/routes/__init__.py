"""The routes, one module per part of the API."""

from __future__ import annotations

from fastapi import APIRouter

from magent2.gateway.openai_api import chat, responses
from magent2.gateway.routes import (
    administration,
    control,
    directory,
    events,
    files,
    messages,
    moved,
    page,
    schedules,
    send,
    sessions,
    streams,
    team,
    tools,
    usage,
    webhooks,
)
from magent2.gateway.services import Services

MODULES = (
    send, moved, page, messages, team, streams, tools, directory, administration, control, events, files, schedules,
    sessions, usage, webhooks, responses, chat,
)  # fmt: skip


def all_routes(services: Services) -> APIRouter:
    """Return every route of the gateway in one router."""
    routes = APIRouter()
    for module in MODULES:
        routes.routes.extend(module.router(services).routes)
    return routes
