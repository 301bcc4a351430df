"""A worker process that fires schedules, and waits for a line from its parent at the release of a lane that fires.

Settings: `url`, `worker`, `lease_s`, `waits_at` (number of the append that sends a message, or null), `after` (wait
after that append). Reports `at` when it waits, and `fenced` when another process has taken its lane.
"""

from __future__ import annotations

import asyncio
from typing import Any

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Later, Operation, Settle
from magent2.errors import Fenced
from magent2.worker.scheduler import keep_firing
from tests.support.engine_wrappers import EngineWrapper
from tests.support.processes import await_line, report, settings


class WaitsAtMessage(EngineWrapper):
    def __init__(self, engine: Engine, waits_at: int | None, after: bool) -> None:
        super().__init__(engine)
        self._waits_at = waits_at
        self._after = after
        self._sent = 0
        self._goes_on = asyncio.Event()

    async def acall(self, operation: Operation[Any]) -> Any:
        sends = isinstance(operation, Later | Settle) and any(
            record.topic.startswith("chat:") for record in operation.records
        )
        self._sent += sends
        waits = sends and self._sent == self._waits_at
        if sends and self._waits_at is not None and self._sent > self._waits_at:
            await self._goes_on.wait()  # the lane is released after the append, so the next claim may fire another slot
        if waits and not self._after:
            await self._wait()
        try:
            answer = await self.inner.acall(operation)
        except Fenced:
            report(fenced=True)
            raise
        if waits and self._after:
            await self._wait()
        return answer

    async def _wait(self) -> None:
        report(at=self._sent)
        await asyncio.to_thread(await_line)
        self._goes_on.set()


async def main() -> None:
    given = settings()
    engine = WaitsAtMessage(connect(given["url"]), given["waits_at"], given["after"])
    report(ready=True)
    await keep_firing(engine, given["worker"], given["lease_s"])


if __name__ == "__main__":
    asyncio.run(main())
