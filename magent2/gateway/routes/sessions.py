"""`/api/sdk/session(s)…`: create, list, show, rename and delete sessions."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    ResponseFormat,
    SessionId,
    caller,
    check_answers,
    check_new_id,
    get_session,
    json_body,
    parse_body,
)
from magent2.gateway.services import Services, services_of
from magent2.gateway.streaming.session_list import session_state, session_summary
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT
from magent2.models.address import NAME_MAX_CHARS, check_conversation_id
from magent2.models.api.sessions import (
    Conversation,
    ConversationPage,
    LastRun,
    SessionCounts,
    SessionInfo,
    SessionList,
    SessionRequest,
    SessionSettings,
    SessionState,
    SessionSummary,
    SessionUsage,
    TitleRequest,
)
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal
from magent2.runner.providers.catalogue import check_choice
from magent2.sessions.folds import session_usage
from magent2.sessions.settings import SessionChange
from magent2.sessions.store import Session

LIST_MAX = 500
CURSOR_MAX_CHARS = 2000
LIST_CURSOR_PATTERN = "^[A-Za-z0-9_-]+$"  # base64; see `encode_list_cursor`
SCAN_PAGE = 500
SCAN_PAGES_MAX = 10  # pages of the list that one search or count may read


router = APIRouter(prefix=API, tags=["sessions"])


@router.post(
    "/sdk/session/create",
    operation_id="create_session",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 409, 410, 507),
    openapi_extra=json_body(SessionRequest),
)
async def create(request: Request) -> SessionSettings:
    """Create a session with these settings, or change them from its next run on.

    A change writes one `session` event with the names of the changed settings. Writes nothing if they are already
    set.
    """
    services = services_of(request)
    body = await parse_body(request, services, SessionRequest)
    session_id = f"s-{uuid.uuid4().hex}" if body.session_id is None else body.session_id
    add_audit_ids(request.scope, session_id=session_id)
    principal = caller(request)
    change = await _change(services, session_id, principal, body)
    made = await services.sessions.configure(session_id, principal, change)
    own = made.settings["agents"].get(change.agent, {})
    agent = services.catalogue.roster.agent(change.scenario_id, change.agent)
    return SessionSettings(
        session_id=session_id,
        agent_name=change.agent,
        model=own.get("model") or next(iter(agent.model_names), None),
        tools=services.catalogue.tools_of(agent, own.get("model")),
        overlay=made.settings.get("overlay"),
    )


async def _change(services: Services, session_id: str, principal: Principal, body: SessionRequest) -> SessionChange:
    """Return the requested change. Values that are left out are the session's, else the defaults of the scenario."""
    known = None
    if body.session_id is not None:
        known = await services.sessions.get(check_conversation_id(session_id))
    head = known.head if known is not None and principal.owns(known.owner) else {}
    scenario = services.catalogue.roster.scenario(
        body.scenario_id if body.scenario_id is not None else head.get("scenario_id")
    )
    active = str(head.get("active_agent") or "")
    kept = active if active in scenario.route_targets else scenario.root
    agent = scenario.agent(kept if body.agent_name is None else body.agent_name)
    check_answers(services, agent.name)
    await check_new_id(services, session_id)
    if body.model:
        check_choice(services.catalogue.roster, body.model)
    return SessionChange(
        agent.name,
        scenario.id,
        instructions=body.instructions,
        model=body.model,
        overlay=body.overlay,
        takes_over=body.agent_name is not None or agent.name != active,
    )


@router.get("/sdk/sessions", operation_id="list_sessions", responses=problems(*ACCESS_ERRORS, 422))
async def list_sessions(
    request: Request,
    q: Annotated[
        str | None, Query(max_length=200, description="in the title, the first or last message or the id")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
    before: Annotated[
        str | None,
        Query(
            max_length=CURSOR_MAX_CHARS,
            description="`next` of the page before",
            json_schema_extra={"pattern": LIST_CURSOR_PATTERN},
        ),
    ] = None,
    owner: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="for admins: only of this owner")] = None,
    state: Annotated[
        SessionState | None,
        Query(description="only sessions whose last run waits for an approval, is running, or has failed"),
    ] = None,
    response_format: ResponseFormat = "api",
) -> SessionList | ConversationPage:
    """List the caller's sessions, most recently active first. A page may be short and not be the last."""
    services = services_of(request)
    principal = caller(request)
    if owner is not None and not principal.owns(owner):
        return session_page([], None, response_format)
    whose = owner if principal.admin else principal.name
    place = None if before is None else decode_list_cursor(before)
    found, more = await _search(services, whose, (q or "").strip().casefold(), state, place, limit)
    return session_page(found, more, response_format)


@router.get("/sdk/sessions/counts", operation_id="count_sessions", responses=problems(*ACCESS_ERRORS))
async def count_sessions(request: Request) -> SessionCounts:
    """Count the caller's sessions by the state of their last run."""
    services = services_of(request)
    principal = caller(request)
    owner = None if principal.admin else principal.name
    counts: Counter[str | None] = Counter()
    before: tuple[int, str] | None = None
    for _ in range(SCAN_PAGES_MAX):
        page, before = await services.sessions.sessions(owner, before, SCAN_PAGE)
        counts.update(map(session_state, page))
        if before is None:
            break
    return SessionCounts(
        waiting=counts["waiting"], running=counts["running"], failed=counts["failed"], complete=before is None
    )


async def _search(
    services: Services,
    owner: str | None,
    needle: str,
    state: SessionState | None,
    before: tuple[int, str] | None,
    limit: int,
) -> tuple[list[Session], tuple[int, str] | None]:
    if not needle and state is None:
        page, more = await services.sessions.sessions(owner, before, limit)
        return list(page), more
    found: list[Session] = []
    for _ in range(SCAN_PAGES_MAX):
        page, more = await services.sessions.sessions(owner, before, SCAN_PAGE)
        found += (session for session in page if _matches(session, needle, state))
        if len(found) >= limit:
            return found[:limit], found[limit - 1].place
        if more is None:
            return found, None
        before = more
    return found, before


def _matches(session: Session, needle: str, state: SessionState | None) -> bool:
    if state is not None and session_state(session) != state:
        return False
    texts = (session.session_id, *(session.head.get(name) for name in ("title", FIRST_TEXT, LAST_TEXT)))
    return any(isinstance(text, str) and needle in text.casefold() for text in texts)


@router.get(
    "/sdk/session/{session_id:id}/usage",
    operation_id="get_usage",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422),
)
async def usage(session_id: SessionId, request: Request) -> SessionUsage:
    """Return the token usage of the session: of all its runs together, and by agent."""
    services = services_of(request)
    await get_session(services, session_id, caller(request))
    return SessionUsage(session_id=session_id, **session_usage(await services.histories.read(session_id)))


@router.get(
    "/sdk/session/{session_id:id}",
    operation_id="get_session",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422),
)
async def show(
    session_id: SessionId, request: Request, response_format: ResponseFormat = "api"
) -> SessionInfo | Conversation:
    """Return a session."""
    services = services_of(request)
    session = await get_session(services, session_id, caller(request))
    if response_format == "api":
        return await session_info(services, session)
    history = await services.histories.read(session_id)
    return conversation_info(session, session_usage(history)["usage"])


@router.patch(
    "/sdk/session/{session_id:id}",
    operation_id="retitle_session",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 507),
    openapi_extra=json_body(TitleRequest),
)
async def retitle(session_id: SessionId, request: Request) -> SessionInfo:
    """Set the title of a session."""
    services = services_of(request)
    body = await parse_body(request, services, TitleRequest)
    await get_session(services, session_id, caller(request))
    return await session_info(services, await services.sessions.retitle(session_id, body.title))


@router.delete(
    "/sdk/session/{session_id:id}",
    operation_id="delete_session",
    status_code=204,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422, 501, 507),
)
async def delete(session_id: SessionId, request: Request) -> Response:
    """Delete a session permanently: its logs, copies in other logs and its messages."""
    services = services_of(request)
    await get_session(services, session_id, caller(request))
    await services.sessions.delete(session_id)
    return Response(status_code=204)


async def session_info(services: Services, session: Session) -> SessionInfo:
    history = await services.histories.read(session.session_id)
    head = session.head
    status = head.get("run_status")
    run = LastRun(status=str(status), agent_id=head.get("run_agent"), message_id=head.get("run_envelope"))
    entry = session_summary(session)
    return SessionInfo(
        session_id=entry["session_id"],
        active_agent_id=entry["active_agent_id"],
        scenario_id=entry["scenario_id"],
        title=entry["title"],
        last_seq=entry["last_seq"],
        last_active_ms=entry["last_active_ms"],
        owner=entry["owner"],
        state="running" if status == "running" else "idle",
        last_run=None if status is None else run,
        overlay=history.settings.get("overlay"),
        usage=session_usage(history)["usage"],
    )


def conversation_info(session: Session, usage: JsonObject | None = None) -> Conversation:
    """Return a session as it is stored. `usage` is that of all its runs, which a list would read too much to have."""
    head = session.head
    last_run_usage = head.get("usage")
    return Conversation(
        conversation_id=session.session_id,
        last_seq=session.last,
        active_agent=session.active_agent,
        title=_text(head.get("title")) or _text(head.get(FIRST_TEXT)) or _text(head.get(LAST_TEXT)),
        run_status=_text(head.get("run_status")),
        last_active_at=datetime.fromtimestamp(session.active_ms / 1000, UTC),
        usage=usage,
        last_run_usage=last_run_usage if isinstance(last_run_usage, dict) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def session_page(
    found: list[Session], more: tuple[int, str] | None, response_format: Literal["api", "record"]
) -> SessionList | ConversationPage:
    cursor = None if more is None else encode_list_cursor(more)
    if response_format == "record":
        return ConversationPage(conversations=[conversation_info(session) for session in found], next=cursor)
    return SessionList(sessions=[SessionSummary(**session_summary(session)) for session in found], next=cursor)


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
