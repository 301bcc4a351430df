"""`/conversations`: what there is, what was said, stopping a run, deleting."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated

import orjson
from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from magent2.bus.operations import OLDEST, Describe, Read
from magent2.bus.records import Page, Record, TopicInfo
from magent2.errors import TopicDeleted, UnknownCursor
from magent2.gateway.access import audit
from magent2.gateway.access.identity import check_sender, principal_of
from magent2.gateway.limits.body import check_json, read_body
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem, bad_body
from magent2.gateway.services import Services
from magent2.gateway.streaming.sse import parse_cursor
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT
from magent2.models.address import NAME_MAX_CHARS, check_name, stream_topic
from magent2.models.api.messages import RecordPage
from magent2.models.api.sessions import Conversation, ConversationPage, StopRequest, StopResponse
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import Principal
from magent2.sessions.store import Session

LIST_MAX = 500
EVENTS_MAX = 1000
CURSOR_MAX_CHARS = 2000

ConversationId = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS)]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix="/conversations", tags=["conversations"])
    _listing(routes, services)
    _events(routes, services)
    _stopping(routes, services)
    _one(routes, services)
    return routes


def _listing(routes: APIRouter, services: Services) -> None:
    @routes.get("", responses=problems(401, 403, 422, 429, 503))
    async def list_conversations(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
        before: Annotated[
            str | None, Query(max_length=CURSOR_MAX_CHARS, description="`next` of the page before")
        ] = None,
        owner: Annotated[str | None, Query(max_length=NAME_MAX_CHARS)] = None,
    ) -> ConversationPage:
        """Conversations, most recently active first; whoever is no admin sees their own."""
        place = None if before is None else decode_list_cursor(before)
        principal = principal_of(request.scope)
        if owner is not None and not principal.owns(owner):
            return ConversationPage(conversations=[], next=None)
        found, more = await services.sessions.sessions(owner or principal.bound, place, limit)
        return ConversationPage(
            conversations=[shown(session) for session in found], next=None if more is None else encode_list_cursor(more)
        )


def _events(routes: APIRouter, services: Services) -> None:
    @routes.get("/{conversation_id:path}/events", responses=problems(401, 403, 404, 410, 422, 429, 503))
    async def events(
        conversation_id: ConversationId,
        request: Request,
        since: Annotated[str | None, Query(max_length=64, description="after this seq")] = None,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = 100,
    ) -> RecordPage:
        """What was recorded, a page at a time."""
        topic = stream_topic(check_name(conversation_id, "conversation id"))
        after = OLDEST if since is None else parse_cursor(since)
        if not principal_of(request.scope).admin:
            await _existing(services, conversation_id, principal_of(request.scope))
        try:
            page: Page = await services.bus.acall(Read(topic, after, limit))
        except UnknownCursor:
            raise await _lost(services, topic, conversation_id, after) from None
        if page.deleted:
            raise TopicDeleted(f"conversation {conversation_id!r} was deleted")
        if not page.last and await services.sessions.get(conversation_id) is None:
            raise unknown(conversation_id)
        next_since = page.records[-1].seq if page.records else page.last
        return RecordPage(
            conversation_id=conversation_id,
            events=[_numbered(record) for record in page.records if not record.erased],
            next_since=next_since,
            has_more=next_since < page.last,
        )


async def _lost(services: Services, topic: str, conversation: str, after: int) -> Problem:
    """Why a cursor points at nothing."""
    found: tuple[TopicInfo, ...] = await services.bus.acall(Describe((topic,)))
    state = found[0]
    if not state.last and not state.head:
        return unknown(conversation)
    if after < state.floor:
        detail = f"records up to {state.floor} are gone; read on with since={state.floor}"
        return Problem(410, "cursor_gone", detail, floor=state.floor)
    return Problem(422, "bad_cursor", f"{after} is beyond the last record, which is {state.last}", last=state.last)


def _numbered(record: Record) -> dict[str, object]:
    return {**record.payload, "seq": record.seq}


def _stopping(routes: APIRouter, services: Services) -> None:
    @routes.post(
        "/{conversation_id:path}/stop",
        status_code=202,
        responses=problems(400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 429, 503, 507),
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": StopRequest.model_json_schema()}}}},
    )
    async def stop(conversation_id: ConversationId, request: Request) -> StopResponse:
        """Stop what an agent is doing in the conversation; the body may be left out."""
        principal = principal_of(request.scope)
        wanted = await _stop_request(request, services, principal)
        session = await _existing(services, conversation_id, principal)
        agent = wanted.agent or session.active_agent
        if agent is None:
            raise Problem(409, "no_active_agent", "no agent is active in this conversation; name one as 'agent'")
        command = MessageEnvelope(
            conversation_id=conversation_id,
            sender=check_name(wanted.sender, "sender"),
            recipient=f"agent:{check_name(agent, 'agent name')}",
            type="control",
            content="stop",
        )
        audit.add_ids(request.scope, envelope_id=command.id, agent=agent, sender=command.sender)
        delivered = await services.sessions.post(command, SendOptions(principal=principal.bound))
        return StopResponse(agent=agent, envelope_id=command.id, seq=delivered.appended.seqs[-1])


async def _stop_request(request: Request, services: Services, principal: Principal) -> StopRequest:
    body = await read_body(request.scope, request.receive, services.limits)
    if not body:
        return StopRequest(sender=principal.name)
    check_json(request.scope)
    try:
        wanted = StopRequest.model_validate_json(body)
    except ValidationError as error:
        raise bad_body(error) from None
    sender = check_sender(principal, wanted.sender if "sender" in wanted.model_fields_set else None)
    return wanted.model_copy(update={"sender": sender})


def _one(routes: APIRouter, services: Services) -> None:
    @routes.get("/{conversation_id:path}", responses=problems(401, 403, 404, 410, 422, 429, 503))
    async def show(conversation_id: ConversationId, request: Request) -> Conversation:
        """One conversation."""
        return shown(await _existing(services, conversation_id, principal_of(request.scope)))

    @routes.delete(
        "/{conversation_id:path}", status_code=204, responses=problems(401, 403, 404, 410, 422, 429, 501, 503, 507)
    )
    async def delete(conversation_id: ConversationId, request: Request) -> Response:
        """Delete a conversation for good: its logs, its copies elsewhere, its mail."""
        await _existing(services, conversation_id, principal_of(request.scope))
        await services.sessions.delete(conversation_id)
        return Response(status_code=204)


async def _existing(services: Services, conversation: str, principal: Principal) -> Session:
    """The conversation, if it is theirs; somebody else's is not there for them. Its owner never changes."""
    session = await services.sessions.get(check_name(conversation, "conversation id"))
    if session is None or not principal.owns(session.owner):
        raise unknown(conversation)
    return session


def unknown(conversation: str) -> Problem:
    return Problem(404, "unknown_conversation", f"there is no conversation {conversation[:80]!r}")


def shown(session: Session) -> Conversation:
    head = session.head
    usage = head.get("usage")
    return Conversation(
        conversation_id=session.session_id,
        last_seq=session.last,
        active_agent=session.active_agent,
        title=_text(head.get("title")) or _text(head.get(FIRST_TEXT)) or _text(head.get(LAST_TEXT)),
        run_status=_text(head.get("run_status")),
        last_active_at=datetime.fromtimestamp(session.active_ms / 1000, UTC),
        usage=usage if isinstance(usage, dict) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def encode_list_cursor(place: tuple[int, str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def decode_list_cursor(text: str) -> tuple[int, str]:
    try:
        place = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        place = None
    match place:
        case [int(moment), str(topic)] if 0 <= moment <= 2**53:
            return moment, topic
    raise Problem(422, "bad_cursor", "'before' must be the 'next' of an earlier page")
