"""The gateway as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from magent2.bus.interface import Bus, Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.v1_adapter import V1BusAdapter, is_engine
from magent2.gateway import openapi, problems
from magent2.gateway.access.auth import Access
from magent2.gateway.access.middleware import AccessMiddleware, is_open
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.instrumentation import MetricsMiddleware, RequestSpans, with_security_headers
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.open_counts import LimitShare
from magent2.gateway.limits.rate_limits import RequestRates, SharedRequestRates
from magent2.gateway.paths import keep_encoded_slashes
from magent2.gateway.proxy import ProxySettings, route_path
from magent2.gateway.reply_waiter import ReplyWaiter
from magent2.gateway.route_list import ROUTES
from magent2.gateway.routes.send import SEND_PATH, SendEndpoint
from magent2.gateway.services import Services, UnknownPresence, WorkerPresence, WriteProbe
from magent2.gateway.streaming.open_streams import OpenStreams
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.models.json_types import JsonObject
from magent2.roster.registry import Registry
from magent2.sessions.history import HistoryCache
from magent2.sessions.queue_depth import QueueLimit
from magent2.sessions.store import SessionStore
from magent2.telemetry import Metrics
from magent2.telemetry.observation import DeliveryObserver
from magent2.telemetry.tracing import NO_TRACER, Tracer

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # not there in older releases, which ignore the option

HISTORY_CACHE_MAX_BYTES = 32 << 20  # of all histories that one gateway caches

# FastAPI instruments itself as soon as the process has a provider of OpenTelemetry. Its spans would double ours, probes
# included, and its log records would contain the messages of errors, which may quote people.
NO_FASTAPI_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


class GatewayApp(FastAPI):
    """The application. `POST /send` goes to its endpoint, through the same middleware but not FastAPI's dispatch.

    FastAPI's dispatch costs more than the delivery of a message.
    """

    send_endpoint: ASGIApp | None = None
    proxy = ProxySettings()

    def openapi(self) -> JsonObject:
        if self.openapi_schema is None:
            openapi.complete(super().openapi(), is_open)
        return cast("JsonObject", self.openapi_schema)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.proxy.apply(scope)
            keep_encoded_slashes(scope)
        if scope.get("method") == "POST" and self.send_endpoint is not None and route_path(scope) == SEND_PATH:
            await self.send_endpoint(scope, receive, send)
        elif self.proxy.root_path and scope.get("path") == self.proxy.root_path:
            # The links of the page are relative, so its address must end in a slash.
            redirect = RedirectResponse(f"{self.proxy.root_path}/")
            redirect.raw_headers = with_security_headers(redirect.raw_headers)
            await redirect(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(  # noqa: PLR0913  one parameter per part of the process
    bus: Bus,
    *,
    access: Access | None = None,
    limits: GatewayLimits | None = None,
    registry: Registry | None = None,
    catalogue: Catalogue | None = None,
    metrics: Metrics | None = None,
    tracer: Tracer = NO_TRACER,
    proxy: ProxySettings | None = None,
    share: LimitShare | None = None,
) -> FastAPI:
    """Return the HTTP API of a bus. Without `access`, every caller is an administrator.

    `registry` names the agents, by default those of the built-in agents file. `catalogue` takes precedence over it.
    Pass `metrics` to share them with other parts of the process. With a `tracer`, each request has a span.
    Without `proxy`, forwarding headers are ignored. `share` is for an address that several gateways serve.
    """
    access, limits, metrics = access or Access(), limits or GatewayLimits(), metrics or Metrics()
    if metrics.bus is not None:
        metrics.bus.read_usage_of(bus)
    app = GatewayApp(
        title="magent2", docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=NO_FASTAPI_TELEMETRY
    )
    deliveries = DeliveryObserver(metrics.delivered, tracer)
    services = _services(bus, access, limits, metrics, catalogue or Catalogue(registry), deliveries, share)
    keys = services.streams.keys if services.has_keys else None
    app.proxy = proxy or app.proxy
    app.state.services = services
    app.routes.extend(ROUTES)
    problems.install(app, services.writes.note)
    app.add_middleware(AccessMiddleware, access=access, keys=keys, rates=services.rates)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    send_endpoint = AccessMiddleware(SendEndpoint(services), access, keys, services.rates)
    app.send_endpoint = MetricsMiddleware(send_endpoint, metrics)
    if tracer.enabled:
        app.add_middleware(RequestSpans, tracer=tracer)
        app.send_endpoint = RequestSpans(app.send_endpoint, tracer)
    # As FastAPI does for all other routes: an unexpected error of the middleware is a problem document too.
    app.send_endpoint = ServerErrorMiddleware(app.send_endpoint, problems.answer_unexpected_error)
    return app


def _services(
    bus: Bus,
    access: Access,
    limits: GatewayLimits,
    metrics: Metrics,
    catalogue: Catalogue,
    deliveries: DeliveryObserver,
    share: LimitShare | None,
) -> Services:
    """Choose the services. A v1 bus has no workers, no keys and no queue depth to ask for."""
    engine: Engine
    sessions: SessionStore
    presence: WorkerPresence
    rates: RequestRates
    if has_engine := is_engine(bus):
        engine = bus
        sessions = SessionStore(engine, deliveries, QueueLimit(engine, limits.queue_max_messages).admit)
        presence = WorkerPresence(engine)
    else:
        engine = V1BusAdapter(bus)
        sessions = SessionStore(engine, deliveries)
        presence = UnknownPresence(engine)
    if has_engine and not isinstance(bus, MemoryBus):
        rates = SharedRequestRates(engine, limits.rates)
    else:  # a bus in memory has no other gateways to share counts with
        rates = RequestRates(limits.rates)
    return Services(
        bus=engine,
        has_keys=has_engine,
        sessions=sessions,
        streams=OpenStreams(engine, limits, access, metrics, share),
        presence=presence,
        writes=WriteProbe(engine),
        limits=limits,
        metrics=metrics,
        catalogue=catalogue,
        histories=HistoryCache(engine, HISTORY_CACHE_MAX_BYTES),
        replies=ReplyWaiter(engine),
        session_lists=LiveSessionLists(engine),
        rates=rates,
    )
