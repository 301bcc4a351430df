"""Deferred sends, by the list of what was asked for: every tool that sends, in every mode, in real runs.

| asked for | shown by |
|---|---|
| types: `deferred_payload`, `execute_deferred` | `test_the_types_are_those_that_were_asked_for`; `mypy` |
| a payload passes through a call, is collected, flushed on success, discarded on failure | `test_in_a_block_it_waits_for_the_end`, `test_a_block_that_fails_sends_nothing` |
| status text on success, on failure, with none held; the count in the result of the block | `test_the_status_line`, `test_block_failures.py` |
| each tool: `now`, deferred, immediate, validation first | all tests over `WAYS` |
| `wait` is not deferred | `test_a_question_that_waits_for_its_answer_goes_at_once` |
| `steering` is not deferred | `test_a_steer_goes_at_once` |
| calls outside Python are not affected | `test_outside_python_it_goes_with_the_result_of_the_call` |
| documentation | `docs/writing-a-tool.md`, "Deferred sends"; `docs/python-blocks.md`; `tests/acceptance/test_docs.py` |
"""  # noqa: E501

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from typing import Any

import pytest
from agents import Agent
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.mail.headers import STEER
from magent2.runner.build import function_tool_of
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sandbox.monty import MontySandbox
from magent2.tools.definition import ToolDefinition, ToolExecutionResult
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import ToolSpec, tool
from magent2.worker.service import WorkerService
from tests.support.audit import whole_log
from tests.support.blocks import Blocks, block_events, numbers
from tests.support.journaled_runs import CallbackModel, ToolCallScript, recorded, work
from tests.support.send_cases import (
    ALL_SENDS,
    BY_TOOL,
    SEND_CASES,
    SendCase,
    all_arrived,
    call_code,
    expected_arrivals,
    sending_tools,
)
from tests.support.worker_fixture import LEASE_S, until

by_tool = pytest.mark.parametrize("way", SEND_CASES, ids=lambda way: way.tool)


class Look:
    """A tool that looks, from inside a block, at what has arrived by then."""

    def __init__(self, bus: Engine) -> None:
        self.seen: list[dict[str, list[str]]] = []

        @tool
        def look() -> None:
            """Look at what has arrived."""
            self.seen.append(all_arrived(bus))

        self.tool: ToolSpec = look


async def run_block(bus: MemoryBus, sandbox: MontySandbox, code: str, *tools: Any) -> str:
    """What the model is told of a block with this code."""
    blocks = Blocks(sandbox, code + "None\n", *messaging_tools(), *tools)
    await work(bus, blocks.made)
    return blocks.text


def test_the_types_are_those_that_were_asked_for() -> None:
    result = {field.name for field in fields(ToolExecutionResult)}
    definition = {field.name for field in fields(ToolDefinition)}

    assert result == {"tool_message", "typed_result", "skip_turn", "deferred_payload"}
    assert definition >= {"tool", "returns", "execute", "execute_deferred", "visible_by_default"}
    assert all(one.execute_deferred is not None for one in sending_tools())
    assert [one.name for one in sending_tools()] == list(BY_TOOL)


@by_tool
async def test_in_a_block_it_waits_for_the_end(bus: MemoryBus, sandbox: MontySandbox, way: SendCase) -> None:
    look = Look(bus)

    text = await run_block(bus, sandbox, way.code() + "look()\n", look.tool)

    assert look.seen == [{}]
    assert all_arrived(bus) == expected_arrivals(way)
    assert text.endswith("\n\n[Messages: 1 sent]")


@by_tool
async def test_a_block_that_fails_sends_nothing(bus: MemoryBus, sandbox: MontySandbox, way: SendCase) -> None:
    text = await run_block(bus, sandbox, way.code() * 2 + 'raise ValueError("boo")\n')

    assert all_arrived(bus) == {}
    assert text.endswith("ValueError: boo\n\n[Messages: 2 NOT sent (script failed)]")


@by_tool
async def test_with_now_it_goes_at_once_whatever_becomes_of_the_block(
    bus: MemoryBus, sandbox: MontySandbox, way: SendCase
) -> None:
    look = Look(bus)

    text = await run_block(bus, sandbox, way.code(now=True) + "look()\n1 / 0\n", look.tool)

    assert look.seen == [expected_arrivals(way)]
    assert all_arrived(bus) == expected_arrivals(way)
    assert "[Messages" not in text


@by_tool
@pytest.mark.parametrize("now", [{}, {"now": False}, {"now": True}], ids=["plain", "not now", "now"])
async def test_outside_python_it_goes_with_the_result_of_the_call(
    bus: MemoryBus, way: SendCase, now: dict[str, bool]
) -> None:
    shown = ToolCallScript(function_call(way.tool, {**way.arguments, **now}, call_id="c1"))

    await work(bus, shown.agent(*map(function_tool_of, sending_tools())))

    assert all_arrived(bus) == expected_arrivals(way)
    assert json.loads(shown.results["c1"])["ok"] is True
    assert "[Messages" not in shown.results["c1"]
    assert block_events(bus) == []


@by_tool
@pytest.mark.parametrize("now", [False, True], ids=["held", "now"])
async def test_what_is_wrong_is_refused_in_a_block_before_anything_is_sent(
    bus: MemoryBus, sandbox: MontySandbox, way: SendCase, now: bool
) -> None:
    tries = "".join(
        f"try:\n    {call_code(way.tool, {**bad, 'now': now})}except Exception as error:\n    print('no:', error)\n"
        for bad in way.bad
    )
    sandbox_without_types = tries.replace("send_as='photo'", "send_as='pho' + 'to'")

    text = await run_block(bus, sandbox, sandbox_without_types)

    assert text.count("no: ") == len(way.bad), text
    assert "[Messages" not in text
    assert all_arrived(bus) == {}


@by_tool
async def test_what_is_wrong_is_refused_outside_python_too(bus: MemoryBus, way: SendCase) -> None:
    calls = [function_call(way.tool, bad, call_id=f"c{n}") for n, bad in enumerate(way.bad)]
    shown = ToolCallScript(*calls)

    await work(bus, shown.agent(*map(function_tool_of, sending_tools())))

    assert len(shown.results) == len(way.bad)
    assert not [answer for answer in shown.results.values() if '"ok": true' in answer.replace('":true', '": true')]
    assert all_arrived(bus) == {}


async def test_all_of_them_leave_in_call_order_each_once(bus: MemoryBus, sandbox: MontySandbox) -> None:
    text = await run_block(bus, sandbox, ALL_SENDS * 2)

    assert text.endswith(f"\n\n[Messages: {2 * len(SEND_CASES)} sent]")
    assert numbers(block_events(bus)[0]) == ("success", 14, 14, 0)
    for way in SEND_CASES:
        assert sorted(way.arrived(bus)) == sorted(way.wanted * 2), way.tool
    order = [record["tool"] for record in sent_in_order(bus)]
    assert order == list(BY_TOOL) * 2


def sent_in_order(bus: Engine) -> list[dict[str, str]]:
    """The sends as the block's result names them, each found on the log by its id, where it must be once."""
    homes = {
        "say": "stream:one",
        "send_user_message": "chat:Desk",
        "send_agent_message": "chat:Bea",
        "friend_send": "chat:Bo",
        "channel_send": "channel:launch",
        "chat_send": "chat:Cy",
    }
    found: dict[str, str] = {}
    for name, topic in homes.items():
        for record in whole_log(bus, topic):
            if name == "say" and record.payload.get("event") != "message":
                continue
            if name == "friend_send" and record.payload["sender"] != "user:ann":
                continue
            # An inbox is shared by all conversations: there, the id of the message is in its payload.
            send_id = record.payload["id"] if topic.startswith("chat:") else record.id
            assert send_id not in found
            found[send_id] = "send_file" if record.payload.get("attachments") else name
    return [{"tool": found[send_id]} for send_id in recorded(bus)["c1"]["sends"]]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", None),
        (ALL_SENDS, "[Messages: 7 sent]"),
        (BY_TOOL["say"].code() + "1 / 0\n", "[Messages: 1 NOT sent (script failed)]"),
        ("1 / 0\n", None),
        (BY_TOOL["say"].code(now=True) + BY_TOOL["friend_send"].code(), "[Messages: 1 sent]"),
    ],
    ids=["none", "seven", "failed", "none and failed", "now is not counted"],
)
async def test_the_status_line(bus: MemoryBus, sandbox: MontySandbox, code: str, status: str | None) -> None:
    text = await run_block(bus, sandbox, code)

    assert text.endswith(f"\n\n{status}") if status else "[Messages" not in text
    assert block_events(bus)[0]["output"] == text


@pytest.mark.parametrize(
    ("code", "agent"),
    [(BY_TOOL["send_agent_message"].code(steering=True), "Bea"), (BY_TOOL["chat_send"].code(steer=True), "Cy")],
    ids=["send_agent_message", "chat_send"],
)
async def test_a_steer_goes_at_once(bus: MemoryBus, sandbox: MontySandbox, code: str, agent: str) -> None:
    text = await run_block(bus, sandbox, BY_TOOL["say"].code() + code + "1 / 0\n")

    (mail,) = whole_log(bus, f"chat:{agent}")
    assert mail.headers[STEER] is True
    assert BY_TOOL["say"].arrived(bus) == []
    assert text.endswith("[Messages: 1 NOT sent (script failed)]")


async def test_a_question_that_waits_for_its_answer_goes_at_once(bus: MemoryBus, sandbox: MontySandbox) -> None:
    code = BY_TOOL["friend_send"].code() + 'print(send_user_message("well?", nametag="@desk", wait=True)["answer"])\n'
    blocks = Blocks(sandbox, code + "1 / 0\n", *messaging_tools())
    desk = Agent[Any](name="Desk", model=CallbackModel(lambda items: [assistant_message("quite well")]))
    runners = {"Ada": OpenAIAgentsRunner(blocks.made), "Desk": OpenAIAgentsRunner(desk)}
    service = WorkerService(bus, runners, lease_s=LEASE_S)
    serving = asyncio.create_task(service.run())
    (event,) = await until(lambda: block_events(bus))
    await service.drain()
    await serving

    assert event["output"].startswith("quite well\nTraceback")
    assert event["output"].endswith("[Messages: 1 NOT sent (script failed)]")
    assert BY_TOOL["send_user_message"].arrived(bus) == ["user:ann: well?"]
    assert BY_TOOL["friend_send"].arrived(bus) == []
