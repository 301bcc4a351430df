"""The gateway as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from magent2.bus.interface import Bus, Engine
from magent2.bus.memory import MemoryBus
from magent2.gateway import openapi, problems
from magent2.gateway.access.auth import Access
from magent2.gateway.access.middleware import Count, Guard, is_open, secured
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits.limits import Limits
from magent2.gateway.limits.queue_depth import QueuedSessions
from magent2.gateway.limits.rate_limits import RateLimits, SharedRates
from magent2.gateway.proxy import Front, route_path
from magent2.gateway.reply_waiter import Waiters
from magent2.gateway.request_spans import Traced
from magent2.gateway.routes import agents, api, conversations, dead, page
from magent2.gateway.routes import probes as house_routes
from magent2.gateway.routes import send as sending
from magent2.gateway.routes import stream as streaming
from magent2.gateway.services import House, Served, Unaskable
from magent2.gateway.streaming.open_streams import Streams
from magent2.gateway.streaming.session_list import SessionLists
from magent2.gateway.v1_bus import PlainBus
from magent2.roster.registry import Registry
from magent2.sessions.history import HistoryCache
from magent2.sessions.store import SessionStore
from magent2.telemetry import Metrics
from magent2.telemetry.requests import Deliveries

if TYPE_CHECKING:
    from magent2.telemetry.otel import Tracer

HISTORY_RECORDS_MAX = 20_000  # of histories that a gateway keeps in memory


class App(FastAPI):
    """FastAPI, with a shorter way in for messages."""

    send_door: ASGIApp | None = None
    front = Front()

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            openapi.complete(super().openapi(), is_open)
        return cast("dict[str, Any]", self.openapi_schema)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.front.meet(scope)
        if scope.get("method") == "POST" and self.send_door is not None and route_path(scope) == sending.PATH:
            await self.send_door(scope, receive, send)
        elif self.front.root_path and scope.get("path") == self.front.root_path:
            await _below(self.front.root_path)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _below(root: str) -> Response:
    """The page's links are relative, so it must be read below the root path."""
    answer = RedirectResponse(f"{root}/")
    answer.raw_headers = secured(answer.raw_headers)
    return answer


def create_app(
    bus: Bus,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
    catalogue: Catalogue | None = None,
    metrics: Metrics | None = None,
    tracer: Tracer | None = None,
    front: Front | None = None,
) -> FastAPI:
    """HTTP for a bus. Without `access` it is open to whoever reaches it.

    `registry` says who is in the team, by default the one that is there without a file; `catalogue` says more.
    `metrics` are shared where others of this process count as well; with a `tracer` requests have spans.
    `front` says what stands before it: by default nothing, and what a proxy says is not believed.
    """
    chosen_access, chosen_limits = access or Access(), limits or Limits()
    metrics = metrics or Metrics()
    deliveries = Deliveries(metrics.delivered, tracer)
    app = App(title="magent2", docs_url=None, redoc_url=None, redirect_slashes=False)
    house = _house(bus, chosen_access, chosen_limits, metrics, catalogue or Catalogue(registry), deliveries)
    app.front = front or app.front
    app.state.house = house
    for rooms in (sending, streaming, conversations, agents, dead, house_routes, page, api):
        app.routes.extend(rooms.router(house).routes)  # not included: FastAPI would build each of them again
    problems.install(app)
    keys = None if isinstance(house.bus, PlainBus) else house.streams.keys
    rates = house.rates
    app.add_middleware(Guard, access=chosen_access, keys=keys, rates=rates)
    app.add_middleware(Count, metrics=metrics)
    app.send_door = Count(Guard(sending.SendDoor(house), chosen_access, keys, rates), metrics)
    if tracer is not None:
        app.add_middleware(Traced, tracer=tracer)
        app.send_door = Traced(app.send_door, tracer)
    return app


def _house(
    bus: Bus, access: Access, limits: Limits, metrics: Metrics, catalogue: Catalogue, deliveries: Deliveries
) -> House:
    engine = cast("Engine", bus) if hasattr(bus, "acall") else PlainBus(bus)
    return House(
        bus=engine,
        sessions=SessionStore(engine, deliveries)
        if isinstance(engine, PlainBus)
        else QueuedSessions(engine, limits.queue_max_messages, deliveries),
        streams=Streams(engine, limits, access, metrics),
        served=Unaskable(engine) if isinstance(engine, PlainBus) else Served(engine),
        limits=limits,
        metrics=metrics,
        catalogue=catalogue,
        histories=HistoryCache(engine, HISTORY_RECORDS_MAX),
        waiters=Waiters(engine),
        lists=SessionLists(engine),
        rates=_rates(engine, limits),
    )


def _rates(bus: Engine, limits: Limits) -> RateLimits:
    """Counted together with other gateways, where there can be others."""
    alone = isinstance(bus, MemoryBus | PlainBus)
    return RateLimits(limits.rates) if alone else SharedRates(bus, limits.rates)
