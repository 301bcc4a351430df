"""The spans of a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from opentelemetry import trace

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation
from magent2.errors import BusUnavailable
from magent2.gateway.app import create_app
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.gateway import app_client
from tests.support.spans import Spans, id_of, parent_of, recorded_spans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MAIL = {"conversation_id": "one", "sender": "user:ann", "recipient": "agent:Ada", "content": "a secret of mine"}


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
async def client(bus: MemoryBus, spans: Spans) -> AsyncIterator[httpx2.AsyncClient]:
    async with app_client(create_app(bus, tracer=spans.tracer)) as client:
        yield client


class HangingEngine(EngineWrapper):
    """A bus that does not answer."""

    def answer(self, operation: Operation[Any]) -> Any:
        raise BusUnavailable("away")


def facts(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


async def test_a_message_has_a_request_and_a_send_and_carries_the_name_of_the_send(
    client: httpx2.AsyncClient, bus: MemoryBus, spans: Spans
) -> None:
    answer = await client.post("/send", json=MAIL)

    request, sent = spans.one("POST /send"), spans.one("send")
    (mail,) = whole_log(bus, "chat:Ada")
    assert parent_of(sent) == id_of(request)
    assert request.kind is trace.SpanKind.SERVER
    assert facts(request)["http.response.status_code"] == 200
    assert facts(sent)["messaging.message.id"] == answer.json()["envelope_id"]
    assert str(mail.headers["traceparent"]).split("-")[2] == f"{id_of(sent):016x}"
    assert not [span.name for span in spans.all if "secret" in span.to_json()]


async def test_a_request_goes_on_with_the_trace_of_its_client(client: httpx2.AsyncClient, spans: Spans) -> None:
    await client.post("/send", json=MAIL, headers={"traceparent": PARENT})

    request = spans.one("POST /send")
    assert request.parent is not None
    assert f"{request.parent.trace_id:032x}-{request.parent.span_id:016x}" == PARENT[3:-3]


async def test_a_span_is_named_by_its_route_and_a_refusal_by_its_code(client: httpx2.AsyncClient, spans: Spans) -> None:
    await client.get("/api/sdk/session/nobodys")
    await client.get("/no/such/place")

    known, unknown = spans.all
    assert (known.name, facts(known)["magent2.problem"]) == ("GET /api/sdk/session/{session_id}", "unknown_session")
    assert unknown.name == "GET unknown"
    assert known.status.status_code is trace.StatusCode.UNSET


async def test_what_machines_ask_all_the_time_has_no_span(client: httpx2.AsyncClient, spans: Spans) -> None:
    for path in ("/health", "/ready", "/metrics", "/openapi.json"):
        await client.get(path)

    assert spans.all == ()


async def test_a_repeat_is_no_second_message_though_its_trace_is_another(client: httpx2.AsyncClient) -> None:
    mail = {**MAIL, "id": "m1"}
    first = await client.post("/send", json=mail, headers={"traceparent": PARENT})

    again = await client.post("/send", json=mail)

    assert again.json()["seq"] == first.json()["seq"]


async def test_a_bus_that_is_away_makes_a_failed_request_with_a_failed_send(bus: MemoryBus, spans: Spans) -> None:
    async with app_client(create_app(HangingEngine(bus), tracer=spans.tracer)) as client:
        answer = await client.post("/send", json={**MAIL, "recipient": "chat:one"})

    request, sent = spans.one("POST /send"), spans.one("send")
    assert answer.status_code >= 500
    assert request.status.status_code is sent.status.status_code is trace.StatusCode.ERROR


@pytest.fixture
def installed(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of the process, as `magent2 serve` installs it. OpenTelemetry allows that only once per process."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)


@pytest.mark.usefixtures("installed")
async def test_a_request_has_one_span_and_none_of_fastapi(client: httpx2.AsyncClient, spans: Spans) -> None:
    await client.get("/api/agents")

    assert [span.name for span in spans.all if span.kind is trace.SpanKind.SERVER] == ["GET /api/agents"]
    assert {span.instrumentation_scope.name for span in spans.all if span.instrumentation_scope} == {"magent2"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_a_probe_has_no_span(client: httpx2.AsyncClient, spans: Spans, path: str) -> None:
    await client.get(path)

    assert spans.names == []
