"""`…/{id}/approvals`: calls of tools that wait for a person, and deciding on them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from magent2.bus.delivery import Sending
from magent2.bus.flow import arun
from magent2.bus.records import ID_MAX_CHARS
from magent2.gateway import audit
from magent2.gateway.house import House
from magent2.gateway.routes.api.asking import (
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
from magent2.gateway.schemas import example, problems
from magent2.sessions.approvals import REASON_MAX_CHARS, Approval, deciding, finding_approvals

CallId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]


EXAMPLE: dict[str, Any] = {
    "call_id": "call-1", "tool": "refund", "args": {"order": "7"}, "agent_id": "support", "run_id": "run-5f…",
    "turn": 0, "status": "pending", "expires_at": "2026-01-02T03:04:05Z", "decided_by": None, "reason": None,
}  # fmt: skip


class DecisionRequest(BaseModel):
    model_config = example(decision="reject", reason="too dear")

    decision: Literal["approve", "reject"]
    reason: str | None = Field(
        default=None, max_length=REASON_MAX_CHARS, description="of a rejection: the model is told"
    )


class ApprovalShown(BaseModel):
    """A call that waits, or has waited, for a person. `args` are as the model wrote them."""

    model_config = example(**EXAMPLE)

    call_id: str
    tool: str
    args: dict[str, Any]
    agent_id: str
    run_id: str
    turn: int
    status: Literal["pending", "approved", "rejected", "expired"]
    expires_at: datetime
    decided_by: str | None
    reason: str | None


class ApprovalsShown(BaseModel):
    model_config = example(session_id="s-1", approvals=[EXAMPLE])

    session_id: str
    approvals: list[ApprovalShown]


def router(house: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])
    _listing(routes, house)
    _deciding(routes, house)
    return routes


def _listing(routes: APIRouter, house: House) -> None:
    @routes.get("/sdk/session/{session_id:path}/approvals", responses=problems(*OF_HOUSE, *OF_SESSION, 422, 501))
    async def approvals(session_id: SessionId, request: Request) -> ApprovalsShown:
        """The calls that a person was asked about, oldest first. A run goes on when all of its calls are decided on."""
        await existing(house, session_id, asked_by(request))
        found = await arun(house.bus, finding_approvals(session_id, house.histories.reading))
        return ApprovalsShown(session_id=session_id, approvals=[_shown(approval) for approval in found])


def _deciding(routes: APIRouter, house: House) -> None:
    @routes.post(
        "/sdk/session/{session_id:path}/approvals/{call_id}",
        responses=problems(*OF_HOUSE, *OF_SESSION, *OF_BODY, 409, 501, 507),
        openapi_extra=json_body(DecisionRequest),
    )
    async def decide(session_id: SessionId, call_id: CallId, request: Request) -> ApprovalShown:
        """Approve or reject a call, once: the same again gets the same answer, another decision is 409."""
        wanted = await parsed(request, house, DecisionRequest)
        principal = asked_by(request)
        await existing(house, session_id, principal)
        flow = deciding(
            session_id,
            call_id,
            wanted.decision,
            principal.name,
            wanted.reason,
            sending=Sending(principal=principal.bound),
            reading=house.histories.reading,
        )
        approval = await arun(house.bus, flow)
        audit.name(request.scope, session_id=session_id, agent=approval.agent, envelope_id=approval.decision_id)
        return _shown(approval)


def _shown(approval: Approval) -> ApprovalShown:
    return ApprovalShown(
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
