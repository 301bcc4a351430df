"""The cost of idle clients: each follows a conversation without events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bench.support.gateway.load_client import Server
from bench.support.gateway.service_scale import ServiceScale, new_names
from bench.support.gateway.stream_client import following
from bench.support.processes import cpu_s, resident_kb
from bench.support.report import run

WARM_UP = 50  # clients before the first measurement
SETTLE_S = 1.0  # until the work of connecting is done


@dataclass(frozen=True, slots=True)
class Idle:
    """`alone_percent` is the same process without a client."""

    cpu_percent: float
    alone_percent: float
    rss_per_client_kb: float


def idle(server: Server, scale: ServiceScale) -> Idle:
    return run(_idle(server, scale))


async def _idle(server: Server, scale: ServiceScale) -> Idle:
    async with following(server, new_names(WARM_UP)):
        await asyncio.sleep(SETTLE_S)
    alone = await _cpu_percent(server.pid, scale.idle_s / 2)
    before = resident_kb(server.pid)
    async with following(server, new_names(scale.idle)):
        await asyncio.sleep(SETTLE_S)
        grown = resident_kb(server.pid) - before
        busy = await _cpu_percent(server.pid, scale.idle_s)
    return Idle(busy, alone, grown / scale.idle)


async def _cpu_percent(pid: int, seconds: float) -> float:
    """Of one processor."""
    before = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / seconds * 100
