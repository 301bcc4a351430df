"""Gateways that tell each other whom they have let in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe
from magent2.bus.records import NewRecord
from magent2.gateway.limits import RequestRate
from magent2.gateway.limits import rate_limits as counts
from magent2.gateway.limits.rate_limits import BUCKETS_PER_RECORD, SharedRequestRates
from magent2.gateway.problems import Problem
from magent2.models.address import counts_topic
from magent2.settings import PAYLOAD_CAP_MIN_BYTES
from tests.support.worker_fixture import until

NEVER = 0.000_001  # a second; what was taken does not come back within a test
BURST = 50


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "SHARE_S", 0.001)


@pytest.fixture
async def gateway(bus: MemoryBus) -> AsyncIterator[Callable[[], SharedRequestRates]]:
    made: list[SharedRequestRates] = []

    def make() -> SharedRequestRates:
        made.append(SharedRequestRates(bus, {"send": RequestRate(NEVER, BURST)}))
        made[-1].open()
        return made[-1]

    yield make
    for one in made:
        one.close()


async def left(rates: SharedRequestRates, name: str = "ann") -> int:
    """What somebody may still have."""
    for number in range(2 * BURST):
        try:
            rates.take(name, "send")
        except Problem:
            return number
    raise AssertionError("nobody was refused")


async def listening(bus: MemoryBus, gateways: int) -> None:
    await until(lambda: len(bus._hub._watches.get(counts_topic(), ())) == gateways)


def told(bus: MemoryBus) -> int:
    return sum(sum(record.payload["counts"].values()) for record in bus.read(counts_topic(), limit=1000))


async def test_a_gateway_hears_of_the_others_and_not_of_itself(
    bus: MemoryBus, gateway: Callable[[], SharedRequestRates]
) -> None:
    first, second = gateway(), gateway()
    await listening(bus, 2)
    for _ in range(10):
        first.take("ann", "send")

    await until(lambda: second._full_at)

    assert await left(first) == BURST - 10
    await until(lambda: told(bus) == BURST)


async def test_as_many_fit_into_a_record_as_the_smallest_payload_takes() -> None:
    bus = MemoryBus(payload_max_bytes=PAYLOAD_CAP_MIN_BYTES)
    rates = SharedRequestRates(bus, {"stream": RequestRate(NEVER, BURST)})
    try:
        for number in range(3 * BUCKETS_PER_RECORD):
            for _ in range(BURST):
                rates.take(f"user:{number}", "stream")
        await until(lambda: told(bus) == 3 * BUCKETS_PER_RECORD * BURST)
        assert len(bus.read(counts_topic())) == 3
    finally:
        rates.close()
        await bus.aclose()


async def test_old_counts_go(
    bus: MemoryBus, gateway: Callable[[], SharedRequestRates], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "KEPT_RECORDS", 2)
    monkeypatch.setattr(counts, "TRIM_EVERY_APPENDS", 5)
    rates = gateway()
    for number in range(5):
        rates.take("ann", "send")
        await until(partial(_has, bus, number + 1))

    await until(lambda: bus.call(Describe((counts_topic(),)))[0].floor == 3)


def _has(bus: MemoryBus, records: int) -> bool:
    return bus.call(Describe((counts_topic(),)))[0].last == records


async def test_what_is_no_count_is_passed_over(bus: MemoryBus, gateway: Callable[[], SharedRequestRates]) -> None:
    rates = gateway()
    await listening(bus, 1)
    payloads: list[dict[str, Any]] = [
        {},
        {"counts": 5},
        {"counts": {"send:x": "many"}},
        {"counts": {"send:x": -9}},
        {"counts": {"send:x": 7}},
    ]
    for payload in payloads:
        bus.call(Append(records=(NewRecord(counts_topic(), payload),)))

    await until(lambda: rates._full_at)

    assert list(rates._full_at) == ["send:x"]
