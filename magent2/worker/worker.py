"""The worker of contract v1: synchronous, one message after another."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from magent2.bus.base import EngineBase
from magent2.bus.interface import Bus, Engine
from magent2.bus.log import Log
from magent2.bus.operations import CLAIM_LIMIT_MAX, Claim, Leave, Operation, Renew
from magent2.bus.retry import retry_while_unavailable
from magent2.bus.v1_adapter import is_engine
from magent2.bus.watch import Watch
from magent2.errors import LimitError, Magent2Error
from magent2.mail.registration import register_agent
from magent2.models.address import check_name
from magent2.worker.lane_run import LaneRun
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import LEASE_S, new_worker_id
from magent2.worker.settlement import SETTLED, Outcome
from magent2.worker.v1_mailbox import V1Mailbox

__all__ = ["Runner", "Worker"]

log = logging.getLogger(__name__)

R = TypeVar("R")

LIMIT = 100  # messages per call, unless told


class Worker:
    """Answers the mail of one agent, when it is asked to.

    On one of our engines it claims lanes as the service does: a message is settled with its answer, tried again or
    buried by the same rules, and the lease is renewed while it works. On any other object with v1's `publish` and
    `read` it remembers the last id it has read, in this object alone, and publishes exactly what the runner yields.
    """

    def __init__(self, agent_name: str, bus: Bus, runner: Runner, *, lease_s: float = LEASE_S) -> None:
        self._agent = check_name(agent_name, "agent name")
        self._runner = runner
        self._lease_s = lease_s
        self._worker = new_worker_id()
        self._engine = BlockingEngine(bus) if is_engine(bus) else None
        self._mailbox = V1Mailbox(agent_name, bus, runner)

    def process_available(self, limit: int = LIMIT) -> int:
        """Work on up to `limit` messages that are there now; how many are off the list after it.

        Works on any thread. Where an event loop runs, that loop waits.
        """
        if limit < 1:
            raise LimitError(f"limit must be at least 1, not {limit}")
        if self._engine is None:
            return self._mailbox.process(limit)
        return _run_apart(self._process(self._engine, limit))

    async def _process(self, bus: Engine, limit: int) -> int:
        await register_agent(Log(bus), self._agent)
        try:
            async with self._lease(bus):
                outcomes = await self._work(bus, limit)
        finally:
            await self._leave_loop()
        return sum(outcome in SETTLED for outcome in outcomes)

    async def _leave_loop(self) -> None:
        """What one of our runners has opened on this loop ends with it: connections, processes of blocks."""
        leave = getattr(self._runner, "leave_loop", None)
        if leave is not None:
            await leave()

    async def _work(self, bus: Engine, limit: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while len(outcomes) < limit:
            room = min(limit - len(outcomes), CLAIM_LIMIT_MAX)
            claim = Claim(worker=self._worker, agents=(self._agent,), limit=room, lease_s=self._lease_s)
            claims = await retry_while_unavailable(bus, claim, self._worker)
            outcomes += [await LaneRun(bus, lane, self._runner).work() for lane in claims.lanes]
            if not claims.lanes and not claims.more:
                break
        return outcomes

    @asynccontextmanager
    async def _lease(self, bus: Engine) -> AsyncIterator[None]:
        """Renewed while it is needed, then given up."""
        renewal = asyncio.create_task(self._renew(bus))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
            try:
                await bus.acall(Leave(self._worker))
            except Magent2Error as error:
                log.warning("left without a word; the lease will run out", extra={"error": str(error)})

    async def _renew(self, bus: Engine) -> None:
        renewal = Renew(self._worker, self._lease_s)
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await retry_while_unavailable(bus, renewal, self._worker)


class BlockingEngine(EngineBase):
    """An engine whose asynchronous face is the synchronous one: for a loop that lives no longer than a call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def call(self, operation: Operation[R]) -> R:
        return self._engine.call(operation)

    async def acall(self, operation: Operation[R]) -> R:
        return self._engine.call(operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return self._engine.watch(topics)

    def close(self) -> None:
        self._engine.close()


def _run_apart(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on a thread and a loop of its own, and wait for it."""
    with ThreadPoolExecutor(1, thread_name_prefix="magent2-worker") as threads:
        return threads.submit(contextvars.copy_context().run, asyncio.run, work).result()
