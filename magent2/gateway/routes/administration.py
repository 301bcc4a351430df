"""`/health`, `/ready` and `/metrics`; `/api/workers`, `/api/dead`, `/api/connectors` and `/api/outbox`; `/api/me`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Info, Lanes, Read, Topics, Workers
from magent2.bus.records import LaneInfo, Page, TopicList, WorkerInfo
from magent2.connectors.builtin import capabilities_of
from magent2.connectors.outbox import OutboxItem, drop_item, list_outboxes, read_outbox, retry_item
from magent2.directory.connectors import (
    ConnectorRegistration,
    list_connectors,
    register_connector,
    unregister_connector,
)
from magent2.errors import BusUnavailable, Magent2Error, UnknownCursor
from magent2.failures import mask_secrets
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    NAME_SCHEMA,
    admins_only,
    caller,
    json_body,
    parse_body,
)
from magent2.gateway.routes.directory import ADMINS, Name
from magent2.gateway.services import Services, UnknownPresence, served_agents, services_of
from magent2.gateway.streaming.sse import CURSOR_MAX
from magent2.mail.dead_letters import (
    DEAD_PAGE,
    DeadLetter,
    DeadLetterCursor,
    DeadLetterFilter,
    drop_dead_letter,
    process_dead_letters,
    retry_dead_letter,
)
from magent2.models.address import INTERNAL_AGENTS, NAME_MAX_CHARS, check_name, dead_topic
from magent2.models.api.administration import (
    AgentInfo,
    AgentList,
    ConnectorInfo,
    ConnectorList,
    ConnectorRequest,
    DeadLetterInfo,
    DeadLetterPage,
    DeadLettersRequest,
    DeadLettersResponse,
    HealthResponse,
    LaneCounts,
    OutboxItemInfo,
    OutboxItemList,
    PrincipalInfo,
    ReadyResponse,
    RefusedDeadLetter,
)
from magent2.models.api.base import OkResponse
from magent2.models.json_types import JsonObject
from magent2.models.principal import ADMIN_SCOPE
from magent2.sessions.schedules.store import count_schedules
from magent2.telemetry import METRICS_MEDIA_TYPE

log = logging.getLogger(__name__)

READY_MAX_S = 1.5  # for all checks of /ready, whose callers often wait 2 s
LANES_READ_MAX_S = 2.0  # well below the timeout of a Prometheus scrape

METRICS_RESPONSE: dict[int | str, JsonObject] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
}


probe_router = APIRouter(tags=["probes"])
workers_router = APIRouter(prefix=API, tags=["administration"], dependencies=[Depends(admins_only)])
dead_router = APIRouter(prefix=f"{API}/dead", tags=["dead letters"], dependencies=[Depends(admins_only)])
outbox_router = APIRouter(prefix=API, tags=["connectors"], dependencies=ADMINS)
me_router = APIRouter(prefix=API, tags=["administration"])


@probe_router.head("/health", include_in_schema=False)
@probe_router.get("/health", operation_id="get_health")
async def health() -> HealthResponse:
    """Check that the process answers."""
    return HealthResponse()


@probe_router.head("/ready", include_in_schema=False, response_model_exclude_none=True)
@probe_router.get("/ready", operation_id="get_readiness", response_model_exclude_none=True, responses=problems(503))
async def ready(request: Request) -> ReadyResponse:
    """Check that the bus answers and takes writes, and that the process is not shutting down.

    With the gateway's token, the response names the engine of the bus, or why it is not ready.
    """
    services = services_of(request)
    if services.streams.draining:
        raise Problem.draining()
    tells_all = caller(request).admin
    engine = await _checked_engine(services, tells_all)
    return ReadyResponse(engine=engine if tells_all else None)


@probe_router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses={**METRICS_RESPONSE, **problems(401, 403, 429)},
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    services = services_of(request)
    await _update_lane_metrics(services)
    return Response(services.metrics.text(), media_type=METRICS_MEDIA_TYPE)


async def _checked_engine(services: Services, tells_all: bool) -> str:
    """Return the engine of a bus that answers and takes writes. Raises the problem of one that does not."""
    cause: BaseException
    try:
        async with asyncio.timeout(READY_MAX_S):
            found = await services.bus.acall(Info())
            failure = await services.writes.failure()
    except TimeoutError:
        state, cause = "the bus does not answer", BusUnavailable(f"no answer within {READY_MAX_S:g} s")
    except Magent2Error as error:
        state, cause = "the bus does not answer", error
    else:
        if failure is None:
            return str(found.engine)
        state, cause = "the bus takes no writes", failure
    if tells_all:
        raise Problem(503, "not_ready", f"{state}: {mask_secrets(str(cause))}", RETRY_HEADERS) from cause
    # The cause may name hosts, files and users of the store.
    raise Problem.failed(503, "not_ready", state, cause) from cause


async def _update_lane_metrics(services: Services) -> None:
    """Update the metrics that only the bus knows. They keep their values while the bus does not answer."""
    if isinstance(services.presence, UnknownPresence):
        return
    try:
        async with asyncio.timeout(LANES_READ_MAX_S):
            workers = await services.bus.acall(Workers())
            names = await known_agents(services.bus, workers)
            found = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
            schedules = await count_schedules(Log(services.bus), round(time.time() * 1000))
    except (Magent2Error, TimeoutError) as error:
        log.warning("cannot read the lanes for the metrics", extra={"error": str(error)})
        return
    states = Counter(lane.state for lanes in found for lane in lanes)
    for state in LaneCounts.model_fields:
        services.metrics.lanes.labels(state).set(states[state])
    for state, count in asdict(schedules).items():
        services.metrics.schedules.labels(state).set(count)
    live = (worker for worker in workers if worker.lease_s > 0 and not INTERNAL_AGENTS.issuperset(worker.agents))
    services.metrics.workers.set(sum(1 for _ in live))


AGENTS_MAX = 1000
AGENT_PREFIX = "agent:"


@workers_router.get("/workers", operation_id="list_workers", responses=problems(*ACCESS_ERRORS, 501))
async def workers(request: Request) -> AgentList:
    """List registered agents and agents with a live worker, with the state of their lanes."""
    services = services_of(request)
    live = await services.bus.acall(Workers())
    names = await known_agents(services.bus, live)
    lanes = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
    return AgentList(agents=[_agent_info(name, live, found) for name, found in zip(names, lanes, strict=True)])


async def known_agents(bus: Engine, workers: tuple[WorkerInfo, ...]) -> list[str]:
    """Return the agents that were ever registered, and the agents of live workers."""
    listed: TopicList = await bus.acall(Topics(AGENT_PREFIX, limit=AGENTS_MAX))
    registered = {info.topic.removeprefix(AGENT_PREFIX) for info in listed.topics} - INTERNAL_AGENTS
    return sorted(registered | served_agents(workers))[:AGENTS_MAX]


def _agent_info(name: str, workers: tuple[WorkerInfo, ...], lanes: tuple[LaneInfo, ...]) -> AgentInfo:
    at_work = sorted(worker.worker for worker in workers if worker.lease_s > 0 and name in worker.agents)
    states = Counter(lane.state for lane in lanes)
    return AgentInfo(
        name=name,
        alive=bool(at_work),
        workers=at_work,
        lanes=LaneCounts(**{state: states[state] for state in LaneCounts.model_fields}),
        pending=sum(lane.pending for lane in lanes),
    )


AgentName = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS, json_schema_extra=NAME_SCHEMA)]
LetterSeq = Annotated[int, Path(ge=1, le=CURSOR_MAX - 1)]


@dead_router.get("", operation_id="list_dead_letters", responses=problems(401, 403, 410, 422, 429, 501, 503))
async def letters(
    request: Request,
    agent: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="only of this agent")] = None,
    after: Annotated[int | None, Query(ge=0, le=CURSOR_MAX, description="`next` of the page before")] = None,
) -> DeadLetterPage:
    """List dead letters, oldest first. With `agent` in pages, else the first page of every agent."""
    services = services_of(request)
    if agent is not None:
        check_name(agent, "agent name")
        found, more = await _dead_page(services.bus, agent, after)
        return DeadLetterPage(letters=[_dead_letter_info(letter) for letter in found], next=more)
    if after is not None:
        raise Problem(422, "bad_parameter", "'after' is a cursor of one agent's letters; set 'agent' too")
    # Only agents with dead letters have such a topic.
    listed: TopicList = await services.bus.acall(Topics(dead_topic(""), limit=AGENTS_MAX))
    names = sorted(info.topic.removeprefix(dead_topic("")) for info in listed.topics)
    pages = [await _dead_page(services.bus, name, None) for name in names]
    return DeadLetterPage(letters=[_dead_letter_info(letter) for found, _ in pages for letter in found], next=None)


@dead_router.post(
    "",
    operation_id="process_dead_letters",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 501, 507),
    openapi_extra=json_body(DeadLettersRequest),
)
async def process(request: Request) -> DeadLettersResponse:
    """Retry or drop many dead letters. A request that is repeated retries no letter twice."""
    services = services_of(request)
    body = await parse_body(request, services, DeadLettersRequest)
    add_audit_ids(request.scope, action=body.action, agent=body.agent, dry_run=body.dry_run)
    chosen = DeadLetterFilter(
        None if body.agent is None else check_name(body.agent, "agent name"),
        None if body.since is None else int(body.since.timestamp() * 1000),
        body.reason,
    )
    after = None if body.after is None else DeadLetterCursor.parse(body.after)
    batch = await process_dead_letters(Log(services.bus), body.action, chosen, after, dry_run=body.dry_run)
    add_audit_ids(request.scope, letters=len(batch.letters), refused=len(batch.refused))
    return DeadLettersResponse(
        letters=[_dead_letter_info(letter) for letter in batch.letters],
        refused=[RefusedDeadLetter(agent=letter.agent, seq=letter.seq, error=error) for letter, error in batch.refused],
        next=None if batch.next is None else str(batch.next),
    )


@dead_router.post(
    "/{agent:id}/{seq}/retry",
    operation_id="retry_dead_letter",
    responses=problems(401, 403, 404, 422, 429, 503, 507),
)
async def retry_letter(request: Request, agent: AgentName, seq: LetterSeq) -> OkResponse:
    """Deliver a dead letter again, once."""
    services = services_of(request)
    try:
        await retry_dead_letter(Log(services.bus), check_name(agent, "agent name"), seq)
    except UnknownCursor as error:
        raise _unknown_letter(error) from None
    return OkResponse()


@dead_router.delete(
    "/{agent:id}/{seq}",
    operation_id="drop_dead_letter",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429, 503, 507),
)
async def drop_letter(request: Request, agent: AgentName, seq: LetterSeq) -> Response:
    """Drop a dead letter."""
    services = services_of(request)
    try:
        await drop_dead_letter(Log(services.bus), check_name(agent, "agent name"), seq)
    except UnknownCursor as error:
        raise _unknown_letter(error) from None
    return Response(status_code=204)


async def _dead_page(bus: Engine, agent: str, after: int | None) -> tuple[list[DeadLetter], int | None]:
    """Return the letters of a page that were neither retried nor dropped, perhaps none, and the next cursor."""
    page: Page = await bus.acall(Read(dead_topic(agent), OLDEST if after is None else after, DEAD_PAGE))
    more = page.records[-1].seq if page.records and page.records[-1].seq < page.last else None
    return [DeadLetter.parse(record) for record in page.records if not record.erased], more


def _unknown_letter(error: UnknownCursor) -> Problem:
    return Problem(404, "unknown_letter", str(error))


def _dead_letter_info(letter: DeadLetter) -> DeadLetterInfo:
    payload = letter.mail.get("payload")
    fields = payload if isinstance(payload, dict) else {}
    text = fields.get("content")
    return DeadLetterInfo(
        agent=letter.agent,
        seq=letter.seq,
        conversation_id=letter.conversation_id,
        reason=letter.reason,
        attempts=letter.attempts,
        buried_at=datetime.fromtimestamp(letter.buried_ms / 1000, UTC),
        envelope_id=str(fields.get("id") or letter.mail.get("id", "")),
        text=text if isinstance(text, str) else None,
    )


ITEMS_MAX = 1000

ItemId = Annotated[str, Path(min_length=1, max_length=256)]


@outbox_router.get("/connectors", operation_id="list_connectors", responses=problems(*ACCESS_ERRORS))
async def connectors(request: Request) -> ConnectorList:
    """List the connectors, without their configuration, which contains secrets."""
    services = services_of(request)
    found = await list_connectors(Log(services.bus))
    return ConnectorList(connectors=[connector_info(known) for known in found])


@outbox_router.post(
    "/connectors",
    operation_id="put_connector",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 409, 507),
    openapi_extra=json_body(ConnectorRequest),
)
async def put_connector(request: Request) -> ConnectorInfo:
    """Create a connector, or change its configuration."""
    services = services_of(request)
    body = await parse_body(request, services, ConnectorRequest)
    add_audit_ids(request.scope, connector=body.id, kind=body.kind)
    capabilities = capabilities_of(body.kind, body.config)
    return connector_info(await register_connector(Log(services.bus), body.id, body.kind, capabilities, body.config))


@outbox_router.delete(
    "/connectors/{connector:id}", operation_id="delete_connector", responses=problems(*ACCESS_ERRORS, 404, 422, 507)
)
async def drop_connector(request: Request, connector: Name) -> ConnectorInfo:
    """Remove a connector. Messages that wait in its outbox are not sent."""
    services = services_of(request)
    return connector_info(await unregister_connector(Log(services.bus), connector))


@outbox_router.get("/outbox", operation_id="list_outbox", responses=problems(*ACCESS_ERRORS, 422))
async def outbox(
    request: Request,
    connector: Annotated[str | None, Query(max_length=80, description="a connector, or `webhook:{id}`")] = None,
    state: Annotated[str | None, Query(max_length=20, description="only messages in this state")] = None,
) -> OutboxItemList:
    """List the last 1,000 outgoing messages and their states, oldest first."""
    services = services_of(request)
    names = await list_outboxes(Log(services.bus)) if connector is None else [connector]
    items = [item for name in names for item in await read_outbox(Log(services.bus), name)]
    chosen = [item for item in items if state in (None, item.state)]
    return OutboxItemList(items=[outbox_item_info(item) for item in chosen[-ITEMS_MAX:]])


@outbox_router.post(
    "/outbox/{connector:id}/{item:id}/retry",
    operation_id="retry_outbox_item",
    responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507),
)
async def retry_outbox_item(request: Request, connector: Name, item: ItemId) -> OutboxItemInfo:
    """Send a message again that failed or whose outcome is unknown."""
    services = services_of(request)
    return outbox_item_info(await retry_item(Log(services.bus), connector, item))


@outbox_router.delete(
    "/outbox/{connector:id}/{item:id}",
    operation_id="drop_outbox_item",
    responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507),
)
async def drop_outbox_item(request: Request, connector: Name, item: ItemId) -> OutboxItemInfo:
    """Drop a message that failed or whose outcome is unknown."""
    services = services_of(request)
    return outbox_item_info(await drop_item(Log(services.bus), connector, item))


def connector_info(known: ConnectorRegistration) -> ConnectorInfo:
    return ConnectorInfo(id=known.id, kind=known.kind, capabilities=asdict(known.capabilities))


def outbox_item_info(item: OutboxItem) -> OutboxItemInfo:
    return OutboxItemInfo(
        id=item.id,
        connector=item.message.connector,
        target=item.message.target,
        conversation_id=item.message.conversation_id,
        state=item.state,
        tries=item.tries,
        reason=item.reason,
        receipt=item.receipt,
        at_ms=item.at_ms,
    )


@me_router.get("/me", operation_id="get_principal", responses=problems(*ACCESS_ERRORS))
async def me(request: Request) -> PrincipalInfo:
    """Return the principal and scopes of the credential."""
    principal = caller(request)
    return PrincipalInfo(principal=principal.name, scopes=[*([ADMIN_SCOPE] if principal.admin else []), principal.name])
