"""Servers that use the id of a call again, in a later answer or twice in one: every call keeps its own result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.memory import MemoryBus
from tests.support.journaled_runs import CallbackModel, CrashingBus, Items, work, work_until_crash
from tests.support.worker_fixture import AGENT, history, outputs, send, stream

ID = "call_0"


class RepeatsIds:
    """An agent whose server names all calls alike: first one call, then two in one answer, then the end."""

    def __init__(self) -> None:
        self.requests: list[Sequence[Mapping[str, Any]]] = []
        self.effects: list[int] = []

        @function_tool
        async def double(n: int) -> str:
            """Double a number."""
            self.effects.append(n)
            return f"{n} doubled is {2 * n}"

        self.agent = Agent[Any](name=AGENT, model=CallbackModel(self.say), tools=[double])

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append(items)
        last = max(n for n, item in enumerate(items) if item.get("role") == "user")
        calls = sum(item.get("type") == "function_call" for item in items[last:])
        if calls == 0:
            return [function_call("double", {"n": 1}, call_id=ID)]
        if calls == 1:
            return [function_call("double", {"n": n}, call_id=ID) for n in (2, 3)]
        return [assistant_message("done")]


def pairs(items: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The argument of each call in a request, and the result that belongs to it by its id."""
    results = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    calls = [item for item in items if item.get("type") == "function_call"]
    assert len({call["call_id"] for call in calls}) == len(calls) == len(results)
    return [(json.loads(call["arguments"])["n"], results[call["call_id"]]) for call in calls]


ALL = [(1, "1 doubled is 2"), (2, "2 doubled is 4"), (3, "3 doubled is 6")]


async def test_every_call_of_a_run_stays_in_its_requests_with_its_own_result() -> None:
    bus, model = MemoryBus(), RepeatsIds()
    send(bus, "go")

    await work(bus, model.agent)

    assert outputs(bus) == ["done"]
    assert pairs(model.requests[-1]) == ALL


async def test_the_calls_of_a_later_run_do_not_displace_those_of_an_earlier_one() -> None:
    bus, model = MemoryBus(), RepeatsIds()
    for text in ("go", "again"):
        send(bus, text)
        await work(bus, model.agent)

    assert pairs(model.requests[-1]) == ALL * 2


async def test_history_and_events_name_the_same_calls_as_the_requests() -> None:
    bus, model = MemoryBus(), RepeatsIds()
    send(bus, "go")

    await work(bus, model.agent)

    shown = [item["call_id"] for item in model.requests[-1] if item.get("type") == "function_call"]
    recorded = [record["call_id"] for record in history(bus) if record["kind"] == "tool"]
    events = [event["tool_call_id"] for event in stream(bus) if event["event"] == "tool_step"]
    assert shown[0] == ID  # an id that is used once is kept
    assert set(recorded) == set(shown) == set(events)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_takeover_at_any_append_gives_every_call_its_own_result(at: int, after: bool) -> None:
    bus, model = MemoryBus(), RepeatsIds()
    send(bus, "go")

    if await work_until_crash(CrashingBus(bus, at, after), model.agent) and not outputs(bus):
        await work(bus, model.agent, "w2")

    assert outputs(bus) == ["done"]
    assert pairs(model.requests[-1]) == ALL
