"""What is counted, and that no label is an id."""

from __future__ import annotations

import uuid
from typing import Any

import httpx2
import pytest
from agents import function_tool
from agents.testing import function_call
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim
from magent2.errors import ModelRefused, ModelUnavailable, SettingsError
from magent2.gateway.app import create_app
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.telemetry import Metrics
from magent2.telemetry.metrics import LABELS_MAX, RunMetrics, metrics_endpoint, parse_address
from magent2.telemetry.observation import RunObserver
from magent2.tools.chat import function_tools
from magent2.worker.lane_run import LaneRun
from magent2.worker.runner_adapter import Runner
from tests.support.gateway import app_client
from tests.support.journaled_runs import ToolCallScript
from tests.support.runners import FailingRunner, GatedRunner
from tests.support.team import DESK, ask_tool, roster, team_on
from tests.support.waiting import DEADLINE_S
from tests.support.worker_fixture import AGENT, LEASE_S, run_worker, send, until


@function_tool
async def dig() -> str:
    """Dig."""
    return "found"


@function_tool
async def stumble() -> str:
    """Fail."""
    raise ValueError("a stone")


def figures(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(text: bytes, name: str, **labels: str) -> float:
    return figures(text)[name, frozenset(labels.items())]


async def work(bus: Engine, runner: Runner, metrics: RunMetrics, agent: str = AGENT) -> None:
    (lane,) = bus.call(Claim(worker="w1", agents=(agent,), limit=1, lease_s=LEASE_S)).lanes
    await LaneRun(bus, lane, runner, observer=RunObserver(metrics)).work()


def calling(*names: str) -> OpenAIAgentsRunner:
    calls = [function_call(name, {}, call_id=f"c{index}") for index, name in enumerate(names)]
    return OpenAIAgentsRunner(ToolCallScript(*calls).agent(dig, stumble))


async def test_runs_are_counted_by_how_they_end() -> None:
    bus, metrics = MemoryBus(), RunMetrics()
    for runner in (calling("dig"), FailingRunner(ModelRefused("no")), FailingRunner(ModelUnavailable("later"))):
        send(bus, "go", uuid.uuid4().hex)
        await work(bus, runner, metrics)

    text = generate_latest(metrics.registry)
    ends = {
        end: value(text, "magent2_runs_total", agent=AGENT, outcome=end) for end in ("answered", "buried", "retried")
    }
    assert ends == {"answered": 1.0, "buried": 1.0, "retried": 1.0}
    assert value(text, "magent2_run_seconds_count", agent=AGENT) == 3.0
    assert value(text, "magent2_mail_wait_seconds_count", agent=AGENT) == 3.0
    assert value(text, "magent2_first_token_seconds_count", agent=AGENT) == 1.0
    assert value(text, "magent2_turns_total") == 2.0
    assert value(text, "magent2_runs_running") == 0.0
    assert value(text, "magent2_bus_append_seconds_count") >= 3.0
    bus.close()


async def test_calls_of_tools_are_counted_by_outcome_and_a_name_that_is_made_up_is_unknown() -> None:
    bus, metrics = MemoryBus(), RunMetrics()
    send(bus, "go")

    await work(bus, calling("dig", "stumble", "invented"), metrics)

    text = generate_latest(metrics.registry)
    assert value(text, "magent2_tool_calls_total", tool="dig", outcome="success") == 1.0
    assert value(text, "magent2_tool_calls_total", tool="stumble", outcome="error") == 1.0
    assert value(text, "magent2_tool_calls_total", tool="unknown", outcome="error") == 1.0
    assert b"invented" not in text
    bus.close()


async def test_a_tool_that_a_client_has_made_up_is_unknown_too() -> None:
    bus, metrics = MemoryBus(), RunMetrics()
    team = team_on("http://127.0.0.1:1", roster(DESK))
    for tool in ("weather", "invented"):
        ask_tool(bus, tool, {"city": "Paris"})
        await work(bus, team, metrics, "desk")

    text = generate_latest(metrics.registry)
    assert value(text, "magent2_tool_calls_total", tool="weather", outcome="success") == 1.0
    assert value(text, "magent2_tool_calls_total", tool="unknown", outcome="error") == 1.0
    assert b"invented" not in text
    await team.aclose()
    bus.close()


async def test_messages_that_runs_send_are_counted_when_they_have_left() -> None:
    bus, metrics = MemoryBus(), RunMetrics()
    send(bus, "go")
    told = function_call("chat_send", {"recipient": "agent:Bob", "content": "hi"}, call_id="c1")

    await work(bus, OpenAIAgentsRunner(ToolCallScript(told).agent(function_tools.chat_send)), metrics)

    assert value(generate_latest(metrics.registry), "magent2_run_sends_total") == 1.0
    bus.close()


async def test_more_runs_of_more_people_make_no_more_labels() -> None:
    """Every id is a new one each time: were any of them a label, there would be more lines."""
    bus, metrics = MemoryBus(), RunMetrics()
    app = create_app(bus, metrics=Metrics(metrics.registry))

    async def day() -> frozenset[Any]:
        conversation = uuid.uuid4().hex
        async with app_client(app) as client:
            await client.post("/send", json=_mail(conversation))
            await client.post("/send", json={"nonsense": conversation})
            await client.get(f"/api/sdk/session/{uuid.uuid4().hex}")
            await client.get(f"/{conversation}")
            await client.request(conversation[:6].upper(), "/send")
            await work(bus, calling("dig", f"invented_{conversation}"), metrics)
            text = (await client.get("/metrics")).content
        assert conversation not in text.decode()
        return frozenset(figures(text))

    first = await day()

    assert await day() == await day() == first | await day()
    bus.close()


def _mail(conversation: str) -> dict[str, str]:
    return {
        "conversation_id": conversation,
        "sender": f"user:{uuid.uuid4().hex}",
        "recipient": f"agent:{AGENT}",
        "content": "hello",
    }


def test_a_label_that_others_fill_is_full_one_day() -> None:
    metrics = Metrics()
    for number in range(2 * LABELS_MAX):
        metrics.count_refusal(f"code-{number}")

    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("magent2_refusals_total")]
    assert len(lines) == LABELS_MAX + 1
    assert value(metrics.text(), "magent2_refusals_total", code="other") == LABELS_MAX


async def test_refusals_are_counted_by_their_code() -> None:
    bus = MemoryBus()
    async with app_client(create_app(bus)) as client:
        await client.post("/send", json={"nonsense": True})
        await client.get("/nowhere")
        text = (await client.get("/metrics")).content

    assert value(text, "magent2_refusals_total", code="bad_envelope") == 1.0
    assert value(text, "magent2_refusals_total", code="not_found") == 1.0
    assert value(text, "magent2_requests_total", route="/send", method="POST", status="422") == 1.0
    bus.close()


async def test_routes_are_told_apart_by_their_whole_path() -> None:
    bus = MemoryBus()
    async with app_client(create_app(bus)) as client:
        for path in ("/api/workers", "/api/agents", "/api/sdk/session/one"):
            await client.get(path)
        text = (await client.get("/metrics")).content

    for route, status in (("/api/workers", "200"), ("/api/agents", "200"), ("/api/sdk/session/{session_id}", "404")):
        assert value(text, "magent2_requests_total", route=route, method="GET", status=status) == 1.0
    bus.close()


async def test_the_gateway_tells_how_many_lanes_wait_and_how_long_the_bus_takes() -> None:
    bus, runner = MemoryBus(), GatedRunner()
    async with app_client(create_app(bus)) as client:
        for conversation in ("one", "two"):
            await client.post("/send", json=_mail(conversation))
        async with run_worker(bus, runner, concurrency=1):
            await until(lambda: runner.begun)
            text = (await client.get("/metrics")).content
            runner.gate.set()
            await until(lambda: len(runner.ended) == 2)

    assert value(text, "magent2_lanes", state="held") == 1.0
    assert value(text, "magent2_lanes", state="ready") == 1.0
    assert value(text, "magent2_workers") == 1.0
    assert value(text, "magent2_bus_deliver_seconds_count") == 2.0
    bus.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [("9100", ("127.0.0.1", 9100)), ("0.0.0.0:9100", ("0.0.0.0", 9100)), ("[::1]:9100", ("::1", 9100))],
)
def test_an_address_without_a_host_is_of_this_machine(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "host:", "99999", "-1"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--metrics must be PORT or HOST:PORT"):
        parse_address(text)


def test_a_worker_shows_its_figures_where_it_is_told_to() -> None:
    with metrics_endpoint(("127.0.0.1", 0)) as (metrics, url):
        assert metrics is not None
        metrics.count_run(AGENT, "answered", 0.5)

        answer = httpx2.get(url, timeout=DEADLINE_S)

    assert value(answer.content, "magent2_runs_total", agent=AGENT, outcome="answered") == 1.0


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with metrics_endpoint(("127.0.0.1", 0)) as (_, url):
        port = int(url.rpartition(":")[2].partition("/")[0])

        with (
            pytest.raises(SettingsError, match="choose another port with --metrics"),
            metrics_endpoint(("127.0.0.1", port)),
        ):
            pass


def test_metrics_of_two_gateways_keep_apart() -> None:
    one, two = Metrics(), Metrics()

    one.accepted.inc()

    assert b'magent2_sends_total{outcome="accepted"} 1.0' in one.text()
    assert b'magent2_sends_total{outcome="accepted"} 0.0' in two.text()
