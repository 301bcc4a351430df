"""The routes, one module per part of the API."""

from __future__ import annotations

from functools import cache

from starlette.routing import BaseRoute

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

MODULES = (
    send, moved, page, messages, team, streams, tools, directory, administration, control, events, files, schedules,
    sessions, usage, webhooks, responses, chat,
)  # fmt: skip


@cache
def all_routes() -> tuple[BaseRoute, ...]:
    """Return every route of the gateway.

    Routes hold nothing of an application: each handler gets the services from its request. So they are built once in a
    process, which takes 0.1 s, and shared by all applications.
    """
    return tuple(route for module in MODULES for route in module.router().routes)
