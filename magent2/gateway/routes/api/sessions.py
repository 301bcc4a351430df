"""`/api/sdk/session…`: making sessions, how they stand, their list, their titles, and their end."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from magent2.gateway.access import audit
from magent2.gateway.openapi import problems
from magent2.gateway.routes.api.dependencies import (
    API,
    OF_BODY,
    OF_HOUSE,
    OF_SESSION,
    SessionId,
    asked_by,
    existing,
    json_body,
    parsed,
)
from magent2.gateway.routes.conversations import CURSOR_MAX_CHARS, open_cursor, seal_cursor
from magent2.gateway.services import House
from magent2.gateway.streaming.session_list import item_of
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT
from magent2.models.address import NAME_MAX_CHARS, check_name
from magent2.models.api.sessions import (
    LastRun,
    SessionInfo,
    SessionList,
    SessionRequest,
    SessionSettings,
    SessionSummary,
    SessionUsage,
    TitleRequest,
)
from magent2.models.principal import Principal
from magent2.sessions.folds import session_usage
from magent2.sessions.settings import SessionChange
from magent2.sessions.store import Session

LIST_MAX = 200
SCAN_PAGE = 500
SCAN_PAGES_MAX = 10  # of the list that one search may look at


def router(house: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])
    _creating(routes, house)
    _listing(routes, house)
    _usage(routes, house)
    _one(routes, house)
    return routes


# --- making one


def _creating(routes: APIRouter, house: House) -> None:
    @routes.post(
        "/sdk/session/create",
        responses=problems(*OF_HOUSE, *OF_BODY, 409, 410, 507),
        openapi_extra=json_body(SessionRequest),
    )
    async def create(request: Request) -> SessionSettings:
        """Create a session, or change how one is held: from its next message on.

        A change is one `session` event, which names what changed and does not repeat it; no change writes nothing.
        """
        wanted = await parsed(request, house, SessionRequest)
        session_id = f"s-{uuid.uuid4().hex}" if wanted.session_id is None else wanted.session_id
        principal = asked_by(request)
        change = await _change(house, session_id, principal, wanted)
        made = await house.sessions.configure(session_id, principal, change)
        house.lists.look()
        audit.name(request.scope, session_id=session_id)
        own = made.settings["agents"].get(change.agent, {})
        agent = house.catalogue.roster.agent(change.scenario_id, change.agent)
        return SessionSettings(
            session_id=session_id,
            agent_name=change.agent,
            model=own.get("model") or agent.model,
            tools=house.catalogue.tools_of(agent),
            overlay=made.settings.get("overlay"),
        )


async def _change(house: House, session_id: str, principal: Principal, wanted: SessionRequest) -> SessionChange:
    """What is asked for, as a change: what is left out is as the session has it, or as the scenario begins."""
    known = None
    if wanted.session_id is not None:
        known = await house.sessions.get(check_name(session_id, "session id"))
    head = known.head if known is not None and principal.owns(known.owner) else {}
    scenario = house.catalogue.team(wanted.scenario_id if wanted.scenario_id is not None else head.get("scenario_id"))
    active = str(head.get("active_agent") or "")
    kept = active if active in scenario.agents else scenario.root
    agent = scenario.agent(kept if wanted.agent_name is None else wanted.agent_name)
    return SessionChange(
        agent.name,
        scenario.id,
        instructions=wanted.instructions,
        model=wanted.model,
        overlay=wanted.overlay,
        takes_over=wanted.agent_name is not None or agent.name != active,
    )


# --- the list


def _listing(routes: APIRouter, house: House) -> None:
    @routes.get("/sdk/sessions", responses=problems(*OF_HOUSE, 422))
    async def list_sessions(
        request: Request,
        q: Annotated[
            str | None, Query(max_length=200, description="in the title, the first or last message or the id")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
        before: Annotated[
            str | None, Query(max_length=CURSOR_MAX_CHARS, description="`next` of the page before")
        ] = None,
        owner: Annotated[
            str | None, Query(max_length=NAME_MAX_CHARS, description="for admins: only of this owner")
        ] = None,
    ) -> SessionList:
        """The caller's sessions, most recently active first. A page of a search may be short and not be the last."""
        principal = asked_by(request)
        whose = owner if principal.admin else principal.name
        found, more = await _search(house, whose, q, None if before is None else open_cursor(before), limit)
        return SessionList(
            sessions=[SessionSummary(**item_of(session)) for session in found],
            next=None if more is None else seal_cursor(more),
        )


async def _search(
    house: House, owner: str | None, words: str | None, before: tuple[int, str] | None, limit: int
) -> tuple[list[Session], tuple[int, str] | None]:
    if not (words or "").strip():
        page, more = await house.sessions.sessions(owner, before, limit)
        return list(page), more
    wanted = (words or "").strip().casefold()
    found: list[Session] = []
    for _ in range(SCAN_PAGES_MAX):
        page, more = await house.sessions.sessions(owner, before, SCAN_PAGE)
        for session in page:
            if _matches(session, wanted):
                found.append(session)
                if len(found) == limit:
                    return found, session.place
        if more is None:
            return found, None
        before = more
    return found, before


def _matches(session: Session, wanted: str) -> bool:
    texts = (session.session_id, *(session.head.get(name) for name in ("title", FIRST_TEXT, LAST_TEXT)))
    return any(isinstance(text, str) and wanted in text.casefold() for text in texts)


# --- one of them


def _usage(routes: APIRouter, house: House) -> None:
    @routes.get("/sdk/session/{session_id:path}/usage", responses=problems(*OF_HOUSE, *OF_SESSION, 422))
    async def usage(session_id: SessionId, request: Request) -> SessionUsage:
        """What the session's models have used."""
        await existing(house, session_id, asked_by(request))
        return SessionUsage(session_id=session_id, **session_usage(await house.histories.read(session_id)))


def _one(routes: APIRouter, house: House) -> None:
    @routes.get("/sdk/session/{session_id:path}", responses=problems(*OF_HOUSE, *OF_SESSION, 422))
    async def show(session_id: SessionId, request: Request) -> SessionInfo:
        """A session as it stands."""
        session = await existing(house, session_id, asked_by(request))
        return await shown(house, session)

    @routes.patch(
        "/sdk/session/{session_id:path}",
        responses=problems(*OF_HOUSE, *OF_SESSION, *OF_BODY, 507),
        openapi_extra=json_body(TitleRequest),
    )
    async def retitle(session_id: SessionId, request: Request) -> SessionInfo:
        """Give a session a title."""
        wanted = await parsed(request, house, TitleRequest)
        await existing(house, session_id, asked_by(request))
        return await shown(house, await house.sessions.retitle(session_id, wanted.title))

    @routes.delete(
        "/sdk/session/{session_id:path}", status_code=204, responses=problems(*OF_HOUSE, *OF_SESSION, 422, 501, 507)
    )
    async def delete(session_id: SessionId, request: Request) -> Response:
        """Delete a session for good: its logs, its copies elsewhere, its mail."""
        await existing(house, session_id, asked_by(request))
        await house.sessions.delete(session_id)
        house.lists.look()
        return Response(status_code=204)


async def shown(house: House, session: Session) -> SessionInfo:
    history = await house.histories.read(session.session_id)
    head = session.head
    status = head.get("run_status")
    run = LastRun(status=str(status), agent_id=head.get("run_agent"), message_id=head.get("run_envelope"))
    item = item_of(session)
    return SessionInfo(
        **{name: item[name] for name in SessionInfo.model_fields if name in item},
        state="running" if status == "running" else "idle",
        last_run=None if status is None else run,
        overlay=history.settings.get("overlay"),
        usage=session_usage(history)["usage"],
    )
