"""The processes under measurement and those to compare with; none outlives the benchmark."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.support.gateway.load_client import Server, answers
from bench.support.redis_server import STOP_TIMEOUT_S, free_port
from bench.support.report import run
from magent2.gateway.limits import CONNECTIONS_MAX

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.05
TOKEN = "benchmark-token-of-no-worth"  # of a server that lives for minutes, on loopback
ECHO_AGENT, SDK_AGENT = "Echo", "Talker"
FOREIGN = ("MAGENT2_", "AGENT_", "OPENAI_", "REDIS_")  # variables that would change what is measured

# All clients of a benchmark have one address, which may use every connection of the gateway.
ONE_ADDRESS = {"MAGENT2_LIMIT_CONNECTIONS_PER_ADDRESS_MAX": str(CONNECTIONS_MAX)}


@contextmanager
def process(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module for the duration of the `with`. Its stdout is dropped, its stderr is shown."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | ONE_ADDRESS
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env=kept | dict(variables or {}),
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(STOP_TIMEOUT_S)


@contextmanager
def server(
    *arguments: str, token: str | None = None, path: str, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A process that serves HTTP on `--port`, once it answers there."""
    port = free_port()
    with process(*arguments, "--port", str(port), variables=variables) as child:
        found = Server(port, child.pid, token)
        run(_until_up(found, path, child))
        yield found


async def _until_up(found: Server, path: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await answers(found, found.get(path)):
        if child.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("bench: a server did not start; what it said stands above")
        await asyncio.sleep(LOOK_AGAIN_S)


@contextmanager
def echo_server() -> Iterator[Server]:
    """A plain FastAPI route under the same uvicorn set-up as the gateway."""
    with server("bench.support.gateway.echo_route", path="/health") as found:
        yield found


@contextmanager
def gateway_and_worker(bus_url: str) -> Iterator[Server]:
    """A process each; the worker answers with echo."""
    gateway = ("magent2.gateway", "--bus", bus_url, "--token", TOKEN)
    worker = ("magent2.worker", "--bus", bus_url, "--agent", ECHO_AGENT)
    with server(*gateway, token=TOKEN, path="/ready") as found, process(*worker):
        yield found


@contextmanager
def gateway_with_worker(bus_url: str, tokens: int) -> Iterator[Server]:
    """Gateway and worker in one process and on one loop, with the agent that echoes and the one of the SDK."""
    arguments = ("bench.support.gateway.service_process", "--bus", bus_url, "--token", TOKEN, "--tokens", str(tokens))
    with server(*arguments, token=TOKEN, path="/ready") as found:
        yield found


# --- resource use of a process (Linux) ---------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """User and system CPU time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def is_told() -> bool:
    return Path("/proc/self/statm").exists()
