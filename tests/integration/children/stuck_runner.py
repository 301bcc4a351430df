"""`python -m magent2.worker` with a runner that never ends.

Settings: `url`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from magent2.bus.connect import connect
from magent2.cli.server_process import drain_on_signals
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.run_stream import Event
from magent2.worker.service import WorkerService
from tests.support.processes import end_with_parent, report, settings
from tests.support.worker_fixture import AGENT


class Stuck:
    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        report(begun=True)
        await asyncio.Event().wait()
        yield {}


async def main() -> None:
    bus = connect(settings()["url"])
    try:
        service = WorkerService(bus, {AGENT: Stuck()}, concurrency=8)
        drain_on_signals(service)
        await service.run()
    finally:
        await bus.aclose()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main())
