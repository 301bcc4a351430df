"""The relay beside a worker: as long as somebody works on this bus, what is said outside gets there."""

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
    """Run a relay while in here; on the way out, what it is sending has some time to arrive."""
    keeper = _Keeper(bus, make)
    task = asyncio.create_task(keeper.run())
    task.add_done_callback(_note_end)
    try:
        yield
    finally:
        keeper.drain()
        await asyncio.wait([task], timeout=DRAIN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _note_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("no relay runs any more; start this process again", exc_info=error)


class _Keeper:
    """Starts a relay, and another when one has failed: agents answer meanwhile."""

    def __init__(self, bus: Engine, make: Callable[[Engine], Relay]) -> None:
        self._bus = bus
        self._make = make
        self._relay = make(bus)
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        while not self._leaving.is_set():
            try:
                await self._relay.run()
            except Magent2Error as error:
                log.exception("the relay has failed; another begins soon", extra={"error": str(error)})
                await self._pause()
                self._relay = self._make(self._bus)

    def drain(self) -> None:
        self._leaving.set()
        self._relay.drain()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RESTART_S):
                await self._leaving.wait()
        except TimeoutError:
            return
