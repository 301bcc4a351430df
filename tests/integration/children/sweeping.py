"""A worker process that sweeps, and waits for a line from its parent at one step of the sweep.

Settings: `url`, `worker`, `lease_s`, `waits_at` (number of a compaction, or null), `after` (wait after that step).
Reports `at` when it waits, `fenced` when another process has taken its lane, and `ended` after each sweep.
"""

from __future__ import annotations

import asyncio
from typing import Any

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Compact, Later, Operation
from magent2.bus.retention import RetentionPolicy
from magent2.errors import Fenced
from magent2.worker import sweeper
from tests.support.engine_wrappers import EngineWrapper
from tests.support.processes import await_line, report, settings

POLICY = RetentionPolicy(tokens_after_s=0.0, sweep_every_s=3600.0)


class WaitsAtStep(EngineWrapper):
    def __init__(self, engine: Engine, waits_at: int | None, after: bool) -> None:
        super().__init__(engine)
        self._waits_at = waits_at
        self._after = after
        self._steps = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        self._steps += isinstance(operation, Compact)
        waits = isinstance(operation, Compact) and self._steps == self._waits_at
        if waits and not self._after:
            await self._wait()
        try:
            answer = await self.inner.acall(operation)
        except Fenced:
            report(fenced=True, steps=self._steps)
            raise
        if waits and self._after:
            await self._wait()
        if isinstance(operation, Later):
            report(ended=True, steps=self._steps)
        return answer

    async def _wait(self) -> None:
        report(at=self._steps)
        await asyncio.to_thread(await_line)


async def main() -> None:
    given = settings()
    engine = WaitsAtStep(connect(given["url"]), given["waits_at"], given["after"])
    sweeper.RECORD_EVERY_S = 0.0  # record the progress after every step
    report(ready=True)
    await sweeper.keep_sweeping(engine, lambda: POLICY, given["worker"], given["lease_s"])


if __name__ == "__main__":
    asyncio.run(main())
