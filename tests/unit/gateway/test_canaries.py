"""Private or undocumented parts of uvicorn, Starlette and FastAPI that the gateway uses, one canary each.

A canary fails when an upgrade renames or removes its part, and says where the gateway uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import fastapi
import pytest
import uvicorn
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from fastapi.testclient import TestClient
from starlette.responses import Response
from uvicorn.lifespan.off import LifespanOff
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from magent2.gateway.app import NO_FASTAPI_TELEMETRY
from magent2.gateway.instrumentation import route_template
from tests.support.spans import recorded_spans


def server() -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(fastapi.FastAPI()))


def loaded_config() -> uvicorn.Config:
    config = uvicorn.Config(fastapi.FastAPI(), http="httptools", lifespan="off", log_config=None)
    config.load()
    return config


def protocol() -> HttpToolsProtocol:
    config = loaded_config()
    return HttpToolsProtocol(config, ServerState(), {}, cast("asyncio.AbstractEventLoop", object()))


def cycle() -> RequestResponseCycle:
    any_part = cast("Any", None)
    return RequestResponseCycle(*[any_part] * 11)


def endpoint() -> None: ...


@dataclass(frozen=True, slots=True)
class Canary:
    """Objects that `make` returns have `attribute`; `user` is the code of the gateway that needs it."""

    make: Callable[[], object]
    attribute: str
    user: str

    def check(self) -> None:
        found = self.make()
        assert hasattr(found, self.attribute), f"{type(found).__name__}.{self.attribute} is gone; see {self.user}"

    @property
    def id(self) -> str:
        return f"{getattr(self.make, '__name__', 'route')}.{self.attribute}"


PROTOCOL_PARTS = (
    "connections", "transport", "loop", "scope", "flow", "parser", "pipeline", "headers", "cycle", "connection_made",
    "connection_lost", "data_received", "on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body",
    "on_message_complete", "on_response_complete", "pause_writing", "send_400_response",
)  # fmt: skip
CYCLE_PARTS = ("transport", "keep_alive", "response_started", "response_complete", "disconnected", "message_event")
CANARIES = [
    Canary(server, "capture_signals", "gateway/server.py _Server"),
    Canary(server, "should_exit", "gateway/server.py Gateway.drain"),
    Canary(server, "server_state", "gateway/server.py Gateway.connections"),
    Canary(server, "startup", "gateway/server.py _Server.startup"),
    Canary(loaded_config, "http_protocol_class", "gateway/server.py _Server._create_protocol"),
    Canary(lambda: LifespanOff(loaded_config()), "state", "gateway/server.py _Server._create_protocol"),
    Canary(ServerState, "connections", "gateway/server.py Gateway.connections"),
    *(Canary(protocol, name, "gateway/limits/protocol.py LimitedProtocol") for name in PROTOCOL_PARTS),
    *(Canary(cycle, name, "gateway/limits/protocol.py LimitedProtocol") for name in CYCLE_PARTS),
    Canary(lambda: FlowControl(cast("asyncio.Transport", object())), "read_paused", "gateway/limits/protocol.py"),
    Canary(fastapi.FastAPI, "openapi_schema", "gateway/app.py GatewayApp.openapi"),
    Canary(lambda: APIRoute("/{x}", endpoint), "path_format", "gateway/route_label.py route_template"),
    Canary(Response, "raw_headers", "gateway/app.py GatewayApp"),
]


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.id)
def test_a_part_that_the_gateway_uses_is_there(canary: Canary) -> None:
    canary.check()


@dataclass(frozen=True, slots=True)
class Renamed:
    """An object with all parts of another but one."""

    real: object
    gone: str

    def __getattr__(self, name: str) -> object:
        if name == self.gone:
            raise AttributeError(name)
        return getattr(self.real, name)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.id)
def test_a_canary_fails_when_its_part_is_renamed(canary: Canary) -> None:
    renamed = Canary(lambda: Renamed(canary.make(), canary.attribute), canary.attribute, canary.user)

    with pytest.raises(AssertionError, match=f"{canary.attribute} is gone; see {canary.user}"):
        renamed.check()


# --- names that exist only while a request is handled


def request_scope(see: Callable[[dict[str, Any]], None]) -> None:
    """Serve one request on a route of a router in an application, and show its scope."""
    app = fastapi.FastAPI()
    router = fastapi.APIRouter(prefix="/api")

    @router.get("/things/{thing_id}")
    async def thing(thing_id: str, request: fastapi.Request) -> None:
        see(dict(request.scope))

    app.include_router(router)
    TestClient(app).get("/api/things/7").raise_for_status()


def test_a_request_has_the_route_that_answers_it() -> None:
    """`gateway/route_label.py route_template` names metrics, spans and audit lines after it."""
    seen: list[dict[str, Any]] = []
    request_scope(seen.append)

    assert route_template(seen[0]) == "/api/things/{thing_id}"


def test_without_the_route_of_the_request_its_label_is_unknown() -> None:
    seen: list[dict[str, Any]] = []
    request_scope(seen.append)
    renamed = {name: value for name, value in seen[0].items() if name not in ("route", "fastapi")}

    assert route_template(renamed) is None


def test_extended_routes_answer_without_include_router() -> None:
    """`gateway/app.py create_app` extends `app.routes` in place of `include_router`."""
    app = fastapi.FastAPI()
    router = fastapi.APIRouter()
    router.add_api_route("/one", lambda: "yes")
    app.routes.extend(router.routes)

    assert TestClient(app).get("/one").json() == "yes"


@pytest.mark.parametrize("is_off", [False, True])
def test_the_instrumentation_of_fastapi_is_switched_off_by_its_option(is_off: bool) -> None:
    """`gateway/app.py create_app` switches it off: its spans would double those of the gateway."""
    with recorded_spans() as spans:
        given: TelemetryConfig = {"tracer_provider": spans.provider}
        app = fastapi.FastAPI(telemetry={**given, **NO_FASTAPI_TELEMETRY} if is_off else given)
        app.add_api_route("/one", lambda: "yes")
        TestClient(app).get("/one").raise_for_status()

        assert bool(spans.all) is not is_off


async def test_uvicorn_still_lacks_what_gateway_proxy_adds_to_its_proxy_headers() -> None:
    headers = [(b"x-forwarded-host", b"a.example"), (b"x-forwarded-proto", b"https,http"), (b"x-forwarded-for", b"?")]
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": ("10.0.0.1", 1), "headers": headers}
    mapped: dict[str, Any] = {**scope, "client": ("::ffff:10.0.0.1", 1)}

    async def app(*_: Any) -> None: ...

    for one in (scope, mapped):
        await ProxyHeadersMiddleware(cast("Any", app), "10.0.0.0/8")(cast("Any", one), cast("Any", app), app)

    assert scope["headers"] == headers, "X-Forwarded-Host is applied now: see gateway/proxy.py"
    assert (scope["scheme"], scope["client"][0], mapped["client"][0]) == ("http", "?", "::ffff:10.0.0.1")
