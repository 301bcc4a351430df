"""A worker process: the real service with a slow echo runner.

Settings: `url`, `agent`, `lease_s`, `think_max_s`, `seed`. A message `die` kills the process that answers it.
A line from the parent drains it.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterator

from magent2.bus.connect import connect
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import Event
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.support.processes import await_line, report, settings

DRAIN_S = 5.0


class SlowEcho:
    def __init__(self, rng: random.Random, think_max_s: float) -> None:
        self._rng = rng
        self._think_max_s = think_max_s

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[Event]:
        return EchoRunner().stream_run(envelope)

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        if envelope.content == "die":
            os._exit(1)
        for event in EchoRunner().stream_run(envelope):
            if self._think_max_s:
                await asyncio.sleep(self._rng.uniform(0, self._think_max_s))
            yield event


async def main() -> None:
    given = settings()
    engine = connect(given["url"])
    runner = SlowEcho(random.Random(given["seed"]), given["think_max_s"])
    service = WorkerService(engine, {given["agent"]: runner}, lease_s=given["lease_s"], worker=given["worker"])
    loop = asyncio.get_running_loop()
    threading.Thread(target=drain_on_a_line, args=(service, loop), daemon=True).start()
    report(ready=True)
    await service.run()
    await engine.aclose()
    report(left=True, **{outcome.name: service.outcomes[outcome] for outcome in Outcome})


def drain_on_a_line(service: WorkerService, loop: asyncio.AbstractEventLoop) -> None:
    await_line()
    asyncio.run_coroutine_threadsafe(service.drain(DRAIN_S), loop)


if __name__ == "__main__":
    asyncio.run(main())
