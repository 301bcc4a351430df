"""Two gateways on one bus and loop: one with authentication and rate limits, one without. Run as a process."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from bench.support.gateway.load_client import Server
from bench.support.processes import ECHO_AGENT, TOKEN, server
from bench.support.redis_server import free_port
from bench.support.report import Connect, run
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.keys import create_key
from magent2.gateway.access.auth import Access
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits, RequestRate
from magent2.gateway.server import Gateway, listen
from magent2.runner.echo import EchoRunner
from magent2.worker.service import WorkerService

PERSON = "user:ada"  # the sender of the envelopes of all benchmarks
NO_LIMIT = RequestRate(per_s=1e6, burst=1_000_000)  # every request is counted and none is refused


@dataclass(frozen=True, slots=True)
class GatewayPair:
    """The same process at two ports: `guarded` with an API key, `open` without."""

    guarded: Server
    open: Server
    connect: Connect


@contextmanager
def gateway_pair(bus_url: str, connect: Connect, *, worker: bool) -> Iterator[GatewayPair]:
    """With a worker on the same loop, or without one."""
    port = free_port()
    arguments = [
        "bench.support.gateway.two_gateways",
        "--bus",
        bus_url,
        "--open-port",
        str(port),
        *(["--worker"] if worker else []),
    ]
    with server(*arguments, token=TOKEN, path="/ready") as found:
        bus = connect()
        key = run_sync(bus, create_key, (PERSON,)).text
        bus.close()
        yield GatewayPair(replace(found, token=key), Server(port, found.pid), connect)


async def serve(bus: Engine, chosen: argparse.Namespace) -> None:
    """Run until SIGTERM."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    limits = GatewayLimits(rates=dict.fromkeys(DEFAULT_RATES, NO_LIMIT))
    guarded = Gateway(bus, access=Access.by_token(TOKEN, loopback=True), limits=limits)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bus.aclose)
        for gateway, port in ((guarded, chosen.port), (Gateway(bus), chosen.open_port)):
            serving = asyncio.create_task(gateway.serve([listen("127.0.0.1", port)]))
            stack.push_async_callback(partial(_ended, serving))
            stack.callback(gateway.drain)
        if chosen.worker:
            service = WorkerService(bus, {ECHO_AGENT: EchoRunner()})
            working = asyncio.create_task(service.run())
            stack.push_async_callback(partial(_ended, working))
            stack.push_async_callback(service.drain)
        await leaving.wait()


async def _ended(task: asyncio.Task[None]) -> None:
    await task


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.support.gateway.two_gateways", description=__doc__)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--port", type=int, required=True, help="of the gateway that asks for keys")
    parser.add_argument("--open-port", type=int, required=True)
    parser.add_argument("--worker", action="store_true", help="answer the echo agent's mail as well")
    chosen = parser.parse_args()
    run(serve(connect(chosen.bus), chosen))


if __name__ == "__main__":
    main()
