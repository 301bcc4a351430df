"""Subagents, on every engine: each has its own conversation, gets messages, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Delete, Describe
from magent2.errors import Refused
from magent2.sessions.store import create_session, delete_session
from magent2.sessions.subagents import DEPTH_MAX, SUBAGENTS_PER_RUN_MAX
from magent2.sessions.usage.budgets import NO_ROOT, CallRoot
from magent2.tools.interface import call_scope
from magent2.tools.subagents import own_subagent, subagent_tools
from magent2.worker.lane_run import Outcome
from tests.support.api.sessions import team_at_work
from tests.support.engine_wrappers import BeforeFirst
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.sending import Facts as CallerFacts
from tests.support.sending import scope_of
from tests.support.subagents import subagent_team
from tests.support.worker_fixture import history, outputs, send, stream, until


@pytest.fixture(params=DISTINCT_ENGINES)
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
    run_sync(bus, create_session, "one", "user:ann")
    runner = subagent_team(lambda: bool(gate), lambda: digging.append(True))
    send(bus, "dig for gold", recipient="agent:boss")
    async with team_at_work(bus, runner=runner) as service:
        service.lane_loop.concurrency = 1
        await until(lambda: digging and any(k == ("tool", "tell") for k in calls(bus)))
        gate.append(True)
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    (event,) = started(bus)
    child = event["subagent_id"]
    assert outputs(bus) == ["found gold, told: deeper"]
    assert (event["name"], event["task"], event["envelope_id"]) == (
        "helper",
        "dig",
        stream(bus, child)[0]["message_id"],
    )
    facts = head(bus, child)
    assert (facts["parent"], facts["owner"], facts["depth"], facts["hidden"]) == ("one", "user:ann", 1, True)
    assert [record["envelope"]["content"] for record in history(bus, child) if record["kind"] == "start"] == ["dig"]
    assert len(digging) == 1


def calls(bus: Engine) -> list[tuple[str, str]]:
    return [(record["kind"], record.get("call_id", "")) for record in history(bus)]


@dataclass(frozen=True)
class Facts:
    bus: Engine
    conversation_id: str = "one"
    agent: str = "boss"
    run_id: str = "run-1"
    hops: int = 0
    principal: str | None = None
    root: CallRoot = NO_ROOT


def start(bus: Engine, agent: str = "helper", conversation: str = "one") -> dict[str, Any]:
    tool = subagent_tools(["helper"])[0]
    found = asyncio.run(tool.run({"agent": agent, "task": "dig"}, Facts(bus, conversation)))
    return dict(found.typed_result)


def test_only_named_agents_are_started_and_only_to_a_limited_depth(bus: Engine) -> None:
    with pytest.raises(Refused, match="available: helper"):
        start(bus, "stranger")
    with pytest.raises(Refused, match="cannot start itself"):
        asyncio.run(subagent_tools(["boss"])[0].run({"agent": "boss", "task": "dig"}, Facts(bus)))
    conversation = "one"
    for _ in range(DEPTH_MAX):
        conversation = start(bus, conversation=conversation)["subagent_id"]

    with pytest.raises(Refused, match=f"at most {DEPTH_MAX} deep"):
        start(bus, conversation=conversation)


async def test_a_repeat_of_the_last_permitted_start_is_not_refused(bus: Engine) -> None:
    facts, tool = CallerFacts(bus, agent="boss"), subagent_tools(["helper"])[0]

    async def start_in_call(number: int) -> dict[str, Any]:
        with call_scope(scope_of(facts, call=f"c{number}")):
            return dict((await tool.run({"agent": "helper", "task": "dig"}, facts)).typed_result)

    starts = [await start_in_call(number) for number in range(SUBAGENTS_PER_RUN_MAX)]

    assert await start_in_call(SUBAGENTS_PER_RUN_MAX - 1) == starts[-1]
    with pytest.raises(Refused, match=f"a run starts at most {SUBAGENTS_PER_RUN_MAX}"):
        await start_in_call(SUBAGENTS_PER_RUN_MAX)


def test_only_the_conversation_that_started_a_subagent_can_write_to_it(bus: Engine) -> None:
    child = start(bus)["subagent_id"]

    assert run_sync(bus, own_subagent, Facts(bus), child)["parent"] == "one"
    with pytest.raises(Refused, match="was not started"):
        run_sync(bus, own_subagent, Facts(bus, "two"), child)
    with pytest.raises(Refused, match="was not started"):
        run_sync(bus, own_subagent, Facts(bus), "one~helper-00000000")


def test_only_the_subagents_of_a_deleted_conversation_are_deleted(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    run_sync(bus, create_session, "one~mine", "user:bob")
    child = start(bus)["subagent_id"]
    grandchild = start(bus, conversation=child)["subagent_id"]

    run_sync(bus, delete_session, "one")

    names = ("one", child, grandchild, "one~mine")
    found = bus.call(Describe(tuple(f"stream:{name}" for name in names)))
    assert [info.deleted for info in found] == [True, True, True, False]


def test_a_subagent_that_starts_while_its_conversation_is_deleted_is_deleted_too(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    children: list[str] = []
    racing = BeforeFirst(bus, Delete, lambda: children.append(start(bus)["subagent_id"]))

    run_sync(racing, delete_session, "one")

    assert bus.call(Describe((f"stream:{children[0]}",)))[0].deleted
