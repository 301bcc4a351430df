"""One trace across several processes, as a collector receives it; tracing is off by default."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from magent2.client import Client
from tests.support.command_line import CommandLine, ended
from tests.support.forked_processes import ROOT
from tests.support.otlp import OtlpReceiver, ReceivedSpan
from tests.support.waiting import eventually

DEADLINE_S = 60.0
TEAM = """
[[scenario]]
id = "house"
root = "front"

[[scenario.agent]]
name = "front"
instructions = "You are in front."
tools = ["chat_send"]

[[scenario.agent]]
name = "back"
instructions = "You are at the back."
"""
# A whole run in one process. Libraries beneath us import the API of OpenTelemetry on their own: here we look at ours.
OFF = """
import asyncio, json, sys
from magent2.bus.memory import MemoryBus
from magent2.gateway.server import Gateway
from magent2.telemetry.tracing import traced_process
from magent2.worker.service import WorkerService
from magent2.worker.team_selection import choose_team
from tests.support.worker_fixture import outputs, send, until

async def main(tracer):
    bus, team = MemoryBus(), choose_team((), "demo")
    Gateway(bus, tracer=tracer)
    service = WorkerService(bus, dict.fromkeys(team.names, team.runner))
    working = asyncio.create_task(service.run())
    send(bus, "weather in Paris", recipient="agent:general")
    await until(lambda: outputs(bus))
    await service.drain()
    await working
    await team.runner.aclose()

with traced_process() as tracer:
    asyncio.run(main(tracer))
ours = ("magent2.telemetry.otel_sdk", "opentelemetry.sdk", "opentelemetry.exporter")
print(json.dumps([name for name in sys.modules if name.startswith(ours)]))
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def magent2(tmp_path: Path) -> Iterator[CommandLine]:
    with CommandLine(tmp_path / "data", MAGENT2_BUS_URL=f"sqlite:///{tmp_path / 'log.db'}") as commands:
        yield commands


def said(process: subprocess.Popen[str], word: str) -> str:
    """What it says at its start, up to the line with this word."""
    assert process.stdout is not None
    text = ""
    while word not in text:
        line = process.stdout.readline()
        assert line, f"it ended: {text} {process.communicate()[1]}"
        text += line
    return text


def test_one_trace_goes_from_the_request_to_the_run_that_a_run_has_caused(
    magent2: CommandLine, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    (tmp_path / "magent2.toml").write_text(TEAM)
    team = ("--config", str(tmp_path / "magent2.toml"), "--model", "demo")
    front = magent2.start(
        "serve", *team, "--agent", "front", "--port", "0", **receiver.variables, OTEL_SERVICE_NAME="front"
    )
    back = magent2.start(
        "worker", *team, "--agent", "back", "--metrics", "0", **receiver.variables, OTEL_SERVICE_NAME="back"
    )
    _, url, token = magent2.greeting(front)
    with Client(url, token) as client:
        client.send("front", "tell agent:back the secret word", conversation_id="traced")
        caused = receiver_of(receiver, "invoke_agent back")

    request, (asked, passed_on) = receiver.one("POST /send"), _sends(receiver)
    run, tool = receiver.one("invoke_agent front"), receiver.one("execute_tool chat_send")
    turn = receiver.one("turn", lambda span: span.id == tool.parent)
    assert _line(request, asked, run, turn, tool, passed_on, caused)
    assert [span.resource["service.name"] for span in (request, run, caused)] == ["front", "front", "back"]
    assert [span.kind for span in (request, asked, run, tool)] == ["server", "producer", "internal", "internal"]
    assert run.facts["gen_ai.operation.name"] == "invoke_agent"
    assert run.facts["gen_ai.conversation.id"] == "traced"
    assert any(span.facts.get("gen_ai.request.model") == "demo" for span in receiver.spans)
    assert "secret" not in repr(receiver.spans)
    _shows_figures(said(back, "metrics"))
    for process in (front, back):
        process.send_signal(signal.SIGTERM)
    assert [ended(process).code for process in (front, back)] == [0, 0]


def receiver_of(receiver: OtlpReceiver, name: str) -> ReceivedSpan:
    (found,) = eventually(lambda: _named(receiver, name), DEADLINE_S)
    return found


def _sends(receiver: OtlpReceiver) -> tuple[ReceivedSpan, ReceivedSpan]:
    """The person's, then the agent's."""
    eventually(lambda: len(_named(receiver, "send")) == 2)
    one, two = _named(receiver, "send")
    return (one, two) if one.facts["messaging.destination.name"] == "agent:front" else (two, one)


def _named(receiver: OtlpReceiver, name: str) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if span.name == name]


def _line(*spans: ReceivedSpan) -> bool:
    """Each is a part of the one before it, and all are of one trace."""
    return len({span.trace for span in spans}) == 1 and all(
        child.parent == parent.id for parent, child in pairwise(spans)
    )


def _shows_figures(greeting: str) -> None:
    found = re.search(r"metrics  (\S+)", greeting)
    assert found is not None
    assert 'magent2_runs_total{agent="back",outcome="answered"} 1.0' in httpx2.get(found[1]).text


def test_tracing_is_off_by_default_and_imports_nothing(magent2: CommandLine) -> None:
    child = [sys.executable, "-c", OFF]

    done = subprocess.run(
        child, cwd=ROOT, env=magent2.variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_serve_answers_and_leaves_though_the_collector_says_nothing(magent2: CommandLine) -> None:
    with OtlpReceiver(stall=True) as receiver:
        process = magent2.start("serve", "--port", "0", "--log-format", "json", **receiver.variables)
        _, url, token = magent2.greeting(process)
        with Client(url, token) as client:
            answers = [client.ask("general", f"hello {n}", timeout_s=DEADLINE_S).text for n in range(3)]
        assert receiver.asked.wait(DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        done = ended(process)

    assert answers == ["hello 0", "hello 1", "hello 2"]
    assert done.code == 0
    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert "not all traces were sent before the process ended" in [line["text"] for line in lines]
