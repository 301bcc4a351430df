"""`/health`, `/ready`, `/metrics`: for those who look after the process."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from magent2.bus.operations import Info
from magent2.errors import Magent2Error
from magent2.gateway.house import House
from magent2.gateway.problems import AGAIN, Problem
from magent2.gateway.schemas import Health, Ready, problems
from magent2.telemetry import METRICS_MEDIA_TYPE

PLAIN_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
}


def router(house: House) -> APIRouter:
    routes = APIRouter(tags=["house"])

    @routes.get("/health")
    async def health() -> Health:
        """The process answers."""
        return Health()

    @routes.get("/ready", responses=problems(503))
    async def ready() -> Ready:
        """The bus answers too, and new work is welcome."""
        if house.streams.draining:
            raise Problem.draining()
        try:
            found = await house.bus.acall(Info())
        except Magent2Error as error:
            raise Problem(503, "not_ready", f"the bus does not answer: {error}", AGAIN) from error
        return Ready(engine=found.engine)

    @routes.get("/metrics", response_class=Response, responses={**PLAIN_TEXT, **problems(401, 403, 429)})
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(house.metrics.text(), media_type=METRICS_MEDIA_TYPE)

    return routes
