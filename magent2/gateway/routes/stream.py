"""`GET /stream/{conversation_id}`: a conversation's log, as it grows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response

from magent2.gateway.openapi import EVENT_STREAM_RESPONSE, problems
from magent2.gateway.problems import Problem
from magent2.gateway.services import Services
from magent2.gateway.streaming.response import EventStream
from magent2.gateway.streaming.sse import (
    KINDS_TEXT_MAX_CHARS,
    MAX_EVENTS_MAX,
    BadCursor,
    StreamRequest,
    parse_cursor,
    parse_kinds,
)
from magent2.models.address import NAME_MAX_CHARS, check_name

Conversation = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS)]


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["streams"])

    @routes.get(
        "/stream/{conversation_id:path}",
        response_class=Response,
        responses={
            200: EVENT_STREAM_RESPONSE,
            204: {"description": "The conversation was deleted"},
            **problems(400, 401, 403, 404, 422, 429, 503),
        },
    )
    async def stream(
        conversation_id: Conversation,
        since: Annotated[str | None, Query(max_length=64, description="after this seq")] = None,
        kinds: Annotated[str | None, Query(max_length=KINDS_TEXT_MAX_CHARS, description="only these, as a,b")] = None,
        max_events: Annotated[int | None, Query(ge=1, le=MAX_EVENTS_MAX)] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Follow a conversation as server-sent events; `id:` is the cursor to resume after."""
        wanted = StreamRequest(
            check_name(conversation_id, "conversation id"),
            after=resume_cursor(since, last_event_id),
            kinds=None if kinds is None else parse_kinds(kinds),
            max_events=max_events,
        )
        return EventStream(services.streams, wanted)

    return routes


def resume_cursor(since: str | None, last_event_id: str | None) -> int | None:
    """Where to go on. A client that reconnects by itself sends both, and the header is the newer."""
    if last_event_id is not None and last_event_id.strip():
        try:
            return parse_cursor(last_event_id)
        except BadCursor as error:
            raise Problem(400, "bad_cursor", f"Last-Event-ID: {error}") from None
    return None if since is None else parse_cursor(since)
