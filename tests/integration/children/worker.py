"""A process that claims lanes of one agent and works them, several at a time, until it is told to stop or killed.

All that it does with a lane goes onto the audit topic, in the very step that does it. It never stops to ask whether it
still owns a lane: what holds back a worker that was frozen must be the log.

Settings: `url`, `worker`, `agent`, `trail`, `lease_s`, `seed`.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Claim, Leave, Renew
from magent2.bus.records import ClaimedLane
from magent2.errors import Fenced
from tests.support.audited_lane import acall_with_retry, hand_back_append, settle_append, start_append, steer_append
from tests.support.processes import await_line, report, settings

AT_A_TIME = 8  # lanes
IDLE_S = 0.2  # the longest it sleeps without being woken
HAND_BACK_CHANCE = 0.05
SEE_CHANCE = 0.3
THINK_MAX_S = 0.1  # a run takes time, as a model does


class Worker:
    def __init__(self, engine: Engine, given: dict[str, Any]) -> None:
        self.engine = engine
        self.name: str = given["worker"]
        self.agent: str = given["agent"]
        self.trail: str = given["trail"]
        self.lease_s: float = given["lease_s"]
        self.rng = random.Random(given["seed"])
        self.stopping = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """An error that is not expected ends the worker, for the parent to see."""
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew())
            with self.engine.watch([f"chat:{self.agent}", f"control:{self.agent}"]) as watch:
                while not self.stopping:
                    if len(self.tasks) == AT_A_TIME:
                        await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
                    elif not await self._claim(group):
                        await watch.changed(IDLE_S)
            if self.tasks:
                await asyncio.wait(self.tasks)
            renewing.cancel()
        await acall_with_retry(self.engine, Leave(self.name))

    async def _claim(self, group: asyncio.TaskGroup) -> bool:
        """Take what there is room for; whether there may be more."""
        room = AT_A_TIME - len(self.tasks)
        claim = Claim(worker=self.name, agents=(self.agent,), limit=room, lease_s=self.lease_s)
        claims = await acall_with_retry(self.engine, claim)
        for lane in claims.lanes:
            task = group.create_task(self._work(lane))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return claims.more or len(claims.lanes) == room

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.lease_s / 3)
            await acall_with_retry(self.engine, Renew(self.name, self.lease_s))

    async def _work(self, lane: ClaimedLane) -> None:
        try:
            n = await self._see(lane)
            await asyncio.sleep(self.rng.uniform(0, THINK_MAX_S))
            if self.rng.random() < HAND_BACK_CHANCE:
                await acall_with_retry(self.engine, hand_back_append(self.trail, lane, n, self.rng.choice((0.0, 0.02))))
            else:
                await acall_with_retry(self.engine, settle_append(self.trail, lane, n))
        except Fenced:
            report(fenced=lane.owner.token)
        else:
            report(done=lane.owner.token)

    async def _see(self, lane: ClaimedLane) -> int:
        """Start, and perhaps take the last mail of the lane as a steer; the number of the next write."""
        await acall_with_retry(self.engine, start_append(self.trail, lane))
        if len(lane.mail) < 2 or self.rng.random() > SEE_CHANCE:
            return 2
        await acall_with_retry(self.engine, steer_append(self.trail, lane, 2))
        return 3


async def main() -> None:
    given = settings()
    engine = connect(given["url"])
    worker = Worker(engine, given)
    threading.Thread(target=_stop_on_a_line, args=(worker,), daemon=True).start()
    report(ready=worker.name)
    await worker.run()
    await engine.aclose()
    report(left=worker.name)


def _stop_on_a_line(worker: Worker) -> None:
    await_line()
    worker.stopping = True


if __name__ == "__main__":
    asyncio.run(main())
