"""Agents that start others, on every engine: in a conversation of its own, spoken to on the way, and waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from magent2.bus.flow import run
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe
from magent2.errors import Refused
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.store import creating, deleting
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.subagents import DEPTH_MAX, START, StartAgent, StartArguments, own_subagent
from magent2.worker.run import Outcome
from magent2.worker.service import WorkerService
from tests.support.api import team_at_work
from tests.support.engines import ENGINES, new_engines
from tests.support.serving import history, outputs, send, stream, until
from tests.support.subagents import subagent_team


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def started(bus: Engine) -> list[Mapping[str, Any]]:
    return [event for event in stream(bus) if event["event"] == "subagent"]


def head(bus: Engine, conversation: str) -> Mapping[str, Any]:
    return bus.call(Describe((f"stream:{conversation}",)))[0].head


async def test_a_subagent_is_started_spoken_to_and_waited_for_without_a_slot(bus: Engine) -> None:
    digging: list[bool] = []
    gate: list[bool] = []
    run(bus, creating("one", "user:ann"))
    runner = subagent_team(lambda: bool(gate), lambda: digging.append(True))
    send(bus, "dig for gold", recipient="agent:boss")
    async with team_at_work(bus, runner=runner) as service:
        service.concurrency = 1
        await until(lambda: digging and any(k == ("tool", "tell") for k in calls(bus)))
        gate.append(True)
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    (event,) = started(bus)
    child = event["subagent_id"]
    assert outputs(bus) == ["found gold, told: deeper"]
    assert (event["name"], event["task"], event["envelope_id"]) == ("helper", "dig", stream(bus, child)[0]["message_id"])
    facts = head(bus, child)
    assert (facts["parent"], facts["owner"], facts["depth"], facts["hidden"]) == ("one", "user:ann", 1, True)
    assert [record["envelope"]["content"] for record in history(bus, child) if record["kind"] == "start"] == ["dig"]
    assert len(digging) == 1


def calls(bus: Engine) -> list[tuple[str, str]]:
    return [(record["kind"], record.get("call_id", "")) for record in history(bus)]
