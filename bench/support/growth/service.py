"""What requests, messages and a start cost on a log with so many conversations, in processor time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from bench.support.gateway.load_client import Server, all_answered_s
from bench.support.gateway.service_scale import body, new_names
from bench.support.gateway.stream_client import following
from bench.support.growth.fill import SESSIONS_PER_OWNER, conversation_name
from bench.support.processes import ECHO_AGENT, TOKEN, cpu_s, process, resident_kb, server
from bench.support.report import run
from bench.support.worker.drain import ONE_WORD

NO_SWEEP = {"MAGENT2_RETENTION_TOKENS_AFTER_S": "off"}  # a sweep is measured by itself
CONNECTIONS = 8
LISTENERS = 64  # conversations that get messages
PAGE = 50
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the system counts processor time in ticks


@dataclass(frozen=True, slots=True)
class Processes:
    """A gateway and a worker, and the processor time of all that they use."""

    gateway: Server
    worker_pid: int
    server_s: Callable[[], float]  # processor time of the store, if it is a process of its own

    def cpu_s(self) -> float:
        return cpu_s(self.gateway.pid) + cpu_s(self.worker_pid) + self.server_s()


@contextmanager
def processes(bus_url: str, server_s: Callable[[], float]) -> Iterator[Processes]:
    """A gateway process and a worker process that answers with echo."""
    gateway = ("magent2.gateway", "--bus", bus_url, "--token", TOKEN)
    worker = ("magent2.worker", "--bus", bus_url, "--agent", ECHO_AGENT)
    with server(*gateway, token=TOKEN, path="/ready") as found, process(*worker, variables=NO_SWEEP) as child:
        run(_answered(found, new_names(1), 1))
        yield Processes(found, child.pid, server_s)


def start_ms(bus_url: str, server_s: Callable[[], float]) -> float:
    """Processor time from the start of `magent2 serve` until its first message is answered."""
    serve = ("magent2.cli", "serve", "--bus", bus_url, "--token", TOKEN, "--agent", ECHO_AGENT)
    before = server_s()
    with server(*serve, token=TOKEN, path="/ready", variables=NO_SWEEP) as found:
        run(_answered(found, new_names(1), 1))
        return (cpu_s(found.pid) + server_s() - before) * 1e3


def message_ms(found: Processes, conversations: int, messages: int, rounds: int) -> float:
    """Processor time of a message from `POST /send` until it is answered, in conversations all over the log."""
    chosen = min(LISTENERS, conversations)
    names = tuple(conversation_name(number * conversations // chosen) for number in range(chosen))
    return run(_message_ms(found, names, messages, rounds))


async def _message_ms(found: Processes, names: tuple[str, ...], messages: int, rounds: int) -> float:
    turns = []
    for _ in range(rounds + 1):  # the first one warms up
        used = await _answered(found.gateway, names, messages, found.cpu_s)
        turns.append(max(used, TICK_S) / messages * 1e3)
    return median(turns[1:])


async def _answered(
    gateway: Server, names: tuple[str, ...], messages: int, cpu_now_s: Callable[[], float] = time.process_time
) -> float:
    """Processor time until messages to these conversations are answered, without that of opening the streams."""
    (used,) = await answered_s(gateway, names, messages, lambda: (cpu_now_s(),))
    return used


async def answered_s(
    gateway: Server,
    names: tuple[str, ...],
    messages: int,
    cpu_now_s: Callable[[], tuple[float, ...]],
    text: str = ONE_WORD,
) -> tuple[float, ...]:
    """Like `_answered`, for several processes at once. The answer is the text, and has as many tokens as words."""
    requests = [gateway.post("/send", body(names[n % len(names)], ECHO_AGENT, text)) for n in range(messages)]
    shares = [len(range(number, messages, len(names))) for number in range(len(names))]
    async with following(gateway, names) as listeners:
        # A stream shows the earlier answers first.
        before = [one.outputs for one in listeners]
        begun = cpu_now_s()
        await all_answered_s(gateway, requests, CONNECTIONS)
        waits = zip(listeners, before, shares, strict=True)
        await asyncio.gather(*(one.heard(seen + share) for one, seen, share in waits))
        return tuple(now - then for now, then in zip(cpu_now_s(), begun, strict=True))


def request_paths(conversations: int) -> dict[str, str]:
    """Requests whose cost may grow with the log, by name. The search finds nothing, so it reads as far as it may."""
    owner = f"user:{(conversations - 1) // SESSIONS_PER_OWNER}"
    return {
        "list": f"/api/sdk/sessions?limit={PAGE}",
        "owner_list": f"/api/sdk/sessions?limit={PAGE}&owner={owner}",
        "failed_list": f"/api/sdk/sessions?limit={PAGE}&state=failed",
        "search": f"/api/sdk/sessions?limit={PAGE}&q=no+such+offer",
        "counts": "/api/sdk/sessions/counts",
        "metrics": "/metrics",
        "workers": "/api/workers",
    }


def request_ms(found: Processes, path: str, requests: int, rounds: int) -> float:
    """Processor time of one request."""
    return run(_request_ms(found, found.gateway.get(path), requests, rounds))


async def _request_ms(found: Processes, request: bytes, requests: int, rounds: int) -> float:
    turns = []
    for _ in range(rounds + 1):  # the first one warms up
        begun = found.cpu_s()
        await all_answered_s(found.gateway, [request] * requests, 1)
        turns.append(max(found.cpu_s() - begun, TICK_S) / requests * 1e3)
    return median(turns[1:])


def resident_mb(pid: int) -> float:
    return resident_kb(pid) / 1024
