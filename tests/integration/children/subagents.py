"""A worker process of the boss, of the helper, or of both.

Settings: `url`, `agents`, `lease_s`, `gate` (digging ends when this file is there), `deadly` (digging kills the
process), `worker` (its id; a new one if absent), `deadly_model` (a model call of the helper kills it), `run_calls` (the
budget of a run, in model calls; none if absent). Says when the helper begins to dig.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

from magent2.bus.connect import connect
from magent2.models.budgets import Budgets, Limit
from magent2.worker.service import WorkerService
from tests.integration.children.service import drain_on_a_line
from tests.support.processes import report, settings
from tests.support.subagents import subagent_team


async def main() -> None:
    given = settings()
    engine = connect(given["url"])

    def dig() -> None:
        report(digging=True)
        if given["deadly"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def call_model() -> None:
        if given.get("deadly_model"):
            report(calling=True)
            os.kill(os.getpid(), signal.SIGKILL)

    runner = subagent_team(Path(given["gate"]).exists, dig, call_model)
    service = WorkerService(
        engine, dict.fromkeys(given["agents"], runner), lease_s=given["lease_s"], worker=given.get("worker")
    )
    service.budgets.configured = lambda: Budgets(run=Limit(calls=given.get("run_calls")))
    loop = asyncio.get_running_loop()
    threading.Thread(target=drain_on_a_line, args=(service, loop), daemon=True).start()
    report(ready=True)
    await service.run()
    await runner.aclose()
    await engine.aclose()
    report(left=True)


if __name__ == "__main__":
    asyncio.run(main())
