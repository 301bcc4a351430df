"""The frames that a gateway keeps for its streams: limited by bytes, and dropped when nothing happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.gateway.streaming.fanout import Fanout, StreamTail
from tests.support.waiting import until

TEXT = "x" * 100_000


class Reader:
    def wake(self) -> None:
        """Nothing waits here."""


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


async def follow(fanout: Fanout, bus: MemoryBus, reader: Reader, *names: str) -> list[StreamTail]:
    """Follow conversations and let each of them get a large event, one after another."""
    tails: list[StreamTail] = []
    for name in names:
        tail = fanout.join(name, reader)
        tail.begin(0)
        payload = {"event": "output", "conversation_id": name, "text": TEXT}
        bus.call(Append(records=(NewRecord(f"stream:{name}", payload),)))
        await until(lambda tail=tail: tail.last == 1)  # type: ignore[misc]
        tails.append(tail)
    return tails


async def test_the_frames_of_all_conversations_are_limited_by_bytes(bus: MemoryBus) -> None:
    fanout, reader = Fanout(bus, frames_max_bytes=250_000), Reader()

    tails = await follow(fanout, bus, reader, "one", "two", "three")

    assert [tail.after(0) is None for tail in tails] == [True, False, False]
    assert fanout.frames_bytes <= 250_000
    for tail in tails:
        fanout.leave(tail, reader)
    assert fanout.frames_bytes == 0


async def test_frames_are_dropped_when_nothing_happens(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.gateway.streaming.fanout.FOLLOW_SWEEP_S", 0.01)
    monkeypatch.setattr("magent2.gateway.streaming.fanout.FRAMES_IDLE_S", 0.0)
    fanout, reader = Fanout(bus), Reader()

    (tail,) = await follow(fanout, bus, reader, "one")

    await until(lambda: fanout.frames_bytes == 0)
    assert (tail.after(0), tail.after(1)) == (None, [])
    fanout.leave(tail, reader)
