"""`GET /stream/{conversation_id}` and `GET /api/stream`: conversations as server-sent events."""

from __future__ import annotations

from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Scope

from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.gateway.access.auth import Identity, identity_of
from magent2.gateway.openapi import EVENT_SCHEMA, EVENT_STREAM_RESPONSE, problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, LastEventId, SessionId, Since
from magent2.gateway.services import Services, services_of
from magent2.gateway.streaming.open_streams import EventStream
from magent2.gateway.streaming.reader import (
    CURSORS_MAX_CHARS,
    SESSIONS_MAX,
    Cursors,
    MultiSessionReader,
    parse_cursors,
)
from magent2.gateway.streaming.sse import (
    EVENT_FORMAT,
    KINDS_TEXT_MAX_CHARS,
    MAX_EVENTS_MAX,
    BadCursor,
    StreamRequest,
    parse_cursor,
    parse_kinds,
)
from magent2.models.address import check_name, stream_topic
from magent2.models.api.messages import EVENT_EXAMPLE

conversation_stream_router = APIRouter(tags=["streams"])
multi_session_stream_router = APIRouter(prefix=API, tags=["sessions"])


@conversation_stream_router.get(
    "/stream/{conversation_id:last_id}",
    operation_id="stream_conversation",
    response_class=Response,
    responses={
        200: EVENT_STREAM_RESPONSE,
        204: {"description": "The conversation was deleted"},
        **problems(400, 401, 403, 404, 422, 429, 503),
    },
)
async def stream_conversation(
    request: Request,
    conversation_id: SessionId,
    since: Since = None,
    kinds: Annotated[str | None, Query(max_length=KINDS_TEXT_MAX_CHARS, description="only these, as a,b")] = None,
    max_events: Annotated[int | None, Query(ge=1, le=MAX_EVENTS_MAX)] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a conversation as server-sent events; `id:` is the cursor to resume after."""
    services = services_of(request)
    stream_request = StreamRequest(
        check_name(conversation_id, "conversation id"),
        after=resume_cursor(since, last_event_id),
        kinds=None if kinds is None else parse_kinds(kinds),
        max_events=max_events,
    )
    return EventStream(services.streams, stream_request)


def resume_cursor(since: str | None, last_event_id: str | None) -> int | None:
    """Return the cursor to resume after. A client that reconnects sends both, and the header is newer than `since`."""
    if last_event_id is not None and last_event_id.strip():
        try:
            return parse_cursor(last_event_id)
        except BadCursor as error:
            raise Problem(400, "bad_cursor", f"Last-Event-ID: {error}") from None
    return None if since is None else parse_cursor(since)


MULTI_SESSION_EXAMPLE = {"id": "s-1:2,s-2:9", "event": "message", "data": orjson.dumps(EVENT_EXAMPLE).decode()}
MULTI_SESSION_RESPONSE = {
    "description": "Server-sent events. `sessions` is the whole list, `sessions_changed` what has changed of it since;"
    " all other events are events of sessions. `id` has `ID:SEQ` of each requested session, percent-encoded",
    "content": {"text/event-stream": {"schema": EVENT_SCHEMA, "example": MULTI_SESSION_EXAMPLE}},
}


@multi_session_stream_router.get(
    "/stream",
    operation_id="stream_sessions",
    response_class=Response,
    responses={200: MULTI_SESSION_RESPONSE, **problems(*ACCESS_ERRORS, 400, 422)},
)
async def stream_sessions(
    request: Request,
    session: Annotated[
        list[str] | None,
        Query(description=f"`ID:SINCE`, percent-encoded, or `ID` from the beginning; at most {SESSIONS_MAX}"),
    ] = None,
    max_events: Annotated[
        int | None,
        Query(ge=1, le=MAX_EVENTS_MAX, description="end after this many events, list events included"),
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=CURSORS_MAX_CHARS)] = None,
) -> Response:
    """Follow several sessions and the list of sessions.

    To change the set of sessions, open a new stream with the cursors of the last `id`. A session that ends, does
    not exist or is not the caller's gets an `end` event of its own; the others go on.
    """
    services = services_of(request)
    cursors = merge_last_event_id(parse_cursors(session or []), last_event_id)
    found = await _describe(services, cursors)
    return MultiSessionStream(services, cursors, found, identity_of(request.scope), max_events)


def merge_last_event_id(cursors: Cursors, last_event_id: str | None) -> dict[str, int | None]:
    """Return the cursors to resume after. A client that reconnects sends both, and those of the header are newer."""
    try:
        newer = parse_cursors([text for text in (last_event_id or "").strip().split(",") if text])
    except BadCursor as error:
        raise Problem(400, "bad_cursor", f"Last-Event-ID: {error}") from None
    return {name: newer[name] if newer.get(name) is not None else after for name, after in cursors.items()}


async def _describe(services: Services, cursors: Cursors) -> dict[str, TopicInfo]:
    if not cursors:
        return {}
    found: tuple[TopicInfo, ...] = await services.bus.acall(Describe(tuple(map(stream_topic, cursors))))
    return dict(zip(cursors, found, strict=True))


class MultiSessionStream(EventStream):
    """The streaming response for several sessions."""

    def __init__(
        self,
        services: Services,
        cursors: Cursors,
        found: dict[str, TopicInfo],
        identity: Identity,
        max_events: int | None,
    ) -> None:
        super().__init__(services.streams, StreamRequest("several sessions", max_events=max_events))
        self._services = services
        self._identity = identity
        self._ends = {name: end for name, info in found.items() if (end := self._end_of(info)) is not None}
        self._cursors = {name: after for name, after in cursors.items() if name not in self._ends}

    def _end_of(self, info: TopicInfo) -> Literal["deleted", "unknown"] | None:
        """Return why a session is not followed. A session of another owner is reported as unknown."""
        if info.deleted:
            return "deleted"
        exists = bool(info.last or info.head)
        return None if exists and self._identity.principal.owns(info.head.get("owner")) else "unknown"

    def _enter(self, scope: Scope) -> MultiSessionReader:
        streams = self._services.streams
        streams.check(self._identity)
        requests = [
            StreamRequest(name, after=after, frame_format=EVENT_FORMAT) for name, after in self._cursors.items()
        ]
        fanout = streams.fanout(EVENT_FORMAT)
        reader = MultiSessionReader(
            self._services.bus, fanout, self._cursors, requests, self._identity, self._request.max_events
        )
        reader.add_list(self._services.session_lists)
        for name, reason in self._ends.items():
            reader.add_notice(EVENT_FORMAT.end(name, reason))
        return streams.admit(reader)
