"""An agent that only the environment describes can have `run_python` and every tool that sends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.models.envelope import MessageEnvelope
from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_runner
from magent2.worker.team_selection import choose_team
from magent2.worker.worker import Worker
from tests.support.directory_fixture import inbox
from tests.support.send_cases import ALL_SENDS, SEND_CASES, all_arrived, directory_bus, expected_arrivals
from tests.support.worker_fixture import outputs, until

TOOLS = ("run_python", *(way.tool for way in SEND_CASES))
ENVIRON = {"AGENT_NAME": "Ada", "AGENT_TOOLS": ", ".join(TOOLS)}


def fenced(code: str) -> str:
    return f"```python\n{code}```"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    with directory_bus(tmp_path, monkeypatch, fenced(ALL_SENDS + 'print("all")\n')) as bus:
        yield bus


def test_a_worker_of_one_agent_runs_its_blocks(bus: MemoryBus) -> None:
    worker = Worker("Ada", bus, select_runner("demo", RunnerConfig.read(ENVIRON)))

    assert worker.process_available() == 1

    assert outputs(bus) == [f"all\n\n[Messages: {len(SEND_CASES)} sent]"]
    assert all_arrived(bus) == expected_arrivals(*SEND_CASES)


async def test_a_service_runs_blocks_too(bus: MemoryBus) -> None:
    team = choose_team(model="demo", environ=ENVIRON)
    service = team.service(bus)
    working = asyncio.create_task(service.run())
    await until(lambda: outputs(bus))
    await service.drain()
    await working
    await team.runner.aclose()

    assert outputs(bus) == [f"all\n\n[Messages: {len(SEND_CASES)} sent]"]
    assert all_arrived(bus) == expected_arrivals(*SEND_CASES)


def test_without_a_log_code_runs_and_sends_are_refused() -> None:
    runner = select_runner("demo", RunnerConfig.read(ENVIRON))

    def answer(code: str) -> str:
        message = MessageEnvelope(conversation_id="c", sender="user:ann", recipient="agent:Ada", content=fenced(code))
        *_, output = runner.stream_run(message)
        return str(output.text)  # type: ignore[union-attr]

    assert answer("sum(range(5))\n") == "10"
    for code in ('say("hello")\n', 'chat_send("agent:Bea", "hello")\n', 'chat_send("agent:Bea", "hello", now=True)\n'):
        assert "cannot send on this bus; run the agent with `magent2 worker`" in answer(code)


def test_an_agent_gets_only_the_tools_that_are_named(bus: MemoryBus) -> None:
    environ = {**ENVIRON, "AGENT_TOOLS": "run_python, say"}
    worker = Worker("Ada", bus, select_runner("demo", RunnerConfig.read(environ)))

    worker.process_available()

    assert "nothing was run" in outputs(bus)[0]
    assert (all_arrived(bus), inbox(bus, "Cy")) == ({}, [])
