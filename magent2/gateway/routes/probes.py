"""`/health`, `/ready` and `/metrics`: probes and metrics of the process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from magent2.bus.operations import Info, Lanes, Workers
from magent2.errors import Magent2Error
from magent2.gateway.openapi import problems
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.gateway.routes.administration import known_agents
from magent2.gateway.services import Services, UnknownPresence
from magent2.models.api.administration import HealthResponse, LaneCounts, ReadyResponse
from magent2.telemetry import METRICS_MEDIA_TYPE

log = logging.getLogger(__name__)

LOOK_MAX_S = 2.0  # a scraper does not wait long

PLAIN_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
}


def router(services: Services) -> APIRouter:
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

    @routes.get("/metrics", response_class=Response, responses={**PLAIN_TEXT, **problems(401, 403, 429)})
    async def metrics() -> Response:
        """Prometheus metrics."""
        await _look_at_lanes(services)
        return Response(services.metrics.text(), media_type=METRICS_MEDIA_TYPE)

    return routes


async def _look_at_lanes(services: Services) -> None:
    """Figures that only the bus knows. One that does not answer leaves them as they were; it shows elsewhere."""
    if isinstance(services.presence, UnknownPresence):
        return
    try:
        async with asyncio.timeout(LOOK_MAX_S):
            workers = await services.bus.acall(Workers())
            names = await known_agents(services.bus, workers)
            found = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
    except (Magent2Error, TimeoutError) as error:
        log.warning("the bus was not asked for its lanes", extra={"error": str(error)})
        return
    states = Counter(lane.state for lanes in found for lane in lanes)
    for state in LaneCounts.model_fields:
        services.metrics.lanes.labels(state).set(states[state])
    services.metrics.workers.set(sum(worker.lease_s > 0 for worker in workers))
