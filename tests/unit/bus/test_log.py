"""`Log` and `run_sync`: one coroutine for both faces of an engine."""

from __future__ import annotations

import asyncio

import pytest

from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.errors import SuspendedSync, TopicError


async def append_and_count(log: Log, topic: str) -> int:
    await log.append(Append(records=(NewRecord(topic, {"n": 1}),)))
    info = await log.describe(topic)
    return info[0].last


async def test_the_same_function_runs_on_a_loop_and_on_a_thread() -> None:
    bus = MemoryBus()

    assert await append_and_count(Log(bus), "chat:one") == 1
    assert run_sync(bus, append_and_count, "chat:one") == 2


def test_an_error_of_the_engine_is_raised_inside_the_function() -> None:
    async def caught(log: Log) -> str:
        try:
            await log.describe("")
        except TopicError:
            return "caught"
        return "missed"

    assert run_sync(MemoryBus(), caught) == "caught"


def test_a_function_that_awaits_something_else_is_refused_by_name() -> None:
    async def sleeps(log: Log) -> None:
        await asyncio.sleep(0)

    with pytest.raises(SuspendedSync, match="sleeps"):
        run_sync(MemoryBus(), sleeps)
