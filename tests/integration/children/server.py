"""A gateway and a worker in one process, as `magent2 serve` runs them, with a scripted runner.

Settings: `url` of the bus, `data_dir`, `port` (0 for a free one), `worker` (whether there is one).
A run of a message that begins with `fail` fails. One of a message that begins with `slow` never ends by itself. All
others are echoed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable

from magent2.cli.options import ListenOptions
from magent2.cli.server_process import GatewayResources, run_gateway, stop_event_on_signals
from magent2.errors import ModelRefused
from magent2.loop import run_on_loop
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import Event
from magent2.worker.service import WorkerService
from tests.support.processes import report, settings
from tests.support.runners import token

AGENT = "general"


class ScriptedRunner:
    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        text = envelope.content or ""
        if text.startswith("fail"):
            raise ModelRefused("told to fail")
        if text.startswith("slow"):
            yield token(envelope, "thinking ")
            await asyncio.Event().wait()
        for event in EchoRunner().stream_run(envelope):
            yield event


async def main() -> None:
    given = settings()
    os.environ["MAGENT2_DATA_DIR"] = given["data_dir"]
    resources = GatewayResources.open(ListenOptions("127.0.0.1", given["port"]), given["url"])

    def create_worker() -> WorkerService:
        service = WorkerService(resources.bus, {AGENT: ScriptedRunner()})
        service.fires_schedules = True
        return service

    await run_gateway(
        resources,
        create_worker if given["worker"] else None,
        lambda: report(url=resources.url, port=resources.listener.getsockname()[1], token=resources.access.token),
        stop_event_on_signals("draining"),
    )


if __name__ == "__main__":
    run_on_loop(main())
