"""Gateway and worker on one bus and one loop, or a worker of the SDK alone. Run as a process."""

from __future__ import annotations

import argparse
import asyncio
import signal

from bench.support.processes import ECHO_AGENT, SDK_AGENT
from bench.support.worker.sdk_runs import talker
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.gateway.access.auth import Access
from magent2.gateway.limits import CONNECTIONS_MAX, GatewayLimits
from magent2.gateway.server import Gateway, listen
from magent2.loop import run_on_loop
from magent2.runner.echo import EchoRunner
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.worker.service import WorkerService


async def serve(bus: Engine, chosen: argparse.Namespace) -> None:
    """Run until SIGTERM."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    runners = {SDK_AGENT: OpenAIAgentsRunner(talker(chosen.tokens))}
    if chosen.port is None:
        await _work(WorkerService(bus, runners), leaving)
    else:
        limits = GatewayLimits(connections_per_address_max=CONNECTIONS_MAX)  # all clients have one address here
        gateway = Gateway(bus, access=Access.by_token(chosen.token, loopback=True), limits=limits)
        serving = asyncio.create_task(gateway.serve([listen("127.0.0.1", chosen.port)]))
        await _work(WorkerService(bus, {ECHO_AGENT: EchoRunner(), **runners}), leaving)
        gateway.drain()
        await serving
    await bus.aclose()


async def _work(service: WorkerService, leaving: asyncio.Event) -> None:
    working = asyncio.create_task(service.run())
    asked = asyncio.create_task(leaving.wait())
    await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not working.done():
        await service.drain()
    await working


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.support.gateway.service_process", description=__doc__)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of an answer of the SDK's agent")
    parser.add_argument("--port", type=int, help="of the gateway; without it there is none, and no echo")
    parser.add_argument("--token")
    chosen = parser.parse_args()
    run_on_loop(serve(connect(chosen.bus), chosen))


if __name__ == "__main__":
    main()
