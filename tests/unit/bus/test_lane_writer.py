"""The writer of a lane: order, one append in flight, and what happens when an append fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magent2.bus.lane_writer import AHEAD_MAX, LaneWriter
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import (
    RECORDS_PER_APPEND_MAX,
    Claim,
    Describe,
    LastSeqIs,
    Leave,
    OwnedAppend,
    SetHead,
    Settle,
)
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.retry import BUS_RETRY_FIRST_S
from magent2.errors import (
    BusUnavailable,
    ConditionFailed,
    Fenced,
    Magent2Error,
    PayloadTooLarge,
    StorageCorrupt,
    StorageFull,
    WriterClosed,
)
from tests.support.audit import whole_log
from tests.support.audited_lane import mail_to
from tests.support.flaky_engine import FlakyEngine
from tests.support.worker_fixture import until

AGENT, TOPIC = "Ada", "stream:one"


class OwnedLane:
    """A claimed lane, its writer, and the engine underneath."""

    def __init__(self, mail: int = 1) -> None:
        self.bus = FlakyEngine(MemoryBus())
        self.bus.call(mail_to(AGENT, ["one"] * mail))
        self.lane = self.claim("w1")
        self.bus.writes.clear()
        self.writer = LaneWriter(self.bus, self.lane.owner)

    def claim(self, worker: str) -> ClaimedLane:
        (lane,) = self.bus.call(Claim(worker=worker, agents=(AGENT,), limit=1, lease_s=60.0)).lanes
        return lane

    def take_away(self) -> None:
        self.bus.call(Leave("w1"))
        self.claim("w2")

    @property
    def refs(self) -> Any:
        return tuple(record.ref for record in self.lane.mail)

    def written(self) -> list[int]:
        return [record.payload["n"] for record in whole_log(self.bus, TOPIC)]


@pytest.fixture
async def lane() -> AsyncIterator[OwnedLane]:
    lane = OwnedLane()
    yield lane
    lane.bus.close()


def note(n: int) -> NewRecord:
    return NewRecord(TOPIC, {"n": n})


# --- order and coalescing


async def test_records_come_in_the_order_they_were_put(lane: OwnedLane) -> None:
    for n in range(50):
        await lane.writer.put(note(n))
        if n % 7 == 0:
            await asyncio.sleep(0)
    await lane.writer.commit(note(50))

    assert lane.written() == list(range(51))


async def test_commit_returns_when_it_is_on_the_log_with_all_before_it(lane: OwnedLane) -> None:
    await lane.writer.put(note(1))
    await lane.writer.commit(note(2))

    assert lane.written() == [1, 2]


async def test_one_append_is_in_flight_and_the_next_carries_all_that_queued_meanwhile(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(0))
    await until(lambda: lane.bus.in_flight)
    for n in range(1, AHEAD_MAX):
        await lane.writer.put(note(n))
    lane.bus.gate.set()
    await lane.writer.commit(note(AHEAD_MAX))

    assert [len(write.records) for write in lane.bus.writes if isinstance(write, OwnedAppend)] == [1, AHEAD_MAX]
    assert lane.bus.in_flight_max == 1


async def test_numbers_of_appends_have_no_gaps(lane: OwnedLane) -> None:
    for n in range(3):
        await lane.writer.commit(note(n))

    assert [write.n for write in lane.bus.writes if isinstance(write, OwnedAppend)] == [1, 2, 3]


async def test_more_than_one_append_holds_goes_in_several(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(0))
    await until(lambda: lane.bus.in_flight)
    commits = [asyncio.create_task(lane.writer.commit(note(n))) for n in range(1, RECORDS_PER_APPEND_MAX + 5)]
    await asyncio.sleep(0)
    lane.bus.gate.set()
    await lane.writer.settle(lane.refs, note(-1))
    await asyncio.gather(*commits)

    assert lane.written() == [*range(RECORDS_PER_APPEND_MAX + 5), -1]
    sizes = [len(write.records) for write in lane.bus.writes if isinstance(write, OwnedAppend | Settle)]
    assert sizes == [1, RECORDS_PER_APPEND_MAX, 4, 1]


async def test_a_run_that_writes_faster_than_the_bus_waits_and_loses_nothing(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    put = 0

    async def write() -> None:
        nonlocal put
        for put in range(10 * AHEAD_MAX):
            await lane.writer.put(note(put))

    writing = asyncio.create_task(write())
    await until(lambda: lane.bus.in_flight and lane.writer.full())
    assert put <= 2 * AHEAD_MAX
    assert not writing.done()
    lane.bus.gate.set()
    await writing
    await lane.writer.settle(lane.refs)

    assert lane.written() == list(range(10 * AHEAD_MAX))


async def test_mail_and_heads_go_with_the_records(lane: OwnedLane) -> None:
    await lane.writer.put(note(1), heads=(SetHead(TOPIC, {"title": "old", "status": "running"}),))
    await lane.writer.commit(note(2), mail=lane.refs, heads=(SetHead(TOPIC, {"title": "new"}),))

    assert lane.bus.call(Describe((TOPIC,)))[0].head == {"title": "new", "status": "running"}
    assert lane.bus.call(Claim(worker="w2", agents=(AGENT,), limit=1, lease_s=60.0)).lanes == ()


# --- the end


async def test_settle_carries_what_is_queued(lane: OwnedLane) -> None:
    await lane.writer.put(note(1), heads=(SetHead(TOPIC, {"status": "running"}),))
    await lane.writer.put(note(2))
    await lane.writer.settle(lane.refs, note(3), heads=(SetHead(TOPIC, {"status": "finished"}),))

    assert lane.written() == [1, 2, 3]
    assert [type(write) for write in lane.bus.writes] == [Settle]
    assert lane.bus.call(Describe((TOPIC,)))[0].head == {"status": "finished"}


async def test_settle_waits_for_the_append_in_flight(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(1))
    await until(lambda: lane.bus.in_flight)
    settling = asyncio.create_task(lane.writer.settle(lane.refs, note(2)))
    lane.bus.gate.set()
    await settling

    assert lane.written() == [1, 2]
    assert lane.bus.in_flight_max == 1


async def test_later_carries_what_is_queued_and_keeps_the_mail(lane: OwnedLane) -> None:
    await lane.writer.put(note(1))
    await lane.writer.later(0, note(2))

    assert lane.written() == [1, 2]
    assert lane.claim("w2").attempt == 2


async def give_up(lane: OwnedLane, how: str) -> None:
    """Begin the end of the work on the lane."""
    await (lane.writer.settle(lane.refs, note(9)) if how == "settle" else lane.writer.later(0, note(9)))


@pytest.mark.parametrize("how", ["settle", "later"])
async def test_writes_after_the_end_are_refused_by_name(lane: OwnedLane, how: str) -> None:
    await give_up(lane, how)

    with pytest.raises(WriterClosed, match="given up"):
        await lane.writer.put(note(1))
    with pytest.raises(WriterClosed, match="given up"):
        await lane.writer.commit(note(1))
    assert lane.written() == [9]


@pytest.mark.parametrize("how", ["settle", "later"])
async def test_writes_while_the_last_append_is_in_flight_are_refused_by_name(lane: OwnedLane, how: str) -> None:
    lane.bus.gate.clear()
    ending = asyncio.create_task(give_up(lane, how))
    await until(lambda: lane.bus.in_flight)

    with pytest.raises(WriterClosed, match="given up"):
        await lane.writer.put(note(1))
    with pytest.raises(WriterClosed, match="given up"):
        await lane.writer.commit(note(1))
    lane.bus.gate.set()
    await ending
    assert lane.written() == [9]


@pytest.mark.parametrize("how", ["settle", "later"])
async def test_writes_while_the_last_append_waits_for_another_are_refused_by_name(lane: OwnedLane, how: str) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(1))
    await until(lambda: lane.bus.in_flight)
    await lane.writer.put(note(2))
    ending = asyncio.create_task(give_up(lane, how))
    await asyncio.sleep(0)

    with pytest.raises(WriterClosed):
        await lane.writer.put(note(3))
    with pytest.raises(WriterClosed):
        await lane.writer.commit(note(3))
    lane.bus.gate.set()
    await ending
    assert lane.written() == [1, 2, 9]


async def test_a_closed_writer_takes_no_late_tokens_and_settles_what_came_before(lane: OwnedLane) -> None:
    await lane.writer.put(note(1))
    lane.writer.close()

    with pytest.raises(WriterClosed, match="given up"):
        lane.writer.put_nowait(note(2))
    await lane.writer.settle(lane.refs, note(9))
    assert lane.written() == [1, 9]


async def test_a_put_that_waits_for_room_is_refused_when_the_writer_closes(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(0))
    await until(lambda: lane.bus.in_flight)
    while not lane.writer.full():
        await lane.writer.put(note(1))
    late = asyncio.create_task(lane.writer.put(note(2)))
    await asyncio.sleep(0)

    lane.writer.close()
    lane.bus.gate.set()

    with pytest.raises(WriterClosed):
        await late
    await lane.writer.settle(lane.refs)
    assert lane.written() == [0, *[1] * AHEAD_MAX]


# --- what fails


async def test_an_owner_that_was_fenced_is_told_at_every_call(lane: OwnedLane) -> None:
    lane.take_away()

    with pytest.raises(Fenced):
        await lane.writer.commit(note(1))
    with pytest.raises(Fenced):
        await lane.writer.put(note(2))
    with pytest.raises(Fenced):
        await lane.writer.settle(lane.refs)
    assert isinstance(lane.writer.failure, Fenced)
    assert lane.written() == []


async def test_a_condition_that_does_not_hold_fails_its_commit_alone(lane: OwnedLane) -> None:
    await lane.writer.put(note(1))
    with pytest.raises(ConditionFailed):
        await lane.writer.commit(note(2), conditions=(LastSeqIs("history:one", 7),))
    await lane.writer.commit(note(3), conditions=(LastSeqIs("history:one", 0),))
    await lane.writer.settle(lane.refs, note(4))

    assert lane.written() == [1, 3, 4]


async def test_records_queued_around_a_refused_commit_are_kept(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    await lane.writer.put(note(1))
    refused = asyncio.create_task(lane.writer.commit(note(2), conditions=(LastSeqIs("history:one", 7),)))
    await asyncio.sleep(0)
    await lane.writer.put(note(3))
    lane.bus.gate.set()

    with pytest.raises(ConditionFailed):
        await refused
    await lane.writer.settle(lane.refs)
    assert lane.written() == [1, 3]


async def test_a_refused_record_fails_the_run_but_the_lane_can_still_be_given_up(lane: OwnedLane) -> None:
    await lane.writer.commit(note(0))
    await lane.writer.put(NewRecord(TOPIC, {"n": "x" * (2 << 20)}))
    with pytest.raises(PayloadTooLarge):
        await lane.writer.commit(note(1))
    with pytest.raises(PayloadTooLarge):
        await lane.writer.settle(lane.refs)

    lane.writer.forget_refusal()
    await lane.writer.settle(lane.refs, note(2))

    assert lane.written() == [0, 2]


@pytest.mark.parametrize("how", ["commit", "settle"])
async def test_after_a_refusal_was_forgotten_the_run_can_write_on(lane: OwnedLane, how: str) -> None:
    large = NewRecord(TOPIC, {"n": "x" * (2 << 20)})
    with pytest.raises(PayloadTooLarge):
        await (lane.writer.commit(large) if how == "commit" else lane.writer.settle(lane.refs, large))

    lane.writer.forget_refusal()
    await lane.writer.commit(note(1))
    await lane.writer.settle(lane.refs, note(2))

    assert lane.written() == [1, 2]


async def test_a_fence_is_not_forgotten(lane: OwnedLane) -> None:
    lane.take_away()
    with pytest.raises(Fenced):
        await lane.writer.commit(note(1))

    lane.writer.forget_refusal()

    with pytest.raises(Fenced):
        await lane.writer.settle(lane.refs)


# --- a bus that is away


@pytest.mark.parametrize("error", [BusUnavailable("away"), StorageFull("full")])
async def test_the_same_append_is_tried_again_until_the_bus_answers(
    lane: OwnedLane, error: Magent2Error, caplog: pytest.LogCaptureFixture
) -> None:
    lane.bus.before.append(error)

    with caplog.at_level(logging.WARNING):
        await lane.writer.commit(note(1))

    assert lane.written() == [1]
    assert len(lane.bus.writes) == 2
    assert lane.bus.writes[0] is lane.bus.writes[1]
    assert "waiting for the bus" in caplog.text
    assert BUS_RETRY_FIRST_S <= 0.1


async def test_a_lost_reply_doubles_nothing(lane: OwnedLane) -> None:
    lane.bus.after.append(BusUnavailable("the reply was lost"))
    await lane.writer.commit(note(1))
    lane.bus.after.append(BusUnavailable("the reply was lost"))
    await lane.writer.settle(lane.refs, note(2))

    assert lane.written() == [1, 2]


async def test_what_a_person_must_mend_is_raised(lane: OwnedLane) -> None:
    lane.bus.before.append(StorageCorrupt("damaged"))

    with pytest.raises(StorageCorrupt):
        await lane.writer.commit(note(1))
    assert isinstance(lane.writer.failure, StorageCorrupt)


async def test_a_cancelled_commit_still_happens(lane: OwnedLane) -> None:
    lane.bus.gate.clear()
    committing = asyncio.create_task(lane.writer.commit(note(1)))
    await until(lambda: lane.bus.in_flight)
    committing.cancel()
    lane.bus.gate.set()
    await lane.writer.settle(lane.refs, note(2))

    assert lane.written() == [1, 2]
