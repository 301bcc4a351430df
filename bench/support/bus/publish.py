"""Published records per second: ours with deduplication, compared with a plain append without."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from statistics import median

import orjson
import redis
import redis.asyncio

from bench.support.redis_server import raw_publish_s, raw_sync_publish_s
from bench.support.report import Connect, Envelope, Pair, Scale, Stopwatch, compare, envelopes, paired, run
from magent2.bus.base import EngineBase, publishing
from magent2.bus.interface import BusMessage

REDIS_CONCURRENCY = 64
ROWS_PER_COMMIT = 100


async def publish_s(bus: EngineBase, topic: str, batch: list[Envelope], concurrency: int) -> float:
    """Seconds until all records are acknowledged, with this many concurrent publishers."""
    left = iter(batch)

    async def publisher() -> None:
        for item in left:
            await bus.acall(publishing(topic, BusMessage(topic, item, item["id"])))

    with Stopwatch() as watch:
        await asyncio.gather(*(publisher() for _ in range(concurrency)))
    return watch.seconds


def sync_publish_s(bus: EngineBase, topic: str, batch: list[Envelope]) -> float:
    with Stopwatch() as watch:
        for item in batch:
            bus.publish(topic, BusMessage(topic, item, item["id"]))
    return watch.seconds


def new_batches(count: int) -> Callable[[], tuple[str, list[Envelope]]]:
    """A conversation that is new each time, and its messages."""
    numbers = itertools.count()

    def fresh() -> tuple[str, list[Envelope]]:
        conversation = f"conversation-{next(numbers)}"
        return f"chat:{conversation}", envelopes(conversation, count)

    return fresh


def redis_publish(url: str, connect: Connect, scale: Scale) -> Pair:
    return run(_redis_publish(url, connect(), scale))


async def _redis_publish(url: str, bus: EngineBase, scale: Scale) -> Pair:
    fresh = new_batches(scale.publishes)
    async with redis.asyncio.Redis.from_url(url) as client:

        async def raw() -> float:
            topic, batch = fresh()
            return scale.publishes / await raw_publish_s(client, f"raw:{topic}", batch)

        async def ours() -> float:
            topic, batch = fresh()
            return scale.publishes / await publish_s(bus, topic, batch, REDIS_CONCURRENCY)

        try:
            return await compare(raw, ours, scale.rounds)
        finally:
            await bus.aclose()


def redis_sync_publish(url: str, connect: Connect, scale: Scale) -> Pair:
    fresh, bus = new_batches(scale.sync_publishes), connect()
    turns = []
    with redis.Redis.from_url(url) as client:
        for _ in range(scale.rounds + 1):  # the first warms up
            topic, batch = fresh()
            raw = scale.sync_publishes / raw_sync_publish_s(client, f"raw:{topic}", batch)
            topic, batch = fresh()
            turns.append((scale.sync_publishes / sync_publish_s(bus, topic, batch), raw))
    bus.close()
    return paired(turns[1:])


def sqlite_publish(raw_path: Path, connect: Connect, scale: Scale, concurrency: int) -> Pair:
    return run(_sqlite_publish(raw_path, connect(), scale, concurrency))


async def _sqlite_publish(raw_path: Path, bus: EngineBase, scale: Scale, concurrency: int) -> Pair:
    fresh, connection = new_batches(scale.publishes), raw_log(raw_path)

    async def raw() -> float:
        topic, batch = fresh()
        return scale.publishes / raw_insert_s(connection, topic, batch)

    async def ours() -> float:
        topic, batch = fresh()
        return scale.publishes / await publish_s(bus, topic, batch, concurrency)

    try:
        return await compare(raw, ours, scale.rounds)
    finally:
        connection.close()
        await bus.aclose()


def raw_log(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL)")
    return connection


def raw_insert_s(connection: sqlite3.Connection, topic: str, batch: list[Envelope]) -> float:
    with Stopwatch() as watch:
        for start in range(0, len(batch), ROWS_PER_COMMIT):
            rows = [(topic, orjson.dumps(item)) for item in batch[start : start + ROWS_PER_COMMIT]]
            connection.executemany("INSERT INTO log (topic, payload) VALUES (?, ?)", rows)
            connection.commit()
    return watch.seconds


def sync_publish(connect: Connect, scale: Scale) -> float:
    """Publishes per second through the v1 methods, as the median of the rounds."""
    fresh, bus = new_batches(scale.publishes), connect()
    figures = []
    for _ in range(scale.rounds):
        topic, batch = fresh()
        figures.append(scale.publishes / sync_publish_s(bus, topic, batch))
    bus.close()
    return median(figures)
