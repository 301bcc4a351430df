"""Runs that wait for each other: what they give up meanwhile, and that no circle of them forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe, Leave
from magent2.runner.build import function_tool_of
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sandbox.monty import MontySandbox
from magent2.worker.service import WorkerService
from tests.support.ask_tool import ask_definition
from tests.support.blocks import block_events, patient_sandbox, python_tool
from tests.support.journaled_runs import CallbackModel, CrashingBus, Items, message_contents, results_in
from tests.support.worker_fixture import LEASE_S, outputs, send, until

PAIR = ("Ada", "Bea")


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
async def sandbox() -> AsyncIterator[MontySandbox]:
    sandbox = patient_sandbox(processes=1)
    yield sandbox
    await sandbox.aclose()


def asked(items: Sequence[Mapping[str, Any]]) -> str:
    return [str(item["content"]) for item in items if item.get("role") == "user"][-1]


class Talker:
    """Does what it is told by people, in a block or by itself; answers agents at once."""

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        text = asked(items)
        results = results_in(items)
        if results:
            return [assistant_message("I heard: " + " ".join(str(result) for result in results.values()))]
        if text.startswith("[agent:Ada]: print"):
            return [function_call("run_python", {"code": text.partition(": ")[2]}, call_id="c1")]
        if text.startswith("[agent:"):
            return [assistant_message(f"you said {text}")]
        if text.startswith("{"):
            return [function_call("ask", json.loads(text), call_id="c1")]
        return [function_call("run_python", {"code": text}, call_id="c1")]


def runner(name: str, sandbox: MontySandbox) -> OpenAIAgentsRunner:
    tools = [function_tool_of(python_tool(sandbox, ask_definition())), function_tool_of(ask_definition())]
    return OpenAIAgentsRunner(Agent[Any](name=name, model=CallbackModel(Talker().say, 400), tools=list(tools)))


class Serving:
    def __init__(self, bus: Engine, sandbox: MontySandbox, concurrency: int = 1) -> None:
        runners = {name: runner(name, sandbox) for name in PAIR}
        self.service = WorkerService(bus, runners, concurrency=concurrency, lease_s=LEASE_S)

    async def __aenter__(self) -> WorkerService:
        self.task = asyncio.create_task(self.service.run())
        return self.service

    async def __aexit__(self, *error: object) -> None:
        await self.service.drain(0.0)
        await self.task


def ask(agent: str, conversation: str, text: str = "well?") -> str:
    return f'answer = ask({agent!r}, {conversation!r}, {text!r})\nprint(answer["status"], answer["text"])'


async def test_a_block_that_waits_gives_up_its_slot_and_its_process(bus: MemoryBus, sandbox: MontySandbox) -> None:
    """One slot and one process: Bea, who runs a block too, could not answer otherwise."""
    send(bus, 'chat_send("agent:Bea", "held", "other")\n' + ask("Bea", "side", "print(6 * 7)"))

    async with Serving(bus, sandbox):
        (text,) = await until(lambda: outputs(bus))

    assert "finished I heard: 42" in text
    assert text.endswith("[Messages: 1 sent]")
    assert message_contents(bus, "chat:Bea")[:2] == ["print(6 * 7)", "held"]
    head = bus.call(Describe(("stream:one",)))[0].head
    assert not [name for name in head if name.startswith("wait_")]


async def test_a_plain_call_can_wait_too(bus: MemoryBus, sandbox: MontySandbox) -> None:
    send(bus, json.dumps({"agent": "Bea", "conversation": "side", "text": "well?"}))

    async with Serving(bus, sandbox):
        (text,) = await until(lambda: outputs(bus))

    assert "you said [agent:Ada]: well?" in text


async def test_a_wait_for_oneself_is_refused(bus: MemoryBus, sandbox: MontySandbox) -> None:
    send(bus, ask("Ada", "one"))

    async with Serving(bus, sandbox):
        (text,) = await until(lambda: outputs(bus))

    assert "would_deadlock: Ada waits for this run (Ada/one → Ada/one); send without waiting" in text
    assert block_events(bus)[0]["status"] == "error"


async def test_64_runs_that_wait_for_each_other_do_not_wait_for_ever(bus: MemoryBus, sandbox: MontySandbox) -> None:
    """Each asks the next, the last the first: somebody is told that it would be a circle, and everybody ends."""
    lanes = [(PAIR[number % 2], f"c{number}") for number in range(64)]
    for number, (agent, conversation) in enumerate(lanes):
        other, there = lanes[(number + 1) % 64]
        question = json.dumps({"agent": other, "conversation": there, "text": "well?"})
        send(bus, question, conversation, recipient=f"agent:{agent}")

    async with Serving(bus, sandbox, concurrency=4):
        await until(lambda: all(outputs(bus, conversation) for _, conversation in lanes), 60.0)

    texts = [outputs(bus, conversation)[0] for _, conversation in lanes]
    refused = [text for text in texts if "would_deadlock" in text]
    assert len(refused) >= 1
    assert all("you said" in text for text in texts if text not in refused)


async def test_no_answer_in_time_is_said(bus: MemoryBus, sandbox: MontySandbox) -> None:
    send(bus, 'print(ask("Nobody", "side", "well?", timeout_s=0.05)["reason"])')

    async with Serving(bus, sandbox):
        (text,) = await until(lambda: outputs(bus))

    assert "no answer within 0.05 s; it may still come" in text


async def test_an_answer_that_came_between_two_attempts_is_found_by_the_next_one(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    send(bus, ask("Bea", "side"))
    mortal = CrashingBus(bus, on="sent", after=True)
    runners = {"Ada": runner("Ada", sandbox)}
    dying = WorkerService(mortal, runners, lease_s=LEASE_S, worker="mortal")
    task = asyncio.create_task(dying.run())
    await until(mortal.dead.is_set)
    task.cancel()
    await asyncio.wait([task])
    bus.call(Leave("mortal"))  # its lease is over

    async with Serving(bus, sandbox):
        (text,) = await until(lambda: outputs(bus))

    assert "finished you said [agent:Ada]: well?" in text
    assert message_contents(bus, "chat:Bea") == ["well?"]
