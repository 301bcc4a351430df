"""A gateway and a team in one process, as `magent2 serve` runs them, with a model that waits at a gate.

Settings: `url` of the bus, `data_dir`, `port` (0 for a free one), `root_path`.
A line `open` opens the model's gate, `close` closes it; each is reported once it is done.
"""

from __future__ import annotations

import asyncio
import os
import threading

from magent2.cli.options import ListenOptions
from magent2.cli.server_process import GatewayResources, run_gateway, stop_event_on_signals
from magent2.gateway.catalogue import Catalogue
from magent2.loop import run_on_loop
from magent2.mail.retry_policy import RetryPolicy
from magent2.roster.registry import Registry
from magent2.worker.service import WorkerService
from tests.support.gated_model import GatedModel, gated_team, page_roster
from tests.support.processes import await_line, report, settings

LEASE_S = 2.0  # short, so that a run of a killed process is taken over soon
RETRY = RetryPolicy(first_s=0.25, max_s=2.0, jitter=0.5, give_up_after_s=3600.0)  # a retry is never far away
# A model that is down for a while must not suspend the calls of other tests, however often it was tried.
CIRCUIT_FAILURES = 1_000_000


def follow_commands(model: GatedModel, loop: asyncio.AbstractEventLoop) -> None:
    """Open and close the gate as the parent process says."""

    def act(command: str) -> None:
        if command == "open":
            model.gate.set()
        else:
            model.gate.clear()
        report(gate=command)

    while True:
        loop.call_soon_threadsafe(act, await_line())


async def main() -> None:
    options = settings()
    os.environ["MAGENT2_DATA_DIR"] = options["data_dir"]
    resources = GatewayResources.open(
        ListenOptions("127.0.0.1", options["port"], root_path=options["root_path"] or None), options["url"]
    )
    model = GatedModel()
    team = gated_team(model, resources.bus)
    threading.Thread(target=follow_commands, args=(model, asyncio.get_running_loop()), daemon=True).start()

    def create_service() -> WorkerService:
        service = WorkerService(
            resources.bus,
            dict.fromkeys(team.agents(), team),
            lease_s=LEASE_S,
            retry=RETRY,
            circuit_failures=CIRCUIT_FAILURES,
        )
        service.fires_schedules = True
        return service

    try:
        await run_gateway(
            resources,
            create_service,
            lambda: report(url=resources.url, port=resources.listener.getsockname()[1], token=resources.access.token),
            stop_event_on_signals("draining"),
            Catalogue(Registry.of(page_roster(mcp=("clock",))), builtins=team.builtins, kind=team.kind),
        )
    finally:
        await team.aclose()


if __name__ == "__main__":
    run_on_loop(main())
