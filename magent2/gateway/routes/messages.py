"""`POST /api/sdk/session/message`: a message in, and, unless nobody wants to wait, its answer out."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from magent2.gateway.access import audit
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    caller,
    check_text,
    get_session,
    json_body,
    parse_body,
    scenario_id_of,
)
from magent2.gateway.routes.send import paused_notice
from magent2.gateway.services import Services
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.models.api.messages import AcceptedResponse, MessageRequest, MessageResponse
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import Principal
from magent2.sessions.message_outcome import MessageOutcome
from magent2.sessions.store import CLIENT_MESSAGE_ID, Session
from magent2.sessions.stream import flat_event

JSON = "application/json"


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])

    @routes.post(
        "/sdk/session/message",
        response_model=MessageResponse,
        responses={
            202: {
                "model": AcceptedResponse,
                "description": "Accepted, or still under way: follow the session after `seq`",
            },
            **problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 502, 507),
        },
        openapi_extra=json_body(MessageRequest),
    )
    async def message(request: Request) -> Response:
        """Say something to the session's active agent.

        With `client_message_id` it is said once, however often it is posted: a repeat gets the same answer, another
        text under the same key is 409. An answer that takes longer than the gateway waits is 202 `in_progress`.
        """
        wanted = await parse_body(request, services, MessageRequest)
        principal = caller(request)
        text = check_text(wanted.user_input, services)
        session = await get_session(services, wanted.session_id, principal)
        delivered = await _post(services, session, principal, text, wanted.client_message_id)
        audit.add_ids(request.scope, session_id=session.session_id, envelope_id=delivered.envelope_id)
        exchange = MessageOutcome(delivered.envelope_id)
        seq = delivered.appended.seqs[-1]
        max_s = services.limits.wait_max_s if wanted.wait else 0.0
        fresh = not wanted.wait and not delivered.appended.repeat
        over = not fresh and await services.replies.wait(session.session_id, seq - 1, exchange, max_s)
        if over:
            return reply_response(session.session_id, seq, exchange)
        return accepted_response(services, session.session_id, delivered, "accepted" if fresh else "in_progress", seq)

    return routes


def envelope_id_for(session_id: str, key: str | None) -> str:
    """The id under which a message is delivered: the same for the same key, which makes it happen once."""
    if key is None:
        return f"msg-{uuid.uuid4().hex}"
    text = "\x1f".join((session_id, key))
    return "msg-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def _post(
    services: Services, session: Session, principal: Principal, text: str, key: str | None
) -> DeliveryResult:
    asking = services.presence.refresh()
    envelope = MessageEnvelope(
        id=envelope_id_for(session.session_id, key),
        conversation_id=session.session_id,
        sender=principal.name,
        recipient=f"chat:{session.session_id}",
        content=text,
        metadata={} if key is None else {CLIENT_MESSAGE_ID: key},
    )
    delivered = await services.sessions.post(envelope, send_options(services, session, principal))
    if asking is not None:
        await asking
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    return delivered


def send_options(services: Services, session: Session, principal: Principal) -> SendOptions:
    """What the gateway says of a person's mail: whose it is, and who answers where nobody is active yet."""
    scenarios = services.catalogue.roster.scenarios
    scenario = scenarios.get(scenario_id_of(session) or services.catalogue.roster.default)
    return SendOptions(principal=principal.bound, default_agent=None if scenario is None else scenario.root)


def reply_response(session_id: str, seq: int, exchange: MessageOutcome) -> Response:
    """The answer as it was recorded, or why there is none."""
    facts: dict[str, Any] = {"session_id": session_id, "reply_to": exchange.envelope_id, "seq": seq}
    if exchange.status == "failed":
        raise Problem(502, "run_failed", f"the run failed: {exchange.reason or 'its log says more'}", **facts)
    if exchange.status == "stopped":
        raise Problem(409, "run_stopped", f"the run was stopped: {exchange.reason or 'by command'}", **facts)
    answer = {
        "final_output": exchange.text,
        "message_id": exchange.message_id,
        **facts,
        "events": rendered_events(session_id, exchange),
        "usage": exchange.usage,
        "tool_calls": exchange.tool_calls(),
    }
    return Response(orjson.dumps(answer), media_type=JSON)


def rendered_events(session_id: str, exchange: MessageOutcome) -> list[dict[str, Any]]:
    shown = (flat_event(session_id, record) for record in exchange.records)
    return [event for event in shown if event is not None]


def accepted_response(
    services: Services, session_id: str, delivered: DeliveryResult, status: str, seq: int
) -> Response:
    """Accepted, and not reply_response yet: what comes of it is in the session after `seq`."""
    answer: dict[str, Any] = {
        "status": status,
        "session_id": session_id,
        "message_id": delivered.envelope_id,
        "seq": seq,
    }
    if services.presence.known and delivered.agent is not None and delivered.agent not in services.presence:
        answer["notice"] = f"nobody serves {delivered.agent!r} now; the message waits until a worker does"
    elif (notice := paused_notice(delivered)) is not None:
        answer["notice"] = notice
    return Response(orjson.dumps(answer), 202, media_type=JSON)
