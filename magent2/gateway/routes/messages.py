"""`/api/sdk/session/message`, `…/steer` and `…/receipts`: send a message, steer a run, follow a message."""

from __future__ import annotations

import hashlib
import uuid
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.bus.records import ID_MAX_CHARS, Record
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    SessionId,
    caller,
    check_text,
    get_session,
    json_body,
    json_response,
    parse_body,
    scenario_id_of,
)
from magent2.gateway.routes.files import with_attachments
from magent2.gateway.routes.send import paused_notice
from magent2.gateway.services import Services, services_of
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.models.address import check_name
from magent2.models.api.messages import (
    AcceptedResponse,
    EditRequest,
    MessageReceipt,
    MessageRequest,
    MessageResponse,
    RegenerateRequest,
    SteerRequest,
    SteerResponse,
)
from magent2.models.envelope import MessageEnvelope
from magent2.models.files import ATTACHMENTS
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal
from magent2.models.run_options import NO_OPTIONS, RUN_OPTIONS, RunOptions
from magent2.sessions.message_outcome import MessageOutcome, MessageProgress, find_message_progress
from magent2.sessions.store import CLIENT_MESSAGE_ID, Session
from magent2.sessions.stream import FlatEvent, flat_event
from magent2.sessions.superseding import Replacement, find_replacement, replace_answer

router = APIRouter(prefix=API, tags=["sessions"])


@router.post(
    "/sdk/session/message",
    operation_id="send_message",
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
    """Send a message to the session's active agent and wait for the answer.

    `client_message_id` makes it idempotent: a repeat gets the same answer, another text with the same id is 409.
    If the answer takes longer than the gateway waits, the response is 202 `in_progress`.
    """
    services = services_of(request)
    body = await parse_body(request, services, MessageRequest)
    add_audit_ids(request.scope, session_id=body.session_id)
    principal = caller(request)
    text = check_text(body.user_input, services, may_be_blank=bool(body.attachments))
    session = await get_session(services, body.session_id, principal)
    delivered = await _post(services, session, principal, text, body)
    add_audit_ids(request.scope, envelope_id=delivered.envelope_id)
    if delivered.appended.repeat:
        await _check_not_replaced(services, session.session_id, delivered.envelope_id)
    outcome = MessageOutcome(delivered.envelope_id)
    seq = delivered.appended.seqs[-1]
    if not body.wait and not delivered.appended.repeat:
        return accepted_response(services, session.session_id, delivered, "accepted", seq)
    max_s = services.limits.wait_max_s if body.wait else 0.0
    if await services.replies.wait(session.session_id, seq - 1, outcome, max_s):
        return reply_response(session.session_id, seq, outcome)
    return accepted_response(services, session.session_id, delivered, "in_progress", seq)


def envelope_id_for(session_id: str, key: str | None) -> str:
    """Return the envelope id for a client's key. The same key gives the same id, and an id is delivered once."""
    if key is None:
        return f"msg-{uuid.uuid4().hex}"
    text = "\x1f".join((session_id, key))
    return "msg-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def _post(
    services: Services, session: Session, principal: Principal, text: str, body: MessageRequest
) -> DeliveryResult:
    services.presence.refresh()
    key = body.client_message_id
    metadata: JsonObject = {} if key is None else {CLIENT_MESSAGE_ID: key}
    if body.attachments:
        metadata[ATTACHMENTS] = body.attachments
    options = RunOptions(output_schema=body.output_schema)
    if options != NO_OPTIONS:
        metadata[RUN_OPTIONS] = options.payload()
    envelope = MessageEnvelope(
        id=envelope_id_for(session.session_id, key),
        conversation_id=session.session_id,
        sender=principal.name,
        recipient=f"chat:{session.session_id}",
        content=text,
        metadata=metadata,
    )
    envelope = await with_attachments(services, envelope, principal, body.when_busy)
    delivered = await services.sessions.post(
        envelope,
        send_options(services, session, principal),
        when_busy=body.when_busy,
        history_reader=services.histories.read_with,
    )
    await services.presence.refreshed()
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    return delivered


async def _check_not_replaced(services: Services, session_id: str, message_id: str) -> None:
    """Raise a problem that names the newer message, if the answer to this one was replaced."""
    replaced_by = await find_replacement(Log(services.bus), session_id, message_id)
    if replaced_by is not None:
        detail = f"the answer was replaced by that to {replaced_by}; follow that message"
        raise Problem(409, "superseded", detail, fields={"session_id": session_id, "message_id": replaced_by})


def send_options(services: Services, session: Session, principal: Principal) -> SendOptions:
    """Return the send options of a caller: the principal, and the default agent of a session without an active one."""
    scenarios = services.catalogue.roster.scenarios
    scenario = scenarios.get(scenario_id_of(session) or services.catalogue.roster.default)
    return SendOptions(principal=principal.bound, default_agent=None if scenario is None else scenario.root)


def reply_response(session_id: str, seq: int, outcome: MessageOutcome) -> Response:
    """Return the recorded answer. Raises a problem if the run failed or was stopped."""
    ids: dict[str, object] = {"session_id": session_id, "reply_to": outcome.envelope_id, "seq": seq}
    if outcome.status == "failed":
        raise Problem(502, "run_failed", f"the run failed: {outcome.reason or 'see its events'}", fields=ids)
    if outcome.status == "stopped":
        raise Problem(409, "run_stopped", f"the run was stopped: {outcome.reason or 'by command'}", fields=ids)
    answer = {
        "final_output": outcome.text,
        "message_id": outcome.message_id,
        **ids,
        "events": rendered_events(session_id, outcome),
        "usage": outcome.usage,
        "tool_calls": outcome.tool_calls(),
    }
    return json_response(answer)


def rendered_events(session_id: str, outcome: MessageOutcome) -> list[FlatEvent]:
    shown = (flat_event(session_id, record) for record in outcome.records)
    return [event for event in shown if event is not None]


def accepted_response(
    services: Services, session_id: str, delivered: DeliveryResult, status: str, seq: int
) -> Response:
    """Return 202: the message is accepted but not answered. The session has the outcome after `seq`."""
    answer: dict[str, object] = {
        "status": status,
        "session_id": session_id,
        "message_id": delivered.envelope_id,
        "seq": seq,
    }
    if services.presence.known and delivered.agent is not None and delivered.agent not in services.presence:
        answer["notice"] = f"no worker serves {delivered.agent!r} now; the message waits until one does"
    elif (notice := paused_notice(delivered)) is not None:
        answer["notice"] = notice
    return json_response(answer, 202)


REPLACING_RESPONSES = problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507)


@router.post(
    "/sdk/session/{session_id:id}/regenerate",
    operation_id="regenerate_answer",
    status_code=202,
    response_model=AcceptedResponse,
    responses=REPLACING_RESPONSES,
    openapi_extra=json_body(RegenerateRequest, required=False),
)
async def regenerate(session_id: SessionId, request: Request) -> Response:
    """Answer the last message again. The answer so far stays on the log; views and later runs leave it out.

    Refused with 409 `busy` while a message waits or is being answered. The body is optional.
    """
    services = services_of(request)
    body = await parse_body(request, services, RegenerateRequest, may_be_empty=True)
    return await _replace(services, request, session_id, body.client_message_id)


@router.post(
    "/sdk/session/{session_id:id}/edit",
    operation_id="edit_message",
    status_code=202,
    response_model=AcceptedResponse,
    responses=REPLACING_RESPONSES,
    openapi_extra=json_body(EditRequest),
)
async def edit(session_id: SessionId, request: Request) -> Response:
    """Replace the last message of a person by another text, and answer that. See `regenerate`."""
    services = services_of(request)
    body = await parse_body(request, services, EditRequest)
    text = check_text(body.text, services)
    return await _replace(services, request, session_id, body.client_message_id, text, body.message_id)


async def _replace(
    services: Services,
    request: Request,
    session_id: str,
    key: str | None,
    text: str | None = None,
    message_id: str | None = None,
) -> Response:
    principal = caller(request)
    session = await get_session(services, session_id, principal)
    wanted = Replacement(session_id, envelope_id_for(session_id, key), principal.name, text, message_id, key)
    add_audit_ids(request.scope, session_id=session_id, envelope_id=wanted.envelope_id, message_id=message_id)
    services.presence.refresh()
    options = send_options(services, session, principal)
    delivered = await replace_answer(Log(services.bus), wanted, options, services.histories.read_with)
    await services.presence.refreshed()
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    return accepted_response(services, session_id, delivered, "accepted", delivered.appended.seqs[-1])


ReceiptId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]
Wait = Annotated[
    float,
    Query(ge=0, allow_inf_nan=False, description="seconds to wait until an agent has seen it; the gateway has a limit"),
]


@router.post(
    "/sdk/session/{session_id:id}/steer",
    operation_id="steer_session",
    status_code=202,
    response_model=SteerResponse,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 507),
    openapi_extra=json_body(SteerRequest),
)
async def steer(session_id: SessionId, request: Request) -> Response:
    """Add a message to active runs. Their next model request contains it.

    Without `target` it goes to every agent with an active run. If there is none, it starts a run of the active
    agent, or is refused with `require_active`. `receipt_id` identifies it in receipts.
    """
    services = services_of(request)
    body = await parse_body(request, services, SteerRequest)
    add_audit_ids(request.scope, target=body.target)
    if not body.text.strip():
        raise Problem(422, "blank", "a steer needs some text in 'text'")
    principal = caller(request)
    session = await get_session(services, session_id, principal)
    envelope = _steer_envelope(session, principal, body)
    add_audit_ids(request.scope, session_id=session_id, envelope_id=envelope.id)
    delivered = await services.sessions.steer(
        envelope,
        send_options(services, session, principal),
        require_active=body.require_active,
        history_reader=services.histories.read_with,
    )
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    answer: dict[str, object] = {
        "status": "accepted",
        "session_id": session_id,
        "receipt_id": envelope.id,
        "seq": delivered.appended.seqs[-1],
    }
    if (notice := paused_notice(delivered)) is not None:
        answer["notice"] = notice
    return json_response(answer, 202)


def _steer_envelope(session: Session, principal: Principal, body: SteerRequest) -> MessageEnvelope:
    key = body.client_message_id
    target = None if body.target is None else check_name(body.target, "target")
    return MessageEnvelope(
        id=envelope_id_for(session.session_id, key),
        conversation_id=session.session_id,
        sender=principal.name,
        recipient=f"chat:{session.session_id}" if target is None else f"agent:{target}",
        content=body.text,
        metadata={} if key is None else {CLIENT_MESSAGE_ID: key},
    )


@router.get(
    "/sdk/session/{session_id:id}/receipts/{receipt_id:id}",
    operation_id="get_receipt",
    response_model=MessageReceipt,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422, 501),
)
async def receipt(
    session_id: SessionId, receipt_id: ReceiptId, request: Request, wait_s: Wait = 0.0
) -> dict[str, object]:
    """Return the progress of a message: accepted, seen, answered or dead."""
    services = services_of(request)
    session = await get_session(services, session_id, caller(request))
    progress = await _progress(services, session_id, receipt_id)
    if progress.status == "accepted" and wait_s > 0:
        max_s = min(wait_s, services.limits.wait_max_s)
        await services.replies.wait(session_id, session.last, ReceiptReader(receipt_id), max_s)
        progress = await _progress(services, session_id, receipt_id)
    return _receipt_info(session_id, receipt_id, progress)


async def _progress(services: Services, session_id: str, receipt_id: str) -> MessageProgress:
    progress = await find_message_progress(Log(services.bus), session_id, receipt_id, services.histories.read_with)
    if progress is None:
        raise Problem(404, "unknown_message", f"this session has no message {receipt_id[:80]!r}")
    return progress


class ReceiptReader:
    """Ends the wait once an agent has read the message: in a turn, or at the start of a run that answers it."""

    def __init__(self, envelope_id: str) -> None:
        self._id = envelope_id
        self.status: str | None = None

    def take(self, record: Record) -> None:
        payload = record.payload
        is_read = payload.get("event") == "message_received" and any(
            message.get("id") == self._id for message in payload.get("messages", ())
        )
        if is_read or (payload.get("event") == "run" and payload.get("envelope_id") == self._id):
            self.status = "finished"


def _receipt_info(session_id: str, receipt_id: str, progress: MessageProgress) -> dict[str, object]:
    return {
        "session_id": session_id,
        "receipt_id": receipt_id,
        "status": progress.status,
        "waiting": progress.waiting,
        "receipts": [
            {"agent_id": one.agent, "run_id": one.run_id, "turn": one.turn, "status": one.status, "reason": one.reason}
            for one in progress.receipts
        ],
    }
