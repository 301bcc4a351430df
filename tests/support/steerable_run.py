"""Runs of several turns that wait for the test between turns, and steers for them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Lanes
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.steering import steer as deliver_steer
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support.journaled_runs import CallbackModel, Items, is_block, results_in
from tests.support.worker_fixture import AGENT, claim_one, envelope, history, stream, until

BLOCK = re.compile(r'^<bus-message source="([^"]*)">\n(.*)\n</bus-message>$', re.DOTALL)


class SteerableAgent:
    """An agent with `turns` turns of one tool call each and a final answer; each call waits at its own gate.

    `requests` are the items of every request to its model.
    """

    def __init__(self, turns: int = 2, name: str = AGENT) -> None:
        self.turns = turns
        self.requests: list[list[Mapping[str, Any]]] = []
        self.entered = 0
        self._gates = [asyncio.Event() for _ in range(turns)]

        @function_tool
        async def step(n: int) -> str:
            """Take a step."""
            self.entered = max(self.entered, n + 1)
            await self._gates[n].wait()
            return f"step {n} taken"

        self.agent = Agent[Any](name=name, model=CallbackModel(self.say), tools=[step])

    @property
    def runner(self) -> OpenAIAgentsRunner:
        return OpenAIAgentsRunner(self.agent)

    def say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append([dict(item) for item in items])
        turn = len(results_in(items))
        if turn < self.turns:
            return [function_call("step", {"n": turn}, call_id=f"c{turn}")]
        return [assistant_message("done")]

    def open(self, *turns: int) -> None:
        for turn in turns or range(self.turns):
            self._gates[turn].set()

    async def at(self, turn: int) -> None:
        """Open the earlier gates and wait until the run is in this turn's call."""
        if turn:
            self.open(*range(turn))
        await until(lambda: self.entered > turn)


def steer(
    bus: Engine, text: str, recipient: str = "chat:one", sending: SendOptions | None = None, **more: Any
) -> DeliveryResult:
    active = {"require_active": more.pop("require_active")} if "require_active" in more else {}
    return run_sync(
        bus,
        deliver_steer,
        envelope(text, more.pop("conversation", "one"), recipient=recipient, **more),
        sending,
        **active,
    )


def shown_steers(request: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Source and text of the steers in a model request."""
    found = [BLOCK.match(str(item.get("content"))) for item in request if is_block(item)]
    return [(match[1], match[2]) for match in found if match is not None]


def request_shape(request: Sequence[Mapping[str, Any]]) -> list[str]:
    """The kinds of items in a request."""
    return [_word(item) for item in request]


def _word(item: Mapping[str, Any]) -> str:
    if item.get("type") == "function_call":
        return "call"
    if item.get("type") == "function_call_output":
        return "result"
    if is_block(item):
        return "steer"
    return str(item.get("role"))


def receipts(bus: Engine, conversation: str = "one") -> list[tuple[str, str]]:
    """Id and outcome of every message that has a receipt, in order."""
    events = [event for event in stream(bus, conversation) if event["event"] == "message_received"]
    return [(message["id"], message["outcome"]) for event in events for message in event["messages"]]


def seen_steers(bus: Engine, conversation: str = "one") -> list[tuple[int, str]]:
    """Turn and text of every steer that a recorded answer has seen."""
    answers = [record for record in history(bus, conversation) if record["kind"] == "answer"]
    return [(answer["turn"], steer["text"]) for answer in answers for steer in answer.get("steers", ())]


def pending_mail(bus: Engine, agent: str = AGENT) -> int:
    """How much mail is pending for an agent."""
    return sum(lane.pending for lane in bus.call(Lanes(agent)))


async def no_catch_up() -> None:
    """A catch-up function that does nothing: all steers are already in the lane."""


async def work_steered(bus: Engine, runner: OpenAIAgentsRunner, worker: str = "w1") -> Outcome:
    """Run the only pending lane, with all steers in it."""
    return await LaneRun(bus, claim_one(bus, worker), runner, catch_up=no_catch_up).work()
