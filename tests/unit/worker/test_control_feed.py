"""The feed of new commands to the agents of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Leave, OwnedAppend, Settle, Trim
from magent2.bus.records import NewRecord, Record
from magent2.worker.control_feed import PAGE, ControlFeed
from tests.support.worker_fixture import AGENT

TOPIC = f"control:{AGENT}"


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def post(bus: MemoryBus, count: int = 1) -> None:
    for _ in range(count):
        bus.call(Append(records=(NewRecord(TOPIC, {"conversation_id": "one", "content": "stop"}),)))


async def follow(bus: MemoryBus) -> ControlFeed:
    controls = ControlFeed(bus, (AGENT, "Bob"), "w1")
    await controls.begin()
    return controls


def seqs(records: list[Record]) -> list[int]:
    return [record.seq for record in records]


async def test_records_from_before_the_start_are_not_new(bus: MemoryBus) -> None:
    post(bus, 3)
    controls = await follow(bus)
    controls.note([TOPIC])

    assert await controls.read() == []


async def test_each_command_is_read_once(bus: MemoryBus) -> None:
    controls = await follow(bus)
    post(bus, 2)
    controls.note([TOPIC])

    assert seqs(await controls.read()) == [1, 2]
    controls.note([TOPIC])
    assert await controls.read() == []


async def test_nothing_is_read_without_a_notification(bus: MemoryBus) -> None:
    controls = await follow(bus)
    post(bus)
    controls.note([f"chat:{AGENT}", "control:Cid"])

    assert not controls.waiting
    assert await controls.read() == []


async def test_more_than_a_page_takes_several_reads(bus: MemoryBus) -> None:
    controls = await follow(bus)
    post(bus, PAGE + 1)
    controls.note([TOPIC])

    assert len(await controls.read()) == PAGE
    assert controls.waiting
    assert seqs(await controls.read()) == [PAGE + 1]
    assert not controls.waiting


async def test_the_longer_the_log_the_more_claims_it_may_take_to_sort(bus: MemoryBus) -> None:
    post(bus, PAGE + 1)

    assert await ControlFeed(bus, (AGENT,), "w1").begin() == 2


async def test_a_cursor_below_the_floor_continues_at_the_floor(bus: MemoryBus) -> None:
    controls = await follow(bus)
    post(bus, 3)
    (lane,) = bus.call(Claim(worker="w2", agents=(AGENT,), limit=1, lease_s=60.0)).lanes
    bus.call(Settle(owner=lane.owner, mail=tuple(record.ref for record in lane.mail)))
    bus.call(Trim(TOPIC, keep=1))
    controls.note([TOPIC])

    assert await controls.read() == []
    assert controls.waiting
    assert seqs(await controls.read()) == [3]


async def test_a_command_lies_in_its_lane_until_it_is_settled_or_the_lane_is_lost(bus: MemoryBus) -> None:
    controls = await follow(bus)
    post(bus, 2)
    controls.note([TOPIC])
    first, second = await controls.read()
    (lane,) = bus.call(Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=60)).lanes
    assert await controls.lies_in(lane.owner, first)

    bus.call(OwnedAppend(owner=lane.owner, n=1, mail=(first.ref,)))
    assert not await controls.lies_in(lane.owner, first)
    assert await controls.lies_in(lane.owner, second)

    bus.call(Leave("w1"))
    assert not await controls.lies_in(lane.owner, second)
