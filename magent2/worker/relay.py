"""The relay beside a worker: every worker process also sends the messages in the outboxes of its bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from magent2.bus.interface import Engine
from magent2.connectors.relay import DRAIN_S, Relay
from magent2.errors import Magent2Error

log = logging.getLogger(__name__)

RESTART_S = 5.0  # after a relay has failed


@asynccontextmanager
async def relaying(bus: Engine, make: Callable[[Engine], Relay] = Relay) -> AsyncIterator[None]:
    """Run a relay inside the block. On the way out, give its deliveries some time to finish."""
    supervisor = _RelaySupervisor(bus, make)
    task = asyncio.create_task(supervisor.run())
    task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        supervisor.drain()
        await asyncio.wait([task], timeout=DRAIN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the relay has ended; restart this process to send messages again", exc_info=error)


class _RelaySupervisor:
    """Runs a relay, and starts another after one has failed. Agents are served meanwhile."""

    def __init__(self, bus: Engine, make: Callable[[Engine], Relay]) -> None:
        self._bus = bus
        self._make = make
        self._relay = make(bus)
        self._draining = asyncio.Event()

    async def run(self) -> None:
        while not self._draining.is_set():
            try:
                await self._relay.run()
            except Magent2Error as error:
                log.exception("the relay has failed; it starts again soon", extra={"error": str(error)})
                await self._pause()
                self._relay = self._make(self._bus)

    def drain(self) -> None:
        self._draining.set()
        self._relay.drain()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RESTART_S):
                await self._draining.wait()
        except TimeoutError:
            return
