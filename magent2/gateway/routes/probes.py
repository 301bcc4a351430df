"""`/health`, `/ready`, `/metrics`: for those who look after the process."""

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
from magent2.gateway.problems import AGAIN, Problem
from magent2.gateway.routes.agents import known_agents
from magent2.gateway.services import House, Unaskable
from magent2.models.api.administration import HealthResponse, LaneCounts, ReadyResponse
from magent2.telemetry import METRICS_MEDIA_TYPE

log = logging.getLogger(__name__)

LOOK_MAX_S = 2.0  # a scraper does not wait long

PLAIN_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
}


def router(house: House) -> APIRouter:
    routes = APIRouter(tags=["house"])

    @routes.get("/health")
    async def health() -> HealthResponse:
        """The process answers."""
        return HealthResponse()

    @routes.get("/ready", responses=problems(503))
    async def ready() -> ReadyResponse:
        """The bus answers too, and new work is welcome."""
        if house.streams.draining:
            raise Problem.draining()
        try:
            found = await house.bus.acall(Info())
        except Magent2Error as error:
            raise Problem(503, "not_ready", f"the bus does not answer: {error}", AGAIN) from error
        return ReadyResponse(engine=found.engine)

    @routes.get("/metrics", response_class=Response, responses={**PLAIN_TEXT, **problems(401, 403, 429)})
    async def metrics() -> Response:
        """Prometheus metrics."""
        await _look_at_lanes(house)
        return Response(house.metrics.text(), media_type=METRICS_MEDIA_TYPE)

    return routes


async def _look_at_lanes(house: House) -> None:
    """Figures that only the bus knows. One that does not answer leaves them as they were; it shows elsewhere."""
    if isinstance(house.served, Unaskable):
        return
    try:
        async with asyncio.timeout(LOOK_MAX_S):
            workers = await house.bus.acall(Workers())
            names = await known_agents(house.bus, workers)
            found = await asyncio.gather(*(house.bus.acall(Lanes(name)) for name in names))
    except (Magent2Error, TimeoutError) as error:
        log.warning("the bus was not asked for its lanes", extra={"error": str(error)})
        return
    states = Counter(lane.state for lanes in found for lane in lanes)
    for state in LaneCounts.model_fields:
        house.metrics.lanes.labels(state).set(states[state])
    house.metrics.workers.set(sum(worker.lease_s > 0 for worker in workers))
