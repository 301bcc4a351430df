"""The memory of a worker process in the middle of many runs."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from agents import Agent
from agents.items import TResponseStreamEvent

from bench.support.bus.size import resident_bytes
from bench.support.report import Connect, run
from bench.support.worker.backlog import LOOK_AGAIN_S, Backlog, deliver_all, new_backlog
from bench.support.worker.sdk_runs import QUESTION, ScriptedReplies
from magent2.bus.base import EngineBase
from magent2.runner.demo.script import ScriptedText
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.worker.service import WorkerService

MIB = 1 << 20


class OneWordModel(ScriptedReplies):
    """A model that streams one word and then waits."""

    def __init__(self) -> None:
        super().__init__(lambda _: ScriptedText("Well"))
        self.asked = 0

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        async for event in super().stream_response(*args, **options):
            yield event
            if event.type == "response.output_text.delta":
                self.asked += 1
                await asyncio.Event().wait()


def held_mb(connect: Connect, conversations: int) -> tuple[float, float]:
    """MiB of a process in the middle of this many SDK runs, and of one without runs."""
    backlog = new_backlog(QUESTION, conversations)
    run(_deliver_all(connect(), backlog))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        before, after = pool.submit(_hold, connect, backlog.agent, conversations).result()
    return after / MIB, before / MIB


async def _deliver_all(bus: EngineBase, backlog: Backlog) -> None:
    await deliver_all(bus, backlog)
    await bus.aclose()


def _hold(connect: Connect, agent: str, conversations: int) -> tuple[int, int]:
    return run(_held(connect(), agent, conversations))


async def _held(bus: EngineBase, agent: str, conversations: int) -> tuple[int, int]:
    before, model = resident_bytes(), OneWordModel()
    runner = OpenAIAgentsRunner(Agent(name=agent, model=model))
    service = WorkerService(bus, {agent: runner}, concurrency=conversations)
    serving = asyncio.create_task(service.run())
    while model.asked < conversations and not serving.done():
        await asyncio.sleep(LOOK_AGAIN_S)
    after = resident_bytes()
    await service.drain(0)
    await serving
    await bus.aclose()
    return before, after
