"""`…/{id}/approvals`: calls of tools that wait for a person, and deciding on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from magent2.bus.log import Log
from magent2.bus.records import ID_MAX_CHARS
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
from magent2.gateway.services import House
from magent2.mail.delivery import SendOptions
from magent2.models.api.messages import ApprovalInfo, ApprovalList, DecisionRequest
from magent2.sessions.approvals import Approval, decide_approval, find_approvals

CallId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]


def router(house: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])
    _listing(routes, house)
    _deciding(routes, house)
    return routes


def _listing(routes: APIRouter, house: House) -> None:
    @routes.get("/sdk/session/{session_id:path}/approvals", responses=problems(*OF_HOUSE, *OF_SESSION, 422, 501))
    async def approvals(session_id: SessionId, request: Request) -> ApprovalList:
        """The calls that a person was asked about, oldest first. A run goes on when all of its calls are decided on."""
        await existing(house, session_id, asked_by(request))
        found = await find_approvals(Log(house.bus), session_id, house.histories.read_with)
        return ApprovalList(session_id=session_id, approvals=[_shown(approval) for approval in found])


def _deciding(routes: APIRouter, house: House) -> None:
    @routes.post(
        "/sdk/session/{session_id:path}/approvals/{call_id}",
        responses=problems(*OF_HOUSE, *OF_SESSION, *OF_BODY, 409, 501, 507),
        openapi_extra=json_body(DecisionRequest),
    )
    async def decide(session_id: SessionId, call_id: CallId, request: Request) -> ApprovalInfo:
        """Approve or reject a call, once: the same again gets the same answer, another decision is 409."""
        wanted = await parsed(request, house, DecisionRequest)
        principal = asked_by(request)
        await existing(house, session_id, principal)
        approval = await decide_approval(
            Log(house.bus),
            session_id,
            call_id,
            wanted.decision,
            principal.name,
            wanted.reason,
            options=SendOptions(principal=principal.bound),
            history_reader=house.histories.read_with,
        )
        audit.name(request.scope, session_id=session_id, agent=approval.agent, envelope_id=approval.decision_id)
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
