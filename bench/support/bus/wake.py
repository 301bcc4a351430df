"""The time from before a publish until a follower has the record."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from statistics import median

import orjson
import redis.asyncio

from bench.support.redis_server import cancelled, raw_follow
from bench.support.report import Connect, Pair, Scale, envelope, paired, run
from magent2.bus.base import EngineBase, publishing
from magent2.bus.interface import BusMessage

PAUSE_S = 0.001  # between samples, so that all followers are waiting at the start of each
READY_TIMEOUT_S = 60.0

Publish = Callable[[str], Awaitable[object]]


class Side:
    """One way to publish and follow on the same loop. `arrived` is called for each record that a follower gets."""

    def __init__(self, publish: Publish, conversations: list[str]) -> None:
        self._publish = publish
        self._next = itertools.cycle(conversations)
        self._count = 0
        self._at = 0.0
        self._news = asyncio.Event()

    def arrived(self) -> None:
        self._at = time.perf_counter()
        self._count += 1
        self._news.set()

    async def ready(self, conversations: list[str]) -> None:
        """Wait until each topic has delivered one record, so that every follower is known to run."""
        for conversation in conversations:
            await self._publish(conversation)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while self._count < len(conversations):
                self._news.clear()
                await self._news.wait()

    async def sample_ms(self) -> float:
        await asyncio.sleep(PAUSE_S)
        self._news.clear()
        begun = time.perf_counter()
        await self._publish(next(self._next))
        await self._news.wait()
        return (self._at - begun) * 1e3


def redis_wake(url: str, connect: Connect, scale: Scale, followed: int) -> tuple[Pair, float]:
    """Our followers of many topics compared with a blocking read of one; also the ms of a blocking read of all."""
    return run(_redis_wake(url, connect(), scale, followed))


async def _redis_wake(url: str, bus: EngineBase, scale: Scale, followed: int) -> tuple[Pair, float]:
    names = [f"conversation-{number}" for number in range(followed)]
    client, writer = _patient(url), _patient(url)
    ours, one = Side(publisher(bus), names), Side(_raw_publisher(writer, "one"), names[:1])
    many = Side(_raw_publisher(writer, "many"), names)
    tasks = [asyncio.create_task(_follow(bus, name, ours)) for name in names]
    tasks.append(asyncio.create_task(raw_follow(client, [f"one:{names[0]}"], one.arrived)))
    try:
        await ours.ready(names)
        await one.ready(names[:1])
        pair = await in_turns(one, ours, scale)
        tasks.append(asyncio.create_task(raw_follow(client, [f"many:{name}" for name in names], many.arrived)))
        await many.ready(names)
        return pair, median([await many.sample_ms() for _ in range(scale.wakes)])
    finally:
        await cancelled(tasks)
        await asyncio.gather(client.aclose(), writer.aclose(), bus.aclose())


def _patient(url: str) -> redis.asyncio.Redis:
    """A client without the default timeout of five seconds, for blocking reads."""
    return redis.asyncio.Redis.from_url(url, socket_timeout=None)


async def in_turns(raw: Side, ours: Side, scale: Scale) -> Pair:
    """Alternate the sides after every sample; a turn is the p50 of many samples."""
    turns = []
    for _ in range(scale.rounds + 1):  # the first warms up
        samples = [(await raw.sample_ms(), await ours.sample_ms()) for _ in range(scale.wakes)]
        turns.append((median(mine for _, mine in samples), median(theirs for theirs, _ in samples)))
    return paired(turns[1:])


def publisher(bus: EngineBase) -> Publish:
    async def publish(conversation: str) -> None:
        topic, payload = f"chat:{conversation}", envelope(conversation)
        await bus.acall(publishing(topic, BusMessage(topic, payload, payload["id"])))

    return publish


def _raw_publisher(client: redis.asyncio.Redis, prefix: str) -> Publish:
    async def publish(conversation: str) -> None:
        await client.xadd(f"{prefix}:{conversation}", {"payload": orjson.dumps(envelope(conversation))})

    return publish


async def _follow(bus: EngineBase, conversation: str, side: Side) -> None:
    async for _ in bus.follow(f"chat:{conversation}", 0):
        side.arrived()
