"""A worker process on a full disk until the parent makes room.

Settings: `path`, `agent`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
from pathlib import Path

from magent2.bus.retry import log as patience_log
from magent2.bus.sqlite import SqliteBus
from magent2.runner.echo import EchoRunner
from magent2.worker.service import WorkerService
from tests.support.processes import await_line, report, settings

ROOM_BYTES = 64 << 10  # what the files may still grow


class WaitReporter(logging.Handler):
    """Reports the first time that the service waits."""

    told = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.told:
            self.told = True
            report(waiting=record.getMessage(), level=record.levelname)


async def main() -> None:
    given = settings()
    path = Path(given["path"])
    bus = SqliteBus(path)
    service = WorkerService(bus, {given["agent"]: EchoRunner()})
    patience_log.addHandler(WaitReporter())
    sizes = [file.stat().st_size for file in path.parent.glob(path.name + "*")]
    _, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) + ROOM_BYTES, unlimited))
    loop = asyncio.get_running_loop()
    threading.Thread(target=_follow_the_parent, args=(service, loop, unlimited), daemon=True).start()
    report(ready=True)
    await service.run()
    await bus.aclose()
    report(left=True)


def _follow_the_parent(service: WorkerService, loop: asyncio.AbstractEventLoop, unlimited: int) -> None:
    await_line()
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    await_line()
    asyncio.run_coroutine_threadsafe(service.drain(5.0), loop)


if __name__ == "__main__":
    asyncio.run(main())
