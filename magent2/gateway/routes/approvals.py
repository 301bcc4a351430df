"""`…/{id}/approvals`: calls of tools that wait for a person, and deciding on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from magent2.bus.log import Log
from magent2.bus.records import ID_MAX_CHARS
from magent2.gateway.access import audit
from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    SessionId,
    caller,
    get_session,
    json_body,
    parse_body,
)
from magent2.gateway.services import Services
from magent2.mail.delivery import SendOptions
from magent2.models.api.messages import ApprovalInfo, ApprovalList, DecisionRequest
from magent2.sessions.approvals import Approval, decide_approval, find_approvals

CallId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])
    _listing(routes, services)
    _deciding(routes, services)
    return routes


def _listing(routes: APIRouter, services: Services) -> None:
    @routes.get(
        "/sdk/session/{session_id:path}/approvals", responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422, 501)
    )
    async def approvals(session_id: SessionId, request: Request) -> ApprovalList:
        """The calls that a person was asked about, oldest first. A run goes on when all of its calls are decided on."""
        await get_session(services, session_id, caller(request))
        found = await find_approvals(Log(services.bus), session_id, services.histories.read_with)
        return ApprovalList(session_id=session_id, approvals=[_shown(approval) for approval in found])


def _deciding(routes: APIRouter, services: Services) -> None:
    @routes.post(
        "/sdk/session/{session_id:path}/approvals/{call_id}",
        responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507),
        openapi_extra=json_body(DecisionRequest),
    )
    async def decide(session_id: SessionId, call_id: CallId, request: Request) -> ApprovalInfo:
        """Approve or reject a call, once: the same again gets the same answer, another decision is 409."""
        wanted = await parse_body(request, services, DecisionRequest)
        principal = caller(request)
        await get_session(services, session_id, principal)
        approval = await decide_approval(
            Log(services.bus),
            session_id,
            call_id,
            wanted.decision,
            principal.name,
            wanted.reason,
            options=SendOptions(principal=principal.bound),
            history_reader=services.histories.read_with,
        )
        audit.add_ids(request.scope, session_id=session_id, agent=approval.agent, envelope_id=approval.decision_id)
        return _shown(approval)


def _shown(approval: Approval) -> ApprovalInfo:
    return ApprovalInfo(
        call_id=approval.call_id,
        tool=approval.name,
        args=approval.args,
        agent_id=approval.speaker,
        run_id=approval.run_id,
        turn=approval.turn,
        status=approval.status,
        expires_at=approval.expires_at,
        decided_by=approval.decided_by,
        reason=approval.reason,
    )
