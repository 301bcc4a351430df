"""The pen of a run: order, one append in flight, and what happens when an append fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magent2.bus.lane_writer import QUEUE_MAX, OwnerLog
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
from magent2.bus.retry import RETRY_FIRST_S
from magent2.errors import (
    BusUnavailable,
    ConditionFailed,
    Fenced,
    Magent2Error,
    PayloadTooLarge,
    StorageCorrupt,
    StorageFull,
)
from tests.support.audit import whole_log
from tests.support.lane_work import mail_to
from tests.support.moody import Moody
from tests.support.serving import until

AGENT, TOPIC = "Ada", "stream:one"


class Pen:
    """A log, the engine under it, and the lane it belongs to."""

    def __init__(self, mail: int = 1) -> None:
        self.bus = Moody(MemoryBus())
        self.bus.call(mail_to(AGENT, ["one"] * mail))
        self.lane = self.claim("w1")
        self.bus.writes.clear()
        self.log = OwnerLog(self.bus, self.lane.owner)

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
async def pen() -> AsyncIterator[Pen]:
    pen = Pen()
    yield pen
    pen.bus.close()


def note(n: int) -> NewRecord:
    return NewRecord(TOPIC, {"n": n})


# --- order and coalescing


async def test_records_come_in_the_order_they_were_put(pen: Pen) -> None:
    for n in range(50):
        await pen.log.put(note(n))
        if n % 7 == 0:
            await asyncio.sleep(0)
    await pen.log.commit(note(50))

    assert pen.written() == list(range(51))


async def test_commit_returns_when_it_is_on_the_log_with_all_before_it(pen: Pen) -> None:
    await pen.log.put(note(1))
    await pen.log.commit(note(2))

    assert pen.written() == [1, 2]


async def test_one_append_is_in_flight_and_the_next_carries_all_that_queued_meanwhile(pen: Pen) -> None:
    pen.bus.gate.clear()
    await pen.log.put(note(0))
    await until(lambda: pen.bus.in_flight)
    for n in range(1, 100):
        await pen.log.put(note(n))
    pen.bus.gate.set()
    await pen.log.commit(note(100))

    assert [len(write.records) for write in pen.bus.writes if isinstance(write, OwnedAppend)] == [1, 100]
    assert pen.bus.in_flight_max == 1


async def test_numbers_of_appends_have_no_gaps(pen: Pen) -> None:
    for n in range(3):
        await pen.log.commit(note(n))

    assert [write.n for write in pen.bus.writes if isinstance(write, OwnedAppend)] == [1, 2, 3]


async def test_more_than_one_append_holds_goes_in_several(pen: Pen) -> None:
    for n in range(RECORDS_PER_APPEND_MAX + 5):
        await pen.log.put(note(n))
    await pen.log.settle(pen.refs, note(-1))

    assert pen.written() == [*range(RECORDS_PER_APPEND_MAX + 5), -1]
    assert [type(write) for write in pen.bus.writes] == [OwnedAppend, Settle]


async def test_who_writes_faster_than_the_bus_waits_and_loses_nothing(pen: Pen) -> None:
    pen.bus.gate.clear()
    put = 0

    async def write() -> None:
        nonlocal put
        for put in range(2 * QUEUE_MAX):
            await pen.log.put(note(put))

    writing = asyncio.create_task(write())
    await until(lambda: pen.bus.in_flight and put >= QUEUE_MAX)
    assert put <= QUEUE_MAX + RECORDS_PER_APPEND_MAX
    assert not writing.done()
    pen.bus.gate.set()
    await writing
    await pen.log.settle(pen.refs)

    assert pen.written() == list(range(2 * QUEUE_MAX))


async def test_mail_and_heads_go_with_the_records(pen: Pen) -> None:
    await pen.log.put(note(1), heads=(SetHead(TOPIC, {"title": "old", "status": "running"}),))
    await pen.log.commit(note(2), mail=pen.refs, heads=(SetHead(TOPIC, {"title": "new"}),))

    assert pen.bus.call(Describe((TOPIC,)))[0].head == {"title": "new", "status": "running"}
    assert pen.bus.call(Claim(worker="w2", agents=(AGENT,), limit=1, lease_s=60.0)).lanes == ()


# --- the end


async def test_settle_carries_what_is_queued(pen: Pen) -> None:
    await pen.log.put(note(1), heads=(SetHead(TOPIC, {"status": "running"}),))
    await pen.log.put(note(2))
    await pen.log.settle(pen.refs, note(3), heads=(SetHead(TOPIC, {"status": "finished"}),))

    assert pen.written() == [1, 2, 3]
    assert [type(write) for write in pen.bus.writes] == [Settle]
    assert pen.bus.call(Describe((TOPIC,)))[0].head == {"status": "finished"}


async def test_settle_waits_for_the_append_in_flight(pen: Pen) -> None:
    pen.bus.gate.clear()
    await pen.log.put(note(1))
    await until(lambda: pen.bus.in_flight)
    settling = asyncio.create_task(pen.log.settle(pen.refs, note(2)))
    pen.bus.gate.set()
    await settling

    assert pen.written() == [1, 2]
    assert pen.bus.in_flight_max == 1


async def test_later_carries_what_is_queued_and_keeps_the_mail(pen: Pen) -> None:
    await pen.log.put(note(1))
    await pen.log.later(0, note(2))

    assert pen.written() == [1, 2]
    assert pen.claim("w2").attempt == 2


async def test_whoever_writes_after_the_end_is_told(pen: Pen) -> None:
    await pen.log.settle(pen.refs)

    with pytest.raises(Fenced, match="given up"):
        await pen.log.put(note(1))
    with pytest.raises(Fenced, match="given up"):
        await pen.log.commit(note(1))


async def test_whoever_commits_while_the_lane_is_given_up_is_told_too(pen: Pen) -> None:
    pen.bus.gate.clear()
    settling = asyncio.create_task(pen.log.settle(pen.refs))
    await until(lambda: pen.bus.in_flight)
    late = asyncio.create_task(pen.log.commit(note(1)))
    await asyncio.sleep(0)
    pen.bus.gate.set()
    await settling

    with pytest.raises(Fenced, match="given up"):
        await late
    assert pen.written() == []


# --- what fails


async def test_an_owner_that_was_fenced_is_told_at_every_call(pen: Pen) -> None:
    pen.take_away()

    with pytest.raises(Fenced):
        await pen.log.commit(note(1))
    with pytest.raises(Fenced):
        await pen.log.put(note(2))
    with pytest.raises(Fenced):
        await pen.log.settle(pen.refs)
    assert isinstance(pen.log.failure, Fenced)
    assert pen.written() == []


async def test_a_condition_that_does_not_hold_fails_its_commit_alone(pen: Pen) -> None:
    await pen.log.put(note(1))
    with pytest.raises(ConditionFailed):
        await pen.log.commit(note(2), conditions=(LastSeqIs("history:one", 7),))
    await pen.log.commit(note(3), conditions=(LastSeqIs("history:one", 0),))
    await pen.log.settle(pen.refs, note(4))

    assert pen.written() == [1, 3, 4]


async def test_records_queued_around_a_refused_commit_are_kept(pen: Pen) -> None:
    pen.bus.gate.clear()
    await pen.log.put(note(1))
    refused = asyncio.create_task(pen.log.commit(note(2), conditions=(LastSeqIs("history:one", 7),)))
    await asyncio.sleep(0)
    await pen.log.put(note(3))
    pen.bus.gate.set()

    with pytest.raises(ConditionFailed):
        await refused
    await pen.log.settle(pen.refs)
    assert pen.written() == [1, 3]


async def test_a_refused_record_fails_the_run_but_the_lane_can_still_be_given_up(pen: Pen) -> None:
    await pen.log.commit(note(0))
    await pen.log.put(NewRecord(TOPIC, {"n": "x" * (2 << 20)}))
    with pytest.raises(PayloadTooLarge):
        await pen.log.commit(note(1))
    with pytest.raises(PayloadTooLarge):
        await pen.log.settle(pen.refs)

    pen.log.forget_refusal()
    await pen.log.settle(pen.refs, note(2))

    assert pen.written() == [0, 2]


@pytest.mark.parametrize("how", ["commit", "settle"])
async def test_after_a_refusal_was_forgotten_the_run_can_write_on(pen: Pen, how: str) -> None:
    large = NewRecord(TOPIC, {"n": "x" * (2 << 20)})
    with pytest.raises(PayloadTooLarge):
        await (pen.log.commit(large) if how == "commit" else pen.log.settle(pen.refs, large))

    pen.log.forget_refusal()
    await pen.log.commit(note(1))
    await pen.log.settle(pen.refs, note(2))

    assert pen.written() == [1, 2]


async def test_a_fence_is_not_forgotten(pen: Pen) -> None:
    pen.take_away()
    with pytest.raises(Fenced):
        await pen.log.commit(note(1))

    pen.log.forget_refusal()

    with pytest.raises(Fenced):
        await pen.log.settle(pen.refs)


# --- a bus that is away


@pytest.mark.parametrize("error", [BusUnavailable("away"), StorageFull("full")])
async def test_the_same_append_is_tried_again_until_the_bus_answers(
    pen: Pen, error: Magent2Error, caplog: pytest.LogCaptureFixture
) -> None:
    pen.bus.before.append(error)

    with caplog.at_level(logging.WARNING):
        await pen.log.commit(note(1))

    assert pen.written() == [1]
    assert len(pen.bus.writes) == 2
    assert pen.bus.writes[0] is pen.bus.writes[1]
    assert "waiting for the bus" in caplog.text
    assert RETRY_FIRST_S <= 0.1


async def test_a_lost_reply_doubles_nothing(pen: Pen) -> None:
    pen.bus.after.append(BusUnavailable("the reply was lost"))
    await pen.log.commit(note(1))
    pen.bus.after.append(BusUnavailable("the reply was lost"))
    await pen.log.settle(pen.refs, note(2))

    assert pen.written() == [1, 2]


async def test_what_a_person_must_mend_is_raised(pen: Pen) -> None:
    pen.bus.before.append(StorageCorrupt("damaged"))

    with pytest.raises(StorageCorrupt):
        await pen.log.commit(note(1))
    assert isinstance(pen.log.failure, StorageCorrupt)


async def test_a_cancelled_commit_still_happens(pen: Pen) -> None:
    pen.bus.gate.clear()
    committing = asyncio.create_task(pen.log.commit(note(1)))
    await until(lambda: pen.bus.in_flight)
    committing.cancel()
    pen.bus.gate.set()
    await pen.log.settle(pen.refs, note(2))

    assert pen.written() == [1, 2]
