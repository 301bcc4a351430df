"""The PostgreSQL engine, compared with hand-written statements on the same server."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial

import orjson

from bench.support.bus.publish import new_batches, publish_s
from bench.support.bus.wake import Side, in_turns, publisher
from bench.support.postgres_server import raw_insert_s, raw_log, raw_notifications
from bench.support.redis_server import cancelled
from bench.support.report import Connect, Pair, Scale, compare, envelope, envelopes, paired, run
from magent2.bus.base import EngineBase
from magent2.bus.postgres import PostgresBus

PROCESSES = 4
PROCESS_CONCURRENCY = 64
INBOX = "chat:Ada"  # of one agent, to which all processes publish


def postgres_publish(url: str, connect: Connect, scale: Scale, concurrency: int) -> Pair:
    return run(_publish(url, connect(), scale, concurrency))


async def _publish(url: str, bus: EngineBase, scale: Scale, concurrency: int) -> Pair:
    fresh = new_batches(scale.publishes)
    with closing(raw_log(url)) as connection:

        async def raw() -> float:
            topic, batch = fresh()
            return scale.publishes / raw_insert_s(connection, topic, batch)

        async def ours() -> float:
            topic, batch = fresh()
            return scale.publishes / await publish_s(bus, topic, batch, concurrency)

        try:
            return await compare(raw, ours, scale.rounds)
        finally:
            await bus.aclose()


def postgres_publish_of_processes(url: str, prefix: str, scale: Scale) -> Pair:
    """Records per second of several processes that publish to one topic."""
    count = scale.publishes // PROCESSES
    turns = []
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:

        def per_s(work: Callable[[int, float], None]) -> float:
            """Start all at the same moment, when all have made their records."""
            start = time.time() + 0.5 + count / 20_000
            done = [pool.submit(work, count, start) for _ in range(PROCESSES)]
            for future in done:
                future.result()
            return PROCESSES * count / (time.time() - start)

        for _ in range(scale.rounds + 1):  # the first warms up
            raw = per_s(partial(_raw_process, url))
            turns.append((per_s(partial(_our_process, url, prefix)), raw))
    return paired(turns[1:])


def _raw_process(url: str, count: int, start: float) -> None:
    batch = envelopes("many", count)
    with closing(raw_log(url)) as connection:
        time.sleep(max(0.0, start - time.time()))
        raw_insert_s(connection, INBOX, batch)


def _our_process(url: str, prefix: str, count: int, start: float) -> None:
    batch = envelopes("many", count)

    async def publish() -> None:
        bus = PostgresBus(url, prefix=prefix)
        await publish_s(bus, INBOX, envelopes("many", 1), 1)
        await asyncio.sleep(max(0.0, start - time.time()))
        await publish_s(bus, INBOX, batch, PROCESS_CONCURRENCY)
        await bus.aclose()

    run(publish())


def postgres_wake(url: str, connect: Connect, scale: Scale) -> Pair:
    return run(_wake(url, connect, scale))


async def _wake(url: str, connect: Connect, scale: Scale) -> Pair:
    """Publisher and follower have a bus each, so that the notification goes over the server."""
    publishing_bus, following_bus = connect(), connect()
    name = "conversation"
    raw = Side(lambda _: publish_raw(orjson.dumps(envelope(name)).decode()), [name])
    ours = Side(publisher(publishing_bus), [name])

    async def follow() -> None:
        async for _ in following_bus.follow(f"chat:{name}", 0):
            ours.arrived()

    task = asyncio.create_task(follow())
    try:
        async with raw_notifications(url, raw.arrived) as publish_raw:
            await ours.ready([name])
            await raw.ready([name])
            return await in_turns(raw, ours, scale)
    finally:
        await cancelled([task])
        await publishing_bus.aclose()
        await following_bus.aclose()
