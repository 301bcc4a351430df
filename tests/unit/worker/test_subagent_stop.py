"""A stop reaches the subagents of the stopped agent and the mail that waits for them, on every engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from agents import Agent, Tool
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Describe, Lanes
from magent2.errors import TransientError
from magent2.mail.headers import wait_field
from magent2.runner.build import function_tool_of
from magent2.runner.context import RunContext
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.subagents import SUBAGENTS_PER_RUN_MAX
from magent2.tools.subagents import subagent_tools
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.service import WorkerService
from tests.support.api.sessions import team_at_work
from tests.support.audit import whole_log
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.journaled_runs import CallbackModel, CrashingBus, results_in, work_until_crash
from tests.support.sending import Facts
from tests.support.steerable_run import receipts, steer
from tests.support.subagents import subagent_team
from tests.support.worker_fixture import AGENT, claim_one, command, history, kinds, send, stream, until

HELPER = "helper"


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


async def start(bus: Engine, conversation: str = "one", agent: str = AGENT, subagent: str = HELPER) -> str:
    """Start a subagent of the agent in the conversation."""
    tool = subagent_tools([subagent])[0]
    found = await tool.run({"agent": subagent, "task": "dig"}, Facts(bus, conversation, agent))
    return str(found.typed_result["subagent_id"])


async def work(bus: Engine, agent: str = AGENT, worker: str = "w1") -> Outcome:
    """Work on a lane of the agent whose mail is stopped before it starts."""
    (lane,) = bus.call(Claim(worker=worker, agents=(agent,), limit=1, lease_s=60.0)).lanes
    return await LaneRun(bus, lane, OpenAIAgentsRunner(Agent[Any](name=agent, model=CallbackModel(_never)))).work()


def _never(items: Any) -> Any:
    raise AssertionError("a stopped run must not call its model")


def stops_for(bus: Engine, agent: str = HELPER) -> list[tuple[str, str, str]]:
    """Return the stops in the inbox of an agent: conversation, sender and command."""
    parsed_mail = [record.payload for record in whole_log(bus, f"control:{agent}")]
    return [(parsed["conversation_id"], parsed["sender"], parsed["content"]) for parsed in parsed_mail]


@pytest.fixture
async def child(bus: Engine) -> str:
    return await start(bus)


@pytest.mark.parametrize("how", ["stop", "stop_after_turn"])
async def test_a_stop_is_passed_on_to_subagents_of_subagents(bus: Engine, child: str, how: str) -> None:
    grandchild = await start(bus, child, HELPER, "digger")
    send(bus, "go")
    command(bus, how)

    assert await work(bus) is Outcome.STOPPED
    assert stops_for(bus) == [(child, f"agent:{AGENT}", how)]
    assert [await work(bus, HELPER), await work(bus, "digger")] == [Outcome.STOPPED] * 2

    assert stops_for(bus, "digger") == [(grandchild, f"agent:{HELPER}", how)]
    for conversation in (child, grandchild):
        assert kinds(stream(bus, conversation))[-2:] == ["message_received", "stopped"]
        assert [outcome for _, outcome in receipts(bus, conversation)] == ["stopped"]
    assert bus.call(Lanes(HELPER)) == bus.call(Lanes("digger")) == ()


async def test_a_stop_removes_all_waiting_mail_of_a_subagent_and_has_one_receipt(bus: Engine, child: str) -> None:
    steer(bus, "deeper", f"agent:{HELPER}", conversation=child)
    send(bus, "go")
    command(bus, "stop")
    await work(bus)
    later = send(bus, "again", child, recipient=f"agent:{HELPER}")

    assert [await work(bus, HELPER), await work(bus, HELPER)] == [Outcome.STOPPED] * 2

    asked = [record["envelope"] for record in history(bus, child) if record["kind"] == "start"]
    assert [envelope["content"] for envelope in asked] == ["dig", "deeper"]
    assert [outcome for _, outcome in receipts(bus, child)] == ["input", "stopped"]
    (left,) = bus.call(Claim(worker="w2", agents=(HELPER,), limit=1, lease_s=60.0)).lanes
    assert [record.payload["id"] for record in left.mail] == [later]


async def test_a_stop_reaches_subagents_that_an_earlier_run_started(bus: Engine, child: str) -> None:
    name = command(bus, "stop")

    assert await work(bus) is Outcome.CLEARED

    assert receipts(bus) == [(name, "nothing_to_stop")]
    assert stops_for(bus) == [(child, f"agent:{AGENT}", "stop")]


async def test_a_stop_does_not_reach_finished_subagents_nor_those_of_other_agents(bus: Engine, child: str) -> None:
    other = await start(bus, agent="Bob", subagent="digger")
    steer(bus, "deeper", f"agent:{HELPER}", conversation=child)
    for _ in ("dig", "deeper"):
        command(bus, "stop", child, recipient=f"agent:{HELPER}")
        await work(bus, HELPER)
    before = stops_for(bus)
    send(bus, "go")
    command(bus, "stop")

    assert await work(bus) is Outcome.STOPPED

    assert stops_for(bus) == before
    assert kinds(stream(bus, other)) == ["user_message"]


async def test_a_stop_for_another_run_is_not_passed_on(bus: Engine, child: str) -> None:
    command(bus, "stop")
    send(bus, "go")
    bus.call(Claim(worker="w0", agents=(AGENT,), limit=0, lease_s=60.0))

    await LaneRun(bus, claim_one(bus), OpenAIAgentsRunner(Agent[Any](name=AGENT, model=CallbackModel(_done)))).work()

    assert [outcome for _, outcome in receipts(bus)] == ["not_meant"]
    assert stops_for(bus) == []


def _done(items: Any) -> Any:
    return [assistant_message("done")]


@pytest.mark.parametrize("after", [False, True])
async def test_a_worker_that_crashes_at_the_end_of_a_stopped_run_passes_the_stop_on_once(after: bool) -> None:
    bus = MemoryBus()
    child = await start(bus)
    send(bus, "go")
    command(bus, "stop")
    agent = Agent[Any](name=AGENT, model=CallbackModel(_done))

    assert await work_until_crash(CrashingBus(bus, on="end", after=after), agent)
    if not after:
        assert await work(bus) is Outcome.STOPPED

    assert stops_for(bus) == [(child, f"agent:{AGENT}", "stop")]
    assert kinds(history(bus)) == ["start", "stopped"]
    bus.close()


async def test_an_agent_that_waits_for_a_subagent_is_stopped_with_it_after_the_turn(bus: Engine) -> None:
    gate: list[bool] = []
    digging: list[bool] = []
    send(bus, "dig for gold", recipient="agent:boss")
    runner = subagent_team(lambda: bool(gate), lambda: digging.append(True))
    async with team_at_work(bus, runner=runner) as service:
        await until(lambda: digging and _waits(bus))
        command(bus, "stop_after_turn", recipient="agent:boss")
        await until(lambda: _has_stop_request(service))
        gate.append(True)
        await until(lambda: service.outcomes[Outcome.STOPPED] > 2 and not bus.call(Lanes(HELPER)))

    (waited,) = [record for record in history(bus) if record.get("call_id") == "wait"]
    child = stops_for(bus)[0][0]
    assert json.loads(waited["output"])["status"] == "stopped"
    assert kinds(stream(bus))[-1] == kinds(stream(bus, child))[-1] == "stopped"
    assert [outcome for _, outcome in receipts(bus, child)].count("stopped") == 1
    assert len(digging) == 1


def _has_stop_request(service: WorkerService) -> bool:
    """Return whether the run of the helper has its stop request. Before that it may still finish."""
    return any(
        run._mail.stop_request is not None for run in service.lane_loop.by_lane.values() if run.owner.agent == HELPER
    )


def _waits(bus: Engine) -> bool:
    return wait_field("boss") in bus.call(Describe(("stream:one",)))[0].head


class SpeclessRunner(OpenAIAgentsRunner):
    """A runner whose spec is unavailable for the moment."""

    def spec_for(self, context: RunContext) -> dict[str, Any]:
        raise TransientError("not now")


async def test_a_stop_reaches_a_run_that_cannot_start() -> None:
    bus = MemoryBus()
    name = (send(bus, "go"), command(bus, "stop"))[1]

    runner = SpeclessRunner(Agent[Any](name=AGENT, model=CallbackModel(_never)))
    assert await LaneRun(bus, claim_one(bus), runner).work() is Outcome.STOPPED

    assert receipts(bus) == [(name, "stopped")]
    assert bus.call(Lanes(AGENT)) == ()
    bus.close()


async def test_a_run_starts_a_limited_number_of_subagents_also_concurrently(bus: Engine) -> None:
    shown: dict[str, Any] = {}
    calls = SUBAGENTS_PER_RUN_MAX + 1

    def say(items: Any) -> Any:
        shown.update(results_in(items))
        given = {"agent": HELPER, "task": "dig"}
        return _done(items) if shown else [function_call("start_agent", given, call_id=f"c{n}") for n in range(calls)]

    tools: list[Tool] = [function_tool_of(tool) for tool in subagent_tools([HELPER])]
    runner = OpenAIAgentsRunner(Agent[Any](name=AGENT, model=CallbackModel(say), tools=tools))
    send(bus, "go")
    assert await LaneRun(bus, claim_one(bus), runner).work() is Outcome.ANSWERED

    refused = [text for text in map(str, shown.values()) if f"at most {SUBAGENTS_PER_RUN_MAX}" in text]
    assert (len(shown), len(refused)) == (calls, 1)
    assert "message_agent" in refused[0]
    assert len(_subagents(bus)) == SUBAGENTS_PER_RUN_MAX
    shown.clear()
    send(bus, "more")
    assert await LaneRun(bus, claim_one(bus), runner).work() is Outcome.ANSWERED
    assert len(_subagents(bus)) == 2 * SUBAGENTS_PER_RUN_MAX


def _subagents(bus: Engine) -> set[Mapping[str, Any]]:
    return {event["subagent_id"] for event in stream(bus) if event["event"] == "subagent"}
