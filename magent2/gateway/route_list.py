"""All routes of the gateway."""

from __future__ import annotations

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

ROUTERS = (
    send.router, moved.router, page.page_router(), messages.router, team.agents_router, team.routing_router,
    streams.conversation_stream_router, streams.multi_session_stream_router, tools.router, directory.people_router,
    directory.channels_router, administration.probe_router, administration.workers_router, administration.dead_router,
    administration.outbox_router, administration.me_router, control.router, events.router, files.router,
    schedules.router, sessions.router, usage.router, webhooks.router, responses.router, chat.router,
)  # fmt: skip
# Handlers get the services of their application from the request, so all applications of a process share the routes.
# `include_router` would build each route again, which takes 0.1 s.
ROUTES: tuple[BaseRoute, ...] = tuple(route for router in ROUTERS for route in router.routes)
