"""`…/events`, `…/transcript`, `…/stream` and `…/files`: what a session contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.operations import OLDEST, Describe, Find, GetBlob, Read
from magent2.bus.records import Page, Record, TopicInfo
from magent2.errors import BlobMissing, TopicDeleted, UnknownCursor
from magent2.gateway.openapi import EVENT_SCHEMA, problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    SESSION_ERRORS,
    LastEventId,
    ResponseFormat,
    SessionId,
    Since,
    caller,
    get_session,
    json_response,
    parse_since,
    unknown_session,
)
from magent2.gateway.routes.streams import resume_cursor
from magent2.gateway.services import Services, services_of
from magent2.gateway.streaming.open_streams import EventStream
from magent2.gateway.streaming.sse import EVENT_FORMAT, MAX_EVENTS_MAX, StreamRequest
from magent2.models.address import check_name, stream_topic
from magent2.models.api.messages import EVENT_EXAMPLE, ApiEventPage, RecordPage, Transcript
from magent2.models.json_types import JsonObject
from magent2.models.media import OCTET_STREAM, served_type
from magent2.models.principal import Principal
from magent2.sessions.folds import TranscriptFold
from magent2.sessions.stream import flat_event
from magent2.sessions.superseding import superseded_id

EVENTS_MAX = 1000
TRANSCRIPT_MAX = 1000
PAGES_MAX = 20  # pages of the log that one request for a transcript may read

SESSION_STREAM_RESPONSE = {
    "description": "Server-sent events: `id` is the seq, `event` the type, `data` the event as JSON",
    "content": {
        "text/event-stream": {
            "schema": EVENT_SCHEMA,
            "example": {"id": "2", "event": "message", "data": orjson.dumps(EVENT_EXAMPLE).decode()},
        }
    },
}


router = APIRouter(prefix=API, tags=["sessions"])


@router.get(
    "/sdk/session/{session_id:id}/stream",
    operation_id="stream_session",
    response_class=Response,
    responses={200: SESSION_STREAM_RESPONSE, **problems(*ACCESS_ERRORS, *SESSION_ERRORS, 400, 422)},
)
async def stream(
    session_id: SessionId,
    request: Request,
    since: Since = None,
    max_events: Annotated[int | None, Query(ge=1, le=MAX_EVENTS_MAX)] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow the events of a session as server-sent events; `id:` is the cursor to resume after."""
    services = services_of(request)
    await get_session(services, session_id, caller(request))
    after = resume_cursor(since, last_event_id)
    return EventStream(
        services.streams, StreamRequest(session_id, after, max_events=max_events, frame_format=EVENT_FORMAT)
    )


@router.get(
    "/sdk/session/{session_id:id}/events",
    operation_id="list_events",
    response_model=ApiEventPage | RecordPage,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422),
)
async def events(
    session_id: SessionId,
    request: Request,
    since: Since = None,
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = 100,
    response_format: ResponseFormat = "api",
) -> Response:
    """Return the events after `since`, in order, one page at a time."""
    services = services_of(request)
    page = await read_page(services, session_id, caller(request), parse_since(since), limit)
    if response_format == "record":
        records = [{**record.payload, "seq": record.seq} for record in page.records if not record.erased]
        return _paged("conversation_id", session_id, records, page)
    shown = (flat_event(session_id, record) for record in page.records)
    return _paged("session_id", session_id, [event for event in shown if event is not None], page)


@router.get(
    "/sdk/session/{session_id:id}/transcript",
    operation_id="get_transcript",
    response_model=Transcript,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422),
)
async def transcript(
    session_id: SessionId,
    request: Request,
    since: Since = None,
    limit: Annotated[int, Query(ge=1, le=TRANSCRIPT_MAX)] = 100,
) -> Response:
    """Return the messages and compactions of a session, one page at a time.

    A page may be short and not be the last.
    """
    services = services_of(request)
    principal, after = caller(request), parse_since(since)
    fold = TranscriptFold(session_id)
    last = after
    for _ in range(PAGES_MAX):
        page = await read_page(services, session_id, principal, after, EVENTS_MAX)
        after, last = _add_lines(fold, page, limit)
        if len(fold.lines) == limit or after >= last:
            break
    for message_id in fold.open_messages:  # the event may lie behind what was read
        event = await services.bus.acall(Find(stream_topic(session_id), superseded_id(message_id)))
        if event is not None and not event.erased:
            fold.supersede(event.payload)
    body = {"session_id": session_id, "messages": fold.lines, "next_since": after, "has_more": after < last}
    return json_response(body)


def _add_lines(fold: TranscriptFold, page: Page, limit: int) -> tuple[int, int]:
    """Add the lines of a page up to the limit. Return the seq up to which it was read, and the last seq."""
    for record in page.records:
        if fold.take(record) and len(fold.lines) == limit:
            return record.seq, page.last
    return (page.records[-1].seq if page.records else page.last), page.last


def _paged(id_field: str, session_id: str, events: Sequence[Mapping[str, object]], page: Page) -> Response:
    next_since = page.records[-1].seq if page.records else page.last
    body = {id_field: session_id, "events": events, "next_since": next_since, "has_more": next_since < page.last}
    return json_response(body)


async def read_page(services: Services, session_id: str, principal: Principal, after: int, limit: int) -> Page:
    """Read a page of a session of the caller."""
    topic = stream_topic(check_name(session_id, "session id"))
    if not principal.admin:
        await get_session(services, session_id, principal)
    try:
        page: Page = await services.bus.acall(Read(topic, after, limit))
    except UnknownCursor:
        raise await _cursor_problem(services, topic, session_id, after) from None
    if page.deleted:
        raise TopicDeleted(f"session {session_id!r} was deleted")
    if not page.last and principal.admin:
        await get_session(services, session_id, principal)
    return page


async def _cursor_problem(services: Services, topic: str, session_id: str, after: int) -> Problem:
    """Return the problem of a cursor that the log does not have."""
    found: tuple[TopicInfo, ...] = await services.bus.acall(Describe((topic,)))
    state = found[0]
    if not state.last and not state.head:
        return unknown_session(session_id)
    if after < state.floor:
        detail = f"events up to {state.floor} are gone; read on with since={state.floor}"
        return Problem(410, "cursor_gone", detail, fields={"floor": state.floor})
    return Problem(
        422, "bad_cursor", f"{after} is beyond the last event, which is {state.last}", fields={"last": state.last}
    )


PAGE = 1000

FILE_RESPONSE: JsonObject = {
    "description": "The file, as an attachment",
    "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}, "example": "(bytes)"}},
}
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
AtSeq = Annotated[
    int | None,
    Query(ge=1, le=2**53 - 1, description="the seq of the event that shows the file; quicker when it is given"),
]


@router.get(
    "/sdk/session/{session_id:id}/files/{sha256}",
    operation_id="get_file",
    response_class=Response,
    responses={200: FILE_RESPONSE, **problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422)},
)
async def file(session_id: SessionId, sha256: Sha256, request: Request, seq: AtSeq = None) -> Response:
    """Return a file that an event of the session shows."""
    services = services_of(request)
    session = await get_session(services, session_id, caller(request))
    description = await _find_attachment(services, session.session_id, sha256, seq)
    if description is None:
        raise _unknown_file(sha256)
    try:
        data = await services.bus.acall(GetBlob(sha256))
    except BlobMissing:
        raise _unknown_file(sha256) from None
    return Response(data, headers=headers_of(description))


async def _find_attachment(services: Services, session_id: str, sha256: str, seq: int | None) -> JsonObject | None:
    """Find the description of a file in the session's events. Files that no event shows are not served."""
    after = OLDEST if seq is None else seq - 1
    while True:
        page: Page = await services.bus.acall(Read(stream_topic(session_id), after, PAGE if seq is None else 1))
        found = next((item for record in page.records for item in _attachments(record, sha256)), None)
        if found is not None or seq is not None or not page.records:
            return found
        after = page.records[-1].seq
        if after >= page.last:
            return None


def _attachments(record: Record, sha256: str) -> list[JsonObject]:
    if sha256 not in record.blobs:
        return []
    return [dict(item) for item in record.payload.get("attachments") or () if item.get("sha256") == sha256]


def headers_of(description: JsonObject) -> dict[str, str]:
    """Return headers that make a browser save the file under its name and never render it."""
    name = str(description.get("name") or "file")
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._- ") else "_" for char in name)
    return {
        "Content-Type": served_type(description.get("media_type")),
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, no-store",
    }


def _unknown_file(sha256: str) -> Problem:
    return Problem(404, "unknown_file", f"no message of this session shows a file {sha256}")
