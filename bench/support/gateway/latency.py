"""The time from the POST of a message until a connected client has the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import orjson

from bench.support.bus.redis_pong import PING, PONG, patient
from bench.support.bus.wake import PAUSE_S
from bench.support.gateway.load_client import RequestConnection, Server
from bench.support.gateway.service_scale import ServiceScale, Site, body, new_names
from bench.support.gateway.stream_client import Listener, following
from bench.support.postgres_server import raw_notifications
from bench.support.processes import ECHO_AGENT, process
from bench.support.report import Pair, paired, run
from bench.support.worker.drain import ONE_WORD

Sample = Callable[[], Awaitable[float]]  # milliseconds
Wakes = Callable[[], AbstractAsyncContextManager[Sample]]


@dataclass(slots=True)
class Latency:
    """`pair` has the p50 beside the floor, turn by turn; the rest is over all samples of all turns."""

    pair: Pair
    samples_ms: list[float] = field(repr=False)

    def percentile_ms(self, percent: int) -> float:
        return quantiles(self.samples_ms, n=100, method="inclusive")[percent - 1]


def redis_latency(url: str, site: Site, scale: ServiceScale) -> Latency:
    with process("bench.support.bus.redis_pong", url):
        return run(_latency(site, scale, lambda: stream_wakes(url)))


def postgres_latency(url: str, site: Site, scale: ServiceScale) -> Latency:
    return run(_latency(site, scale, lambda: notification_wakes(url)))


def sqlite_latency(site: Site, scale: ServiceScale) -> Latency:
    return run(_latency(site, scale, loop_wakes))


async def _latency(site: Site, scale: ServiceScale, wakes: Wakes) -> Latency:
    """The three are measured in turns; the floor of a turn is its p50 of a plain POST plus that of two wake-ups."""
    turns: list[tuple[float, float]] = []
    kept: list[float] = []
    async with wakes() as wake, plain_posts(site.echo) as plain:
        for turn in range(scale.rounds + 1):  # the first warms up
            async with _asked(site.gateway) as ask:
                samples = [(await ask(), await plain(), await wake()) for _ in range(scale.asks)]
            ours, posts, woken = zip(*samples, strict=True)
            if turn:
                turns.append((median(ours), median(posts) + median(woken)))
                kept += ours
    return Latency(paired(turns), kept)


@asynccontextmanager
async def _asked(server: Server) -> AsyncIterator[Sample]:
    (conversation,) = new_names(1)
    caller = await RequestConnection.dial(server)
    async with following(server, [conversation]) as (listener,):
        try:
            await _ask_ms(caller, server, conversation, listener)  # from here on the conversation has its agent
            yield lambda: _ask_ms(caller, server, conversation, listener)
        finally:
            caller.close()


async def _ask_ms(caller: RequestConnection, server: Server, conversation: str, listener: Listener) -> float:
    request = server.post("/send", body(conversation, ECHO_AGENT, ONE_WORD))
    await asyncio.sleep(PAUSE_S)  # so that all processes are idle at the start of each sample
    begun, wanted = time.perf_counter(), listener.outputs + 1
    sending = asyncio.ensure_future(caller.ask(request))
    answered = await listener.heard(wanted)
    await sending
    return (answered - begun) * 1e3


# --- the floor ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def plain_posts(server: Server) -> AsyncIterator[Sample]:
    caller = await RequestConnection.dial(server)

    async def sample() -> float:
        request = server.post("/echo", body("plain", ECHO_AGENT, ONE_WORD))
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        await caller.ask(request)
        return (time.perf_counter() - begun) * 1e3

    try:
        yield sample
    finally:
        caller.close()


@asynccontextmanager
async def stream_wakes(url: str) -> AsyncIterator[Sample]:
    """Two wake-ups: XADD, the other process's XREAD returns, it answers by XADD, and our XREAD returns."""
    cursors: dict[Any, Any] = {PONG: "0"}
    async with patient(url) as reader, patient(url) as writer:

        async def heard() -> float:
            news: Any = await reader.xread(cursors, block=0)
            cursors[PONG] = news[0][1][-1][0]
            return time.perf_counter()

        async def sample() -> float:
            payload = body("plain", ECHO_AGENT, ONE_WORD)
            hearing = asyncio.create_task(heard())
            await asyncio.sleep(PAUSE_S)
            begun = time.perf_counter()
            await writer.xadd(PING, {"payload": payload})
            return (await hearing - begun) * 1e3

        await sample()  # once it was answered, the other side is up
        yield sample


@asynccontextmanager
async def notification_wakes(url: str) -> AsyncIterator[Sample]:
    """Two wake-ups: twice an INSERT with NOTIFY, until the listener has read the row."""
    heard = asyncio.Event()

    async with raw_notifications(url, heard.set) as publish:

        async def sample() -> float:
            payload = orjson.dumps({"body": str(body("plain", ECHO_AGENT, ONE_WORD))}).decode()
            await asyncio.sleep(PAUSE_S)
            begun = time.perf_counter()
            for _ in range(2):
                heard.clear()
                await publish(payload)
                await heard.wait()
            return (time.perf_counter() - begun) * 1e3

        yield sample


@asynccontextmanager
async def loop_wakes() -> AsyncIterator[Sample]:
    """Two wake-ups in one process: a waiting task is woken and wakes the next."""

    async def sample() -> float:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()

        async def other() -> None:
            await first
            second.set_result(None)

        waiting = asyncio.create_task(other())
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        first.set_result(None)
        await second
        taken = time.perf_counter() - begun
        await waiting
        return taken * 1e3

    yield sample
