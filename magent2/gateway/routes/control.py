"""`…/stop`, `…/retry` and `…/approvals`: end a run, retry a message, decide on tool calls."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Find, Read
from magent2.bus.records import ID_MAX_CHARS, Page, Record
from magent2.errors import UnknownCursor
from magent2.gateway.access.auth import check_sender
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
    get_session,
    json_body,
    json_response,
    parse_body,
)
from magent2.gateway.routes.sessions import (
    CURSOR_MAX_CHARS,
    SCAN_PAGE,
    SCAN_PAGES_MAX,
    decode_list_cursor,
    encode_list_cursor,
)
from magent2.gateway.services import Services, services_of
from magent2.mail.dead_letters import DEAD_PAGE, DeadLetter, retry_dead_letter
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import PAUSED
from magent2.models.address import check_name, dead_topic, stream_topic
from magent2.models.api.messages import (
    AcceptedResponse,
    ApprovalInfo,
    ApprovalList,
    DecisionRequest,
    PendingApprovalPage,
    RetryRequest,
)
from magent2.models.api.sessions import SessionStopResponse, StopRequest, StopResponse
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import RunEvent
from magent2.models.files import ATTACHMENTS
from magent2.models.json_types import JsonMapping
from magent2.models.principal import Principal
from magent2.models.run_options import RUN_OPTIONS
from magent2.sessions.approvals import Approval, decide_approval, find_approvals
from magent2.sessions.history import RunRecord, find_runs
from magent2.sessions.store import Session
from magent2.sessions.stream import stream_record

DEAD_PAGES_MAX = 100  # of an agent's dead letters that a retry looks through
COMMAND_OF_MODE = {"now": "stop", "after_turn": "stop_after_turn"}
RETRY_OF = "retry_of"
WAITING_SESSIONS_MAX = 50  # sessions whose waiting calls are on one page of approvals


router = APIRouter(prefix=API, tags=["sessions"])


@router.post(
    "/sdk/session/{session_id:id}/stop",
    operation_id="stop_session",
    status_code=202,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 507),
    openapi_extra=json_body(StopRequest, required=False),
)
async def stop(
    session_id: SessionId, request: Request, response_format: ResponseFormat = "api"
) -> SessionStopResponse | StopResponse:
    """Stop the run of the session's agent, at once or after its current turn. The body is optional."""
    services = services_of(request)
    body = await parse_body(request, services, StopRequest, may_be_empty=True)
    add_audit_ids(request.scope, agent=body.agent, sender=body.sender)
    principal = caller(request)
    session = await get_session(services, session_id, principal)
    agent = _running_agent(session) if body.agent is None else check_name(body.agent, "agent name")
    if agent is None:
        raise Problem(409, "no_active_agent", "no agent is active in this session; name one in 'agent'")
    command = MessageEnvelope(
        conversation_id=session_id,
        sender=check_sender(principal, body.sender),
        recipient=f"agent:{agent}",
        type="control",
        content=COMMAND_OF_MODE[body.mode],
    )
    add_audit_ids(request.scope, agent=agent, envelope_id=command.id, sender=command.sender)
    delivered = await services.sessions.post(command, SendOptions(principal=principal.bound))
    if response_format == "record":
        return StopResponse(agent=agent, envelope_id=command.id, seq=delivered.appended.seqs[-1])
    return SessionStopResponse(session_id=session_id, agent_id=agent, mode=body.mode, receipt_id=command.id)


def _running_agent(session: Session) -> str | None:
    """Return the agent whose run is active, which after a handoff is not the active agent; else the active agent."""
    head = session.head
    running = head.get("run_agent") if head.get("run_status") == "running" else None
    return running if isinstance(running, str) else session.active_agent


@router.post(
    "/sdk/session/{session_id:id}/retry",
    operation_id="retry_message",
    status_code=202,
    response_model=AcceptedResponse,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507),
    openapi_extra=json_body(RetryRequest),
)
async def retry(session_id: SessionId, request: Request) -> Response:
    """Retry a message whose run failed or was stopped, once per end of the run.

    A failed run continues after its last record. A stopped run starts again.
    """
    services = services_of(request)
    body = await parse_body(request, services, RetryRequest)
    add_audit_ids(request.scope, message_id=body.message_id)
    principal = caller(request)
    session = await get_session(services, session_id, principal)
    run = await _find_run(services, session_id, body.message_id)
    add_audit_ids(request.scope, envelope_id=run.envelope.get("id"))
    earlier: Record | None = await services.bus.acall(Find(stream_topic(session_id), _retry_event_id(run)))
    if earlier is not None:
        return _accepted(session_id, str(run.envelope.get("id")), earlier.seq)
    letter = await _find_letter(services, run) if run.end is not None and run.end["status"] == "failed" else None
    if letter is not None:
        return await _retry_letter(services, session, run, letter, principal)
    return await _send_again(services, session, run, principal)


async def _find_run(services: Services, session_id: str, message_id: str) -> RunRecord:
    """Return the run of a message, by the id of the message or of its answer. Only a failed or stopped run passes."""
    history = await services.histories.read(session_id)
    name = message_id.partition("/")[0]
    found = [run for run in history.runs.values() if name in (run.run, run.envelope.get("id"))]
    if not found and history.dropped.ended:
        found = await find_runs(Log(services.bus), session_id, lambda payload: _starts_run(payload, name))
    if not found:
        raise Problem(404, "unknown_message", f"no run of this session answers message {message_id[:80]!r}")
    run = found[-1]
    if run.superseded:
        raise Problem(
            409, "superseded", "the answer was replaced; retry the newer message", fields={"message_id": run.superseded}
        )
    if run.end is None:
        raise Problem(409, "in_progress", "the run of the message has not ended; wait for its end, or stop it first")
    if run.end["status"] not in ("failed", "stopped"):
        raise Problem(409, "not_retryable", "the message was answered; send it again to ask again")
    return run


def _starts_run(payload: JsonMapping, name: str) -> bool:
    """Whether a record of the history starts the run of this name, or that of a message of this name."""
    return payload["kind"] == "start" and name in (payload["run"], payload["envelope"].get("id"))


def _retry_event_id(run: RunRecord) -> str:
    """Return the id of the `restarted` event: one per end of a run, so that each end is retried once."""
    return f"retried:{run.run}:{run.ended}"


async def _find_letter(services: Services, run: RunRecord) -> DeadLetter | None:
    """Find the dead letter of a failed run. `None` if it was retried or dropped."""
    after = OLDEST
    for _ in range(DEAD_PAGES_MAX):
        page: Page = await services.bus.acall(Read(dead_topic(run.agent), after, DEAD_PAGE))
        for record in page.records:
            after = record.seq
            letter = None if record.erased else DeadLetter.parse(record)
            if letter is not None and _is_of(letter, run):
                return letter
        if not page.records or after >= page.last:
            break
    return None


def _is_of(letter: DeadLetter, run: RunRecord) -> bool:
    payload = letter.mail.get("payload")
    same = isinstance(payload, dict) and payload.get("id") == run.envelope.get("id")
    return same and letter.conversation_id == run.envelope.get("conversation_id")


async def _retry_letter(
    services: Services, session: Session, run: RunRecord, letter: DeadLetter, principal: Principal
) -> Response:
    """Put the mail back and write a `restarted` event in the same append, so that waiting clients go on waiting."""
    message_id = str(run.envelope.get("id"))
    event = RunEvent(
        conversation_id=session.session_id,
        run_id=run.run,
        agent=run.agent,
        status="restarted",
        envelope_id=message_id,
        reason=f"retried by {principal.name}",
    )
    try:
        restarted = replace(stream_record(event), id=_retry_event_id(run))
        appended = await retry_dead_letter(Log(services.bus), letter.agent, letter.seq, (restarted,))
    except UnknownCursor:
        raise Problem(409, "in_progress", "another request has just retried the message") from None
    return _accepted(session.session_id, message_id, appended.seqs[-1])


async def _send_again(services: Services, session: Session, run: RunRecord, principal: Principal) -> Response:
    """Send the message again. The new id is derived from this end of the run, so that a repeat is delivered once."""
    text = "\x1f".join((session.session_id, run.run, str(run.ended)))
    before = run.envelope.get("metadata") or {}
    brought = {name: before[name] for name in (ATTACHMENTS, RUN_OPTIONS) if name in before}
    envelope = MessageEnvelope(
        id="msg-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        conversation_id=session.session_id,
        sender=str(run.envelope.get("sender") or principal.name) if principal.admin else principal.name,
        recipient=f"agent:{run.agent}",
        content=run.envelope.get("content"),
        metadata={**brought, RETRY_OF: run.envelope.get("id")},
    )
    delivered = await services.sessions.post(envelope, SendOptions(principal=principal.bound))
    return _accepted(session.session_id, envelope.id, delivered.appended.seqs[-1])


def _accepted(session_id: str, message_id: str, seq: int) -> Response:
    answer = {"status": "accepted", "session_id": session_id, "message_id": message_id, "seq": seq}
    return json_response(answer, 202)


CallId = Annotated[str, Path(min_length=1, max_length=ID_MAX_CHARS)]


@router.get(
    "/sdk/session/{session_id:id}/approvals",
    operation_id="list_approvals",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422, 501),
)
async def approvals(session_id: SessionId, request: Request) -> ApprovalList:
    """List the tool calls that need approval, oldest first. A run resumes when all of its calls are decided."""
    services = services_of(request)
    await get_session(services, session_id, caller(request))
    found = await find_approvals(Log(services.bus), session_id, services.histories.read_with)
    listed = [_approval_info(session_id, approval) for approval in found]
    return ApprovalList(session_id=session_id, approvals=listed)


@router.get("/approvals", operation_id="list_pending_approvals", responses=problems(*ACCESS_ERRORS, 422, 501))
async def pending_approvals(
    request: Request,
    before: Annotated[str | None, Query(max_length=CURSOR_MAX_CHARS, description="`next` of the page before")] = None,
) -> PendingApprovalPage:
    """List the tool calls of the caller's sessions that wait for approval, also those of subagents.

    A session is found by its last run. A page may be empty and not be the last.
    """
    services = services_of(request)
    principal = caller(request)
    owner = None if principal.admin else principal.name
    cursor = None if before is None else decode_list_cursor(before)
    waiting, more = await _waiting_sessions(services, owner, cursor)
    listed: list[ApprovalInfo] = []
    for session in waiting:
        found = await find_approvals(Log(services.bus), session.session_id, services.histories.read_with)
        listed += [_approval_info(session.session_id, one) for one in found if one.status == "pending"]
    return PendingApprovalPage(approvals=listed, next=None if more is None else encode_list_cursor(more))


async def _waiting_sessions(
    services: Services, owner: str | None, before: tuple[int, str] | None
) -> tuple[list[Session], tuple[int, str] | None]:
    """Return the next sessions whose last run waits for approval, and where the search goes on."""
    found: list[Session] = []
    for _ in range(SCAN_PAGES_MAX):
        page, before = await services.sessions.sessions(owner, before, SCAN_PAGE, with_hidden=True)
        for session in page:
            if session.head.get(PAUSED):
                found.append(session)
                if len(found) == WAITING_SESSIONS_MAX:
                    return found, session.place
        if before is None:
            break
    return found, before


@router.post(
    "/sdk/session/{session_id:id}/approvals/{call_id:id}",
    operation_id="decide_approval",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507),
    openapi_extra=json_body(DecisionRequest),
)
async def decide(session_id: SessionId, call_id: CallId, request: Request) -> ApprovalInfo:
    """Approve or reject a call, once. A repeat gets the same response, another decision is 409."""
    services = services_of(request)
    body = await parse_body(request, services, DecisionRequest)
    add_audit_ids(request.scope, decision=body.decision)
    principal = caller(request)
    await get_session(services, session_id, principal)
    approval = await decide_approval(
        Log(services.bus),
        session_id,
        call_id,
        body.decision,
        principal.name,
        body.reason,
        options=SendOptions(principal=principal.bound),
        history_reader=services.histories.read_with,
    )
    add_audit_ids(request.scope, agent=approval.agent, envelope_id=approval.decision_id)
    return _approval_info(session_id, approval)


def _approval_info(session_id: str, approval: Approval) -> ApprovalInfo:
    return ApprovalInfo(
        session_id=session_id,
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
