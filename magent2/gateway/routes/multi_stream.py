"""`GET /api/stream`: many sessions and the list of them on one connection."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Scope

from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.gateway.access.identity import Identity, identity_of
from magent2.gateway.openapi import EVENT_SCHEMA, problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API
from magent2.gateway.services import Services
from magent2.gateway.streaming.multi_session import (
    CURSORS_MAX_CHARS,
    SESSIONS_MAX,
    Cursors,
    MultiSessionReader,
    parse_cursors,
)
from magent2.gateway.streaming.response import EventStream
from magent2.gateway.streaming.session_frames import EVENT_FORMAT, end_frame
from magent2.gateway.streaming.sse import MAX_EVENTS_MAX, BadCursor, StreamRequest
from magent2.models.address import stream_topic
from magent2.models.api.messages import EVENT_EXAMPLE

NUMBERED = {"id": "s-1:2,s-2:9", "event": "message", "data": orjson.dumps(EVENT_EXAMPLE).decode()}
MANY = {
    "description": "Server-sent events. `sessions` is the whole list, `sessions_changed` what has changed of it since;"
    " all else are events of sessions. `id` holds `ID:SEQ` of the sessions asked for, percent-encoded",
    "content": {"text/event-stream": {"schema": EVENT_SCHEMA, "example": NUMBERED}},
}


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])

    @routes.get("/stream", response_class=Response, responses={200: MANY, **problems(*ACCESS_ERRORS, 400, 422)})
    async def stream(
        request: Request,
        session: Annotated[
            list[str] | None,
            Query(description=f"`ID:SINCE`, percent-encoded, or `ID` for all there is; at most {SESSIONS_MAX}"),
        ] = None,
        max_events: Annotated[
            int | None, Query(ge=1, le=MAX_EVENTS_MAX, description="end after so many, those about the list included")
        ] = None,
        last_event_id: Annotated[str | None, Header(max_length=CURSORS_MAX_CHARS)] = None,
    ) -> Response:
        """Follow many sessions and the list of them.

        A changed set of sessions is a new request, from the cursors of the last `id`. A session that ends, is not
        there or is not the caller's is told by an `end` of its own; the others go on.
        """
        cursors = merge_last_event_id(parse_cursors(session or []), last_event_id)
        found = await _described(services, cursors)
        return MultiSessionStream(services, cursors, found, identity_of(request.scope), max_events)

    return routes


def merge_last_event_id(cursors: Cursors, last_event_id: str | None) -> dict[str, int | None]:
    """Where to go on: a client that reconnects by itself sends both, and the header is the newer."""
    try:
        seen = parse_cursors([text for text in (last_event_id or "").strip().split(",") if text])
    except BadCursor as error:
        raise Problem(400, "bad_cursor", f"Last-Event-ID: {error}") from None
    return {name: seen[name] if seen.get(name) is not None else after for name, after in cursors.items()}


async def _described(services: Services, cursors: Cursors) -> dict[str, TopicInfo]:
    if not cursors:
        return {}
    found: tuple[TopicInfo, ...] = await services.bus.acall(Describe(tuple(map(stream_topic, cursors))))
    return dict(zip(cursors, found, strict=True))


class MultiSessionStream(EventStream):
    """The same answer, for many."""

    def __init__(
        self,
        services: Services,
        cursors: Cursors,
        found: dict[str, TopicInfo],
        identity: Identity,
        max_events: int | None,
    ) -> None:
        super().__init__(services.streams, StreamRequest("many sessions", max_events=max_events))
        self._services = services
        self._identity = identity
        self._ends = {name: end for name, info in found.items() if (end := self._end_of(info)) is not None}
        self._cursors = {name: after for name, after in cursors.items() if name not in self._ends}

    def _end_of(self, info: TopicInfo) -> str | None:
        """Return why a session is not followed. A session of another owner is reported as unknown."""
        if info.deleted:
            return "deleted"
        is_there = bool(info.last or info.head)
        return None if is_there and self._identity.principal.owns(info.head.get("owner")) else "unknown"

    def _enter(self, scope: Scope) -> MultiSessionReader:
        streams = self._services.streams
        streams.check(self._identity)
        wanted = [StreamRequest(name, after=after, rendering=EVENT_FORMAT) for name, after in self._cursors.items()]
        fanout = streams.fanout(EVENT_FORMAT)
        whole = MultiSessionReader(
            self._services.bus, fanout, self._cursors, wanted, self._identity, self._wanted.max_events
        )
        whole.look_at(self._services.session_lists)
        for name, reason in self._ends.items():
            whole.say(end_frame(name, reason))
        return streams.admit(whole)
