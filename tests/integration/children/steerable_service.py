"""A worker process whose runs take many turns and can be steered.

Settings: `url`, `agent`, `worker`, `lease_s`, `think_max_s`, `seed`. A message `go 20` is answered after 20 turns of
one call each, any other at once. A request that shows something twice is reported as `doubled`. A line drains it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.connect import connect
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.run_stream import Event
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.integration.children.service import drain_on_a_line
from tests.support.journaled_runs import CallbackModel, Items, results_in
from tests.support.processes import report, settings
from tests.support.steerable_run import shown_steers

TURNS_MAX = 40


class Steerable:
    """Each attempt has a model of its own."""

    takes_steers = True

    def __init__(self, rng: random.Random, think_max_s: float) -> None:
        @function_tool
        async def step(n: int) -> str:
            """Take a step."""
            await asyncio.sleep(rng.uniform(0, think_max_s))
            return f"step {n} taken"

        self._tools = [step]

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        word, _, number = (envelope.content or "").partition(" ")
        turns = int(number) if word == "go" else 0

        def say(items: Sequence[Mapping[str, Any]]) -> Items:
            shown = shown_steers(items)
            if len(set(shown)) != len(shown):
                report(doubled=[text for _, text in shown])
            turn = len(results_in(items))
            return (
                [function_call("step", {"n": turn}, call_id=f"c{turn}")]
                if turn < turns
                else [assistant_message("done")]
            )

        agent = Agent[Any](name=context.agent, model=CallbackModel(say), tools=list(self._tools))
        runner = OpenAIAgentsRunner(agent, history_max=2, max_turns=TURNS_MAX + 1)
        async with aclosing(runner.astream_run(envelope, context)) as events:
            async for event in events:
                yield event


async def main() -> None:
    given = settings()
    engine = connect(given["url"])
    runner = Steerable(random.Random(given["seed"]), given["think_max_s"])
    service = WorkerService(engine, {given["agent"]: runner}, lease_s=given["lease_s"], worker=given["worker"])
    loop = asyncio.get_running_loop()
    threading.Thread(target=drain_on_a_line, args=(service, loop), daemon=True).start()
    report(ready=True)
    await service.run()
    await engine.aclose()
    report(left=True, **{outcome.name: service.outcomes[outcome] for outcome in Outcome})


if __name__ == "__main__":
    asyncio.run(main())
