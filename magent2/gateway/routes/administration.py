"""`/health`, `/ready` and `/metrics`; `/api/workers`, `/api/dead`, `/api/connectors` and `/api/outbox`; `/api/me`."""

from __future__ import annotations

import asyncio
import logging
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
from magent2.connectors.outbox import OutboxItem, drop_item, read_outbox, retry_item
from magent2.directory.connectors import (
    ConnectorRegistration,
    list_connector_ids,
    list_connectors,
    register_connector,
    unregister_connector,
)
from magent2.errors import Magent2Error, UnknownCursor
from magent2.gateway.openapi import problems
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    admins_only,
    caller,
    join_routers,
    json_body,
    parse_body,
)
from magent2.gateway.routes.directory import ADMINS, Name
from magent2.gateway.services import Services, UnknownPresence, served_agents
from magent2.gateway.streaming.sse import CURSOR_MAX
from magent2.mail.dead_letters import DEAD_PAGE, DeadLetter, drop_dead_letter, retry_dead_letter
from magent2.models.address import NAME_MAX_CHARS, check_name, dead_topic
from magent2.models.api.administration import (
    AgentInfo,
    AgentList,
    ConnectorInfo,
    ConnectorList,
    ConnectorRequest,
    DeadLetterInfo,
    DeadLetterPage,
    HealthResponse,
    LaneCounts,
    OutboxItemInfo,
    OutboxItemList,
    PrincipalInfo,
    ReadyResponse,
)
from magent2.models.api.base import OkResponse
from magent2.models.json_types import JsonObject
from magent2.models.principal import ADMIN_SCOPE
from magent2.telemetry import METRICS_MEDIA_TYPE

log = logging.getLogger(__name__)

LANES_READ_MAX_S = 2.0  # well below the timeout of a Prometheus scrape

METRICS_RESPONSE: dict[int | str, JsonObject] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
}


def _probe_routes(services: Services) -> APIRouter:
    routes = APIRouter(tags=["probes"])

    @routes.get("/health")
    async def health() -> HealthResponse:
        """Check that the process answers."""
        return HealthResponse()

    @routes.get("/ready", responses=problems(503))
    async def ready() -> ReadyResponse:
        """Check that the bus answers and that the process is not shutting down."""
        if services.streams.draining:
            raise Problem.draining()
        try:
            found = await services.bus.acall(Info())
        except Magent2Error as error:
            raise Problem(503, "not_ready", f"the bus does not answer: {error}", RETRY_HEADERS) from error
        return ReadyResponse(engine=found.engine)

    @routes.get("/metrics", response_class=Response, responses={**METRICS_RESPONSE, **problems(401, 403, 429)})
    async def metrics() -> Response:
        """Prometheus metrics."""
        await _update_lane_metrics(services)
        return Response(services.metrics.text(), media_type=METRICS_MEDIA_TYPE)

    return routes


async def _update_lane_metrics(services: Services) -> None:
    """Update the metrics that only the bus knows. They keep their values while the bus does not answer."""
    if isinstance(services.presence, UnknownPresence):
        return
    try:
        async with asyncio.timeout(LANES_READ_MAX_S):
            workers = await services.bus.acall(Workers())
            names = await known_agents(services.bus, workers)
            found = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
    except (Magent2Error, TimeoutError) as error:
        log.warning("cannot read the lanes for the metrics", extra={"error": str(error)})
        return
    states = Counter(lane.state for lanes in found for lane in lanes)
    for state in LaneCounts.model_fields:
        services.metrics.lanes.labels(state).set(states[state])
    services.metrics.workers.set(sum(worker.lease_s > 0 for worker in workers))


AGENTS_MAX = 1000
AGENT_PREFIX = "agent:"


def _workers_routes(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["administration"], dependencies=[Depends(admins_only)])

    @routes.get("/workers", responses=problems(*ACCESS_ERRORS, 501))
    async def workers() -> AgentList:
        """List registered agents and agents with a live worker, with the state of their lanes."""
        live = await services.bus.acall(Workers())
        names = await known_agents(services.bus, live)
        lanes = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
        return AgentList(agents=[_agent_info(name, live, found) for name, found in zip(names, lanes, strict=True)])

    return routes


async def known_agents(bus: Engine, workers: tuple[WorkerInfo, ...] | None = None) -> list[str]:
    """Return the agents that were ever registered, and the agents of live workers."""
    listed: TopicList = await bus.acall(Topics(AGENT_PREFIX, limit=AGENTS_MAX))
    served = served_agents(await bus.acall(Workers()) if workers is None else workers)
    return sorted({info.topic.removeprefix(AGENT_PREFIX) for info in listed.topics} | served)[:AGENTS_MAX]


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


AgentName = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS)]
LetterSeq = Annotated[int, Path(ge=1, le=CURSOR_MAX - 1)]


def _dead_routes(services: Services) -> APIRouter:
    routes = APIRouter(prefix=f"{API}/dead", tags=["dead letters"], dependencies=[Depends(admins_only)])
    _dead_list_route(routes, services)
    _dead_decision_routes(routes, services)
    return routes


def _dead_list_route(routes: APIRouter, services: Services) -> None:
    @routes.get("", responses=problems(401, 403, 410, 422, 429, 501, 503))
    async def letters(
        agent: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="only of this agent")] = None,
        after: Annotated[int | None, Query(ge=0, le=CURSOR_MAX, description="`next` of the page before")] = None,
    ) -> DeadLetterPage:
        """List dead letters, oldest first. With `agent` in pages, else the first page of every agent."""
        if agent is not None:
            check_name(agent, "agent name")
            found, more = await _dead_page(services.bus, agent, after)
            return DeadLetterPage(letters=[_dead_letter_info(letter) for letter in found], next=more)
        if after is not None:
            raise Problem(422, "bad_parameter", "'after' is a cursor of one agent's letters; set 'agent' too")
        pages = [await _dead_page(services.bus, name, None) for name in await known_agents(services.bus)]
        return DeadLetterPage(letters=[_dead_letter_info(letter) for found, _ in pages for letter in found], next=None)


def _dead_decision_routes(routes: APIRouter, services: Services) -> None:
    @routes.post("/{agent:path}/{seq}/retry", responses=problems(401, 403, 404, 422, 429, 503, 507))
    async def retry(agent: AgentName, seq: LetterSeq) -> OkResponse:
        """Deliver a dead letter again, once."""
        try:
            await retry_dead_letter(Log(services.bus), check_name(agent, "agent name"), seq)
        except UnknownCursor as error:
            raise _unknown_letter(error) from None
        return OkResponse()

    @routes.delete("/{agent:path}/{seq}", status_code=204, responses=problems(401, 403, 404, 422, 429, 503, 507))
    async def drop(agent: AgentName, seq: LetterSeq) -> Response:
        """Drop a dead letter."""
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
    text = payload.get("content") if isinstance(payload, dict) else None
    return DeadLetterInfo(
        agent=letter.agent,
        seq=letter.seq,
        conversation_id=letter.conversation_id,
        reason=letter.reason,
        attempts=letter.attempts,
        buried_at=datetime.fromtimestamp(letter.buried_ms / 1000, UTC),
        envelope_id=str(letter.mail.get("id", "")),
        text=text if isinstance(text, str) else None,
    )


ITEMS_MAX = 1000

ItemId = Annotated[str, Path(min_length=1, max_length=256)]


def _outbox_routes(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["connectors"], dependencies=ADMINS)
    _connector_routes(routes, services)
    _outbox_item_routes(routes, services)
    return routes


def _connector_routes(routes: APIRouter, services: Services) -> None:
    @routes.get("/connectors", responses=problems(*ACCESS_ERRORS))
    async def connectors() -> ConnectorList:
        """List the connectors, without their configuration, which contains secrets."""
        found = await list_connectors(Log(services.bus))
        return ConnectorList(connectors=[connector_info(known) for known in found])

    @routes.post(
        "/connectors",
        responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 409, 507),
        openapi_extra=json_body(ConnectorRequest),
    )
    async def put_connector(request: Request) -> ConnectorInfo:
        """Create a connector, or change its configuration."""
        body = await parse_body(request, services, ConnectorRequest)
        capabilities = capabilities_of(body.kind, body.config)
        return connector_info(
            await register_connector(Log(services.bus), body.id, body.kind, capabilities, body.config)
        )

    @routes.delete("/connectors/{connector}", responses=problems(*ACCESS_ERRORS, 404, 422, 507))
    async def drop_connector(connector: Name) -> ConnectorInfo:
        """Remove a connector. Messages that wait in its outbox are not sent."""
        return connector_info(await unregister_connector(Log(services.bus), connector))


def _outbox_item_routes(routes: APIRouter, services: Services) -> None:
    @routes.get("/outbox", responses=problems(*ACCESS_ERRORS, 422))
    async def outbox(
        connector: Annotated[str | None, Query(max_length=80, description="only of this connector")] = None,
        state: Annotated[str | None, Query(max_length=20, description="only messages in this state")] = None,
    ) -> OutboxItemList:
        """List the last 1,000 outgoing messages and their states, oldest first."""
        names = await list_connector_ids(Log(services.bus)) if connector is None else [connector]
        items = [item for name in names for item in await read_outbox(Log(services.bus), name)]
        chosen = [item for item in items if state in (None, item.state)]
        return OutboxItemList(items=[outbox_item_info(item) for item in chosen[-ITEMS_MAX:]])

    @routes.post("/outbox/{connector}/{item}/retry", responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507))
    async def retry(connector: Name, item: ItemId) -> OutboxItemInfo:
        """Send a message again that failed or whose outcome is unknown."""
        return outbox_item_info(await retry_item(Log(services.bus), connector, item))

    @routes.delete("/outbox/{connector}/{item}", responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507))
    async def drop(connector: Name, item: ItemId) -> OutboxItemInfo:
        """Drop a message that failed or whose outcome is unknown."""
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


def _me_routes(_: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["administration"])

    @routes.get("/me", responses=problems(*ACCESS_ERRORS))
    async def me(request: Request) -> PrincipalInfo:
        """Return the principal and scopes of the credential."""
        principal = caller(request)
        return PrincipalInfo(
            principal=principal.name, scopes=[*([ADMIN_SCOPE] if principal.admin else []), principal.name]
        )

    return routes


def router(services: Services) -> APIRouter:
    return join_routers(services, _probe_routes, _workers_routes, _dead_routes, _outbox_routes, _me_routes)
