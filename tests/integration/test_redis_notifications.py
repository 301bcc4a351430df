"""Notifications carry records, so that a follower does not have to read them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magent2.bus.operations import Append, Operation, Read, SetHead
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine.functions import NOTIFICATION_MAX_BYTES
from magent2.bus.redis_engine.watch import NOTIFICATIONS_KEPT_MAX_BYTES
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis

TOPIC = "stream:one"


class ReadCountingBus(RedisBus):
    """Counts its reads."""

    reads = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        self.reads += isinstance(operation, Read)
        return await super().acall(operation)


@pytest.fixture
async def bus(redis_server: RedisServer) -> AsyncIterator[ReadCountingBus]:
    bus = ReadCountingBus(redis_server.url, prefix=uuid.uuid4().hex)
    yield bus
    await bus.aclose()


async def followed(bus: ReadCountingBus, count: int, *appends: Append) -> tuple[list[str], int]:
    """What a follower at the end of the topic receives, and how often it reads for it after the first time."""
    texts: list[str] = []
    listening = asyncio.Event()

    async def follow() -> None:
        async for record in bus.follow(TOPIC, 0):
            texts.append(str(record.payload["text"])[:9])
            listening.set()
            if len(texts) == count + 1:
                return

    follower = asyncio.create_task(follow())
    await bus.acall(appending("first"))
    await listening.wait()
    before = bus.reads
    for append in appends:
        await bus.acall(append)
    await follower
    return texts[1:], bus.reads - before


def appending(*texts: str, **options: Any) -> Append:
    records = tuple(NewRecord(TOPIC, {"text": text}, draft="d" if text.startswith("t") else None) for text in texts)
    return Append(records=records, **options)


async def test_all_records_of_an_append_come_along_also_when_the_head_is_set(bus: ReadCountingBus) -> None:
    head = SetHead(TOPIC, {"title": "One"})

    texts, reads = await followed(bus, 3, appending("token", "token 2", "closed\n\n", heads=(head,)))

    assert texts == ["token", "token 2", "closed\n\n"]
    assert reads <= 1  # the subscription may be confirmed only now, which is reported once without records


async def test_a_record_too_large_for_a_notification_is_read(bus: ReadCountingBus) -> None:
    texts, _ = await followed(bus, 2, appending("a" * NOTIFICATION_MAX_BYTES, "small"))

    assert texts == ["aaaaaaaaa", "small"]


async def test_appends_faster_than_their_reader_all_arrive_in_order(bus: ReadCountingBus) -> None:
    many = [f"number {number}" for number in range(NOTIFICATIONS_KEPT_MAX_BYTES // 50)]

    texts, _ = await followed(bus, len(many), *(appending(text) for text in many))

    assert texts == [text[:9] for text in many]
