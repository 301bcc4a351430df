"""Read the events of an SDK run to its end, or leave it early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magent2.runner.sdk_run import follow_events


class FailingRun:
    """A run that fails at the moment its reader leaves."""

    def __init__(self) -> None:
        self.run_loop_task: asyncio.Task[None] | None = asyncio.create_task(self._fail())

    async def _fail(self) -> None:
        raise LookupError("the model went away")

    async def stream_events(self) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        yield "event"


async def leave(run: FailingRun) -> None:
    async with follow_events(run) as events:
        async for _ in events:
            raise InterruptedError


async def test_a_run_that_fails_when_its_reader_leaves_is_not_reported_by_the_loop() -> None:
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    run = FailingRun()

    with pytest.raises(InterruptedError):
        await leave(run)
    run.run_loop_task = None
    gc.collect()

    assert reports == []
