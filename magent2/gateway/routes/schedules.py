"""`/api/schedules`: messages that are sent at a time, after a duration, or by a cron expression."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.bus.records import NewRecord, Record
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    caller,
    get_session,
    is_known_agent,
    json_body,
    parse_body,
    unknown_agent,
)
from magent2.gateway.routes.messages import accepted_response, send_options
from magent2.gateway.routes.sessions import (
    CURSOR_MAX_CHARS,
    LIST_CURSOR_PATTERN,
    LIST_MAX,
    decode_list_cursor,
    encode_list_cursor,
)
from magent2.gateway.services import Services, services_of
from magent2.mail.registration import is_registered
from magent2.models.address import NAME_MAX_CHARS, RESERVED_PREFIXES, check_name, schedule_runs_topic
from magent2.models.api.messages import AcceptedResponse
from magent2.models.api.schedules import (
    SCHEDULE_ID_MAX_CHARS,
    RunScheduleRequest,
    ScheduleDetail,
    ScheduleInfo,
    ScheduleList,
    ScheduleRequest,
    SlotInfo,
)
from magent2.models.principal import Principal
from magent2.sessions.schedules.firing import message_of
from magent2.sessions.schedules.store import (
    SCHEDULE_TEXT_MAX_CHARS,
    Schedule,
    check_schedule_count,
    create_schedule,
    delete_schedule,
    find_schedule,
    get_schedule,
    list_schedules,
    pause_schedule,
    recent_runs,
    resume_schedule,
    run_message_id,
    schedule_text,
    shown_next_ms,
    unknown_schedule,
)
from magent2.sessions.schedules.timing import TimingInput
from magent2.sessions.store import Session, short_title

RECENT_SLOTS = 20  # that a response shows
OWN_SESSION_PREFIX = "schedule-"  # of the id of a session that was created with its schedule

ScheduleId = Annotated[str, Path(min_length=1, max_length=SCHEDULE_ID_MAX_CHARS)]


router = APIRouter(prefix=API, tags=["schedules"])


@router.post(
    "/schedules",
    operation_id="create_schedule",
    status_code=201,
    response_model=ScheduleDetail,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507),
    openapi_extra=json_body(ScheduleRequest),
)
async def create(request: Request) -> ScheduleDetail:
    """Create a schedule: exactly one of `at`, `in` and `cron` says when its message is sent."""
    services = services_of(request)
    body = await parse_body(request, services, ScheduleRequest)
    principal = caller(request)
    schedule_id = body.schedule_id or uuid.uuid4().hex
    add_audit_ids(request.scope, schedule_id=schedule_id, session_id=body.session_id)
    return await schedule_detail(services, await _create(services, principal, schedule_id, body))


@router.get("/schedules", operation_id="list_schedules", responses=problems(*ACCESS_ERRORS, 422, 501))
async def list_all(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
    before: Annotated[
        str | None,
        Query(
            max_length=CURSOR_MAX_CHARS,
            description="`next` of the page before",
            json_schema_extra={"pattern": LIST_CURSOR_PATTERN},
        ),
    ] = None,
    session_id: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="only of this session")] = None,
    owner: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="for admins: only of this owner")] = None,
) -> ScheduleList:
    """List the caller's schedules, most recently changed first. A page may be short and not be the last."""
    services = services_of(request)
    principal = caller(request)
    place = None if before is None else decode_list_cursor(before)
    if owner is not None and not principal.owns(owner):
        return ScheduleList(schedules=[], next=None)
    whose = owner if principal.admin else principal.name
    found, more = await list_schedules(
        Log(services.bus), None if whose is None else check_name(whose, "owner"), place, limit
    )
    shown = [schedule_info(one) for one in found if session_id is None or one.session_id == session_id]
    return ScheduleList(schedules=shown, next=None if more is None else encode_list_cursor(more))


async def _create(services: Services, principal: Principal, schedule_id: str, body: ScheduleRequest) -> Schedule:
    log = Log(services.bus)
    text = _checked_text(body, services)
    known = await find_schedule(log, schedule_id)
    wanted = TimingInput(body.at, body.in_, body.cron, body.timezone, body.until)
    timing = wanted.parse(round(time.time() * 1000), services.limits.schedule_interval_min_s, is_new=known is None)
    if body.agent is not None:
        await _check_agent(services, body.agent)
    limit = services.limits.schedules_per_principal_max
    if body.session_id is not None:
        session = await get_session(services, body.session_id, principal)
    else:
        if known is None:
            await check_schedule_count(log, principal.name, limit)
        session = await _own_session(services, principal, schedule_id, body)
    schedule = Schedule(
        schedule_id=schedule_id,
        owner=session.owner or principal.name,
        session_id=session.session_id,
        sender=principal.name,
        principal=principal.bound,
        default_agent=send_options(services, session, principal).default_agent,
        agent=body.agent,
        timing=timing,
        title=short_title(text),
        missed=body.missed,
        when_busy=body.when_busy,
        max_runs=body.max_runs,
    )
    created, _ = await create_schedule(log, schedule, text, limit)
    return created


def _checked_text(body: ScheduleRequest, services: Services) -> str:
    limit = min(SCHEDULE_TEXT_MAX_CHARS, services.limits.text_max_chars)
    if not body.text.strip():
        raise Problem(422, "blank", "a schedule needs some text in 'text'")
    if len(body.text) > limit:
        raise Problem(422, "too_long", f"the text of a schedule has at most {limit} characters, not {len(body.text)}")
    return body.text


async def _check_agent(services: Services, agent: str) -> None:
    name = check_name(agent, "agent name")
    if name.startswith(RESERVED_PREFIXES):  # agents of the runtime are registered too, but answer no messages
        raise unknown_agent(services, name)
    if not is_known_agent(services, name) and not await is_registered(Log(services.bus), name):
        raise unknown_agent(services, name)


async def _own_session(services: Services, principal: Principal, schedule_id: str, body: ScheduleRequest) -> Session:
    """Create the session of a schedule that names none, once."""
    if body.agent is None:
        raise Problem(422, "no_recipient", "name the session in 'session_id', the agent in 'agent', or both")
    session_id = OWN_SESSION_PREFIX + schedule_id
    return await services.sessions.create(session_id, principal.name, {"active_agent": body.agent})


READ_RESPONSES = problems(*ACCESS_ERRORS, 404, 422, 501)


@router.get("/schedules/{schedule_id:id}", operation_id="get_schedule", responses=READ_RESPONSES)
async def show(schedule_id: ScheduleId, request: Request) -> ScheduleDetail:
    """Return a schedule, with its text and its last slots."""
    services = services_of(request)
    return await schedule_detail(services, await owned_schedule(services, schedule_id, caller(request)))


@router.delete(
    "/schedules/{schedule_id:id}",
    operation_id="delete_schedule",
    status_code=204,
    responses=problems(*ACCESS_ERRORS, 404, 422, 501, 507),
)
async def delete(schedule_id: ScheduleId, request: Request) -> Response:
    """Delete a schedule. Messages that it has sent stay."""
    services = services_of(request)
    schedule = await owned_schedule(services, schedule_id, caller(request))
    await delete_schedule(Log(services.bus), schedule.schedule_id)
    return Response(status_code=204)


CHANGE_RESPONSES = problems(*ACCESS_ERRORS, 404, 409, 422, 501, 507)


@router.post("/schedules/{schedule_id:id}/pause", operation_id="pause_schedule", responses=CHANGE_RESPONSES)
async def pause(schedule_id: ScheduleId, request: Request) -> ScheduleDetail:
    """Pause a schedule. Slots until it is resumed are not sent, now or later."""
    services = services_of(request)
    schedule = await owned_schedule(services, schedule_id, caller(request))
    return await schedule_detail(services, await pause_schedule(Log(services.bus), schedule.schedule_id))


@router.post("/schedules/{schedule_id:id}/resume", operation_id="resume_schedule", responses=CHANGE_RESPONSES)
async def resume(schedule_id: ScheduleId, request: Request) -> ScheduleDetail:
    """Resume a paused schedule, with its next slot."""
    services = services_of(request)
    schedule = await owned_schedule(services, schedule_id, caller(request))
    return await schedule_detail(services, await resume_schedule(Log(services.bus), schedule.schedule_id))


@router.post(
    "/schedules/{schedule_id:id}/run",
    operation_id="run_schedule",
    status_code=202,
    response_model=AcceptedResponse,
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 501, 507),
    openapi_extra=json_body(RunScheduleRequest, required=False),
)
async def run(schedule_id: ScheduleId, request: Request) -> Response:
    """Send the message of a schedule now, also if it is paused or has ended. Its slots stay as they are."""
    services = services_of(request)
    body = await parse_body(request, services, RunScheduleRequest, may_be_empty=True)
    schedule = await owned_schedule(services, schedule_id, caller(request))
    return await _run_now(services, request, schedule, body.client_message_id or str(uuid.uuid4()))


async def _run_now(services: Services, request: Request, schedule: Schedule, key: str) -> Response:
    message_id = run_message_id(schedule.schedule_id, key)
    add_audit_ids(request.scope, session_id=schedule.session_id, envelope_id=message_id)
    text = await schedule_text(Log(services.bus), schedule.schedule_id)
    if text is None:
        raise Problem(
            410, "conversation_deleted", f"session {schedule.session_id!r} was deleted, and this text with it"
        )
    envelope, options = message_of(schedule, text, message_id)
    facts = {"outcome": "sent", "message_id": message_id}
    record = NewRecord(schedule_runs_topic(schedule.schedule_id), facts, message_id, digest=message_id)
    services.presence.refresh()
    delivered = await services.sessions.post(
        envelope,
        options._replace(with_records=(record,)),
        when_busy=schedule.when_busy,
        history_reader=services.histories.read_with,
    )
    await services.presence.refreshed()
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    return accepted_response(services, schedule.session_id, delivered, "accepted", delivered.appended.seqs[-1])


async def owned_schedule(services: Services, schedule_id: str, principal: Principal) -> Schedule:
    """Return the schedule. One of another owner is reported as unknown."""
    schedule = await get_schedule(Log(services.bus), schedule_id)
    if not principal.owns(schedule.owner):
        raise unknown_schedule(schedule_id)
    return schedule


def schedule_info(schedule: Schedule) -> ScheduleInfo:
    timing = schedule.timing
    return ScheduleInfo(
        schedule_id=schedule.schedule_id,
        kind=schedule.kind,
        owner=schedule.owner,
        session_id=schedule.session_id,
        agent=schedule.agent,
        title=schedule.title,
        at=_moment(timing.at_ms),
        in_s=timing.in_s,
        cron=timing.cron,
        timezone=timing.timezone,
        missed=schedule.missed,
        when_busy=schedule.when_busy,
        until=_moment(timing.until_ms),
        max_runs=schedule.max_runs,
        status=schedule.status,
        next_at=_moment(shown_next_ms(schedule)),
        runs=schedule.runs,
        failures=schedule.failures,
        skipped=schedule.skipped,
        last_at=_moment(schedule.last_slot_ms),
        last_message_id=schedule.last_message_id,
        last_error=schedule.last_error,
        end_reason=schedule.end_reason,
    )


async def schedule_detail(services: Services, schedule: Schedule) -> ScheduleDetail:
    log = Log(services.bus)
    text = await schedule_text(log, schedule.schedule_id)
    recent = [_slot_info(record) for record in await recent_runs(log, schedule.schedule_id, RECENT_SLOTS)]
    created = datetime.fromtimestamp(schedule.created_ms / 1000, UTC)
    return ScheduleDetail(**dict(schedule_info(schedule)), text=text, created_at=created, recent=recent)


def _slot_info(record: Record) -> SlotInfo:
    return SlotInfo.model_validate({**record.payload, "at": datetime.fromtimestamp(record.at_ms / 1000, UTC)})


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
