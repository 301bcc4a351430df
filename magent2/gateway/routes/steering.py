"""`…/{id}/steer` and `…/{id}/receipts/{receipt}`: saying something to a run under way, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.bus.records import ID_MAX_CHARS, Record
from magent2.gateway.access import audit
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
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
from magent2.gateway.routes.messages import JSON, envelope_id_for, send_options
from magent2.gateway.routes.send import paused_notice
from magent2.gateway.services import Services
from magent2.models.address import check_name
from magent2.models.api.messages import MessageReceipt, SteerRequest, SteerResponse
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import Principal
from magent2.sessions.receipts import MessageProgress, find_message_progress
from magent2.sessions.store import CLIENT_MESSAGE_ID, Session

ReceiptId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]
Wait = Annotated[float, Query(ge=0, description="seconds to wait until an agent has seen it; the gateway has a limit")]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])
    _steering(routes, services)
    _receipts(routes, services)
    return routes


def _steering(routes: APIRouter, services: Services) -> None:
    @routes.post(
        "/sdk/session/{session_id:path}/steer",
        status_code=202,
        response_model=SteerResponse,
        responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 507),
        openapi_extra=json_body(SteerRequest),
    )
    async def steer(session_id: SessionId, request: Request) -> Response:
        """Say something to the runs under way: it is in the next request to their models.

        Without `target` it goes to every agent that has a run under way, else to the active agent, whose next run it
        begins; with `require_active` that is refused. `receipt_id` tells later what became of it.
        """
        wanted = await parse_body(request, services, SteerRequest)
        if not wanted.text.strip():
            raise Problem(422, "blank", "a steer needs some text in 'text'")
        principal = caller(request)
        session = await get_session(services, session_id, principal)
        envelope = _envelope(session, principal, wanted)
        audit.add_ids(request.scope, session_id=session_id, envelope_id=envelope.id)
        delivered = await services.sessions.steer(
            envelope,
            send_options(services, session, principal),
            require_active=wanted.require_active,
            history_reader=services.histories.read_with,
        )
        (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
        answer: dict[str, Any] = {
            "status": "accepted",
            "session_id": session_id,
            "receipt_id": envelope.id,
            "seq": delivered.appended.seqs[-1],
        }
        if (notice := paused_notice(delivered)) is not None:
            answer["notice"] = notice
        return Response(orjson.dumps(answer), 202, media_type=JSON)


def _envelope(session: Session, principal: Principal, wanted: SteerRequest) -> MessageEnvelope:
    key = wanted.client_message_id
    target = None if wanted.target is None else check_name(wanted.target, "target")
    return MessageEnvelope(
        id=envelope_id_for(session.session_id, key),
        conversation_id=session.session_id,
        sender=principal.name,
        recipient=f"chat:{session.session_id}" if target is None else f"agent:{target}",
        content=wanted.text,
        metadata={} if key is None else {CLIENT_MESSAGE_ID: key},
    )


def _receipts(routes: APIRouter, services: Services) -> None:
    @routes.get(
        "/sdk/session/{session_id:path}/receipts/{receipt_id}",
        response_model=MessageReceipt,
        responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422, 501),
    )
    async def receipt(
        session_id: SessionId, receipt_id: ReceiptId, request: Request, wait_s: Wait = 0.0
    ) -> dict[str, Any]:
        """What became of a message of the session: accepted, seen, answered or dead."""
        session = await get_session(services, session_id, caller(request))
        fate = await _fate(services, session_id, receipt_id)
        if fate.status == "accepted" and wait_s > 0:
            sighting = ReceiptReader(receipt_id)
            max_s = min(wait_s, services.limits.wait_max_s)
            await services.replies.wait(session_id, session.last, sighting, max_s)
            fate = await _fate(services, session_id, receipt_id)
        return _shown(session_id, receipt_id, fate)


async def _fate(services: Services, session_id: str, receipt_id: str) -> MessageProgress:
    fate = await find_message_progress(Log(services.bus), session_id, receipt_id, services.histories.read_with)
    if fate is None:
        raise Problem(404, "unknown_message", f"this session has no message {receipt_id[:80]!r}")
    return fate


class ReceiptReader:
    """Over once an agent has seen the message: in a turn, or at the start of a run that answers it."""

    def __init__(self, envelope_id: str) -> None:
        self._id = envelope_id
        self.status: str | None = None

    def take(self, record: Record) -> None:
        payload = record.payload
        seen = payload.get("event") == "message_received" and any(
            message.get("id") == self._id for message in payload.get("messages", ())
        )
        if seen or (payload.get("event") == "run" and payload.get("envelope_id") == self._id):
            self.status = "finished"


def _shown(session_id: str, receipt_id: str, fate: MessageProgress) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "receipt_id": receipt_id,
        "status": fate.status,
        "waiting": fate.waiting,
        "receipts": [
            {"agent_id": one.agent, "run_id": one.run_id, "turn": one.turn, "status": one.status, "reason": one.reason}
            for one in fate.receipts
        ],
    }
