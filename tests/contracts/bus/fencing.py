"""Fencing: only the current owner of a lane can write for it, and each of its appends happens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magent2.bus.operations import Delete, LastSeqIs, Later, OwnedAppend, Pending, PutBlob, SetHead, Settle, Workers
from magent2.bus.records import AppendResult, ClaimedLane, NewRecord, Owner
from magent2.errors import BlobMissing, ConditionFailed, CounterGap, Fenced, IdConflict, TopicDeleted
from tests.contracts.bus.driver import BusDriver, refs, texts
from tests.support.waiting import eventually

STREAM = "stream:c1"


def record(**payload: Any) -> NewRecord:
    return NewRecord(STREAM, payload)


def owned(owner: Owner, n: int, *records: NewRecord, **more: Any) -> OwnedAppend:
    return OwnedAppend(owner=owner, n=n, records=records, **more)


def held(bus: BusDriver) -> ClaimedLane:
    bus.mail("A", "c1", "hello")
    return bus.claim_one("w1")


def taken_over(bus: BusDriver) -> tuple[ClaimedLane, ClaimedLane]:
    """Return a zombie (an owner that has lost its lane) and its successor."""
    old = held(bus)
    bus.leave("w1")
    return old, bus.claim_one("w2")


def held_second(bus: BusDriver) -> ClaimedLane:
    """Return the second of two lanes of agent A that one worker holds."""
    bus.mail("A", "c1", "hello")
    return bus.claim("w1").lanes[1]


def taken_back(bus: BusDriver, worker: str) -> tuple[ClaimedLane, ...]:
    bus.leave(worker)
    return bus.claim("w9").lanes


WRITES: dict[str, Callable[[ClaimedLane], Any]] = {
    "append": lambda lane: owned(lane.owner, 1, record()),
    "settle": lambda lane: Settle(owner=lane.owner, mail=refs(lane), records=(record(),)),
    "later": lambda lane: Later(owner=lane.owner, delay_s=0, records=(record(),)),
    "park": lambda lane: Later(owner=lane.owner, delay_s=None, records=(record(),)),
}


class FencingTests:
    # --- zombies

    @pytest.mark.parametrize("write", WRITES)
    def test_whatever_a_zombie_writes_is_refused(self, bus: BusDriver, write: str) -> None:
        old, new = taken_over(bus)

        with pytest.raises(Fenced):
            bus.do(WRITES[write](old))

        assert bus.info(STREAM).last == 0
        assert texts(bus.do(Pending(new.owner))) == ["hello"]

    @pytest.mark.parametrize("write", WRITES)
    def test_a_worker_that_has_left_is_fenced_though_its_lane_has_no_new_owner(
        self, bus: BusDriver, write: str
    ) -> None:
        old = held(bus)
        bus.leave("w1")

        with pytest.raises(Fenced):
            bus.do(WRITES[write](old))

        assert bus.info(STREAM).last == 0
        assert bus.claimed("w2") == ["c1"]

    @pytest.mark.parametrize("write", WRITES)
    def test_an_owner_whose_lease_ran_out_may_write_until_another_takes_over(self, bus: BusDriver, write: str) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one("w1", lease_s=0.02)
        eventually(lambda: bus.do(Workers())[0].lease_s < 0)

        bus.do(WRITES[write](lane))

        assert bus.seqs(STREAM) == [1]

    def test_a_zombie_cannot_read_the_mail_of_the_lane(self, bus: BusDriver) -> None:
        old, _ = taken_over(bus)

        with pytest.raises(Fenced):
            bus.do(Pending(old.owner))

    def test_a_token_that_never_was_is_fenced(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim("w2", limit=0)

        with pytest.raises(Fenced):
            bus.do(owned(Owner("w1", "A", "c1", "w1/made-up/1"), 1, record()))
        with pytest.raises(Fenced):
            bus.do(owned(Owner("w1", "A", "never", ""), 1, record()))

    def test_a_worker_that_comes_back_under_its_name_does_not_own_what_it_held(self, bus: BusDriver) -> None:
        old = held(bus)
        bus.leave("w1")

        new = bus.claim_one("w1")

        assert new.owner.token != old.owner.token
        with pytest.raises(Fenced):
            bus.settle(old)
        bus.settle(new)

    def test_a_zombie_is_fenced_before_any_other_check(self, bus: BusDriver) -> None:
        old, _ = taken_over(bus)

        with pytest.raises(Fenced):
            bus.do(owned(old.owner, 7, record(), conditions=(LastSeqIs(STREAM, 9),)))

    # --- the counter

    def test_an_owner_appends_and_keeps_its_lane(self, bus: BusDriver) -> None:
        lane = held(bus)

        first = bus.do(owned(lane.owner, 1, record(n=1), record(n=2), NewRecord("history:c1", {})))
        second = bus.do(owned(lane.owner, 2, record(n=3)))

        assert (first, second) == (AppendResult((1, 2, 1)), AppendResult((3,)))
        assert bus.claimed("w2") == []
        assert bus.do(Pending(lane.owner)) == lane.mail

    def test_a_number_already_seen_appends_nothing_and_answers_as_the_first_time(self, bus: BusDriver) -> None:
        lane = held(bus)
        operation = owned(lane.owner, 1, record(), record())
        bus.do(operation)
        bus.put(STREAM)

        assert bus.do(operation) == AppendResult((1, 2), repeat=True)
        assert bus.seqs(STREAM) == [1, 2, 3]

    def test_an_older_number_is_a_repeat_whose_answer_is_forgotten(self, bus: BusDriver) -> None:
        lane = held(bus)
        bus.do(owned(lane.owner, 1, record()))
        bus.do(owned(lane.owner, 2, record()))

        assert bus.do(owned(lane.owner, 1, record())) == AppendResult((), repeat=True)
        assert bus.seqs(STREAM) == [1, 2]

    def test_a_number_that_skips_one_is_refused(self, bus: BusDriver) -> None:
        lane = held(bus)
        bus.do(owned(lane.owner, 1, record()))

        with pytest.raises(CounterGap):
            bus.do(owned(lane.owner, 3, record()))

        assert bus.do(owned(lane.owner, 2, record())) == AppendResult((2,))

    def test_the_first_number_is_one(self, bus: BusDriver) -> None:
        lane = held(bus)

        with pytest.raises(CounterGap):
            bus.do(owned(lane.owner, 2, record()))

        assert bus.info(STREAM).last == 0

    def test_each_owner_counts_from_one(self, bus: BusDriver) -> None:
        old = held(bus)
        bus.do(owned(old.owner, 1, record()))
        bus.leave("w1")

        new = bus.claim_one("w2")

        assert bus.do(owned(new.owner, 1, record())) == AppendResult((2,))

    def test_the_counter_is_checked_before_conditions(self, bus: BusDriver) -> None:
        lane = held(bus)
        operation = owned(lane.owner, 1, record(), conditions=(LastSeqIs(STREAM, 0),))
        bus.do(operation)

        assert bus.do(operation) == AppendResult((1,), repeat=True)
        with pytest.raises(CounterGap):
            bus.do(owned(lane.owner, 3, record(), conditions=(LastSeqIs(STREAM, 0),)))

    def test_a_refused_append_does_not_use_up_its_number(self, bus: BusDriver) -> None:
        lane = held(bus)

        with pytest.raises(ConditionFailed):
            bus.do(owned(lane.owner, 1, record(), conditions=(LastSeqIs(STREAM, 5),), mail=refs(lane)))

        assert texts(bus.do(Pending(lane.owner))) == ["hello"]
        assert bus.do(owned(lane.owner, 1, record())) == AppendResult((1,))

    # --- what an owner's append can do besides

    def test_an_append_removes_the_mail_that_it_has_seen(self, bus: BusDriver) -> None:
        lane = held(bus)
        steer = bus.mail("A", "c1", "steer")
        bus.mail("A", "c1", "next")
        bus.claim("w2", limit=0)

        bus.do(owned(lane.owner, 1, record(), mail=(steer,)))

        assert texts(bus.do(Pending(lane.owner))) == ["hello", "next"]

    def test_a_repeated_append_removes_no_more_mail(self, bus: BusDriver) -> None:
        lane = held(bus)
        steer = bus.mail("A", "c1", "steer")
        bus.claim("w2", limit=0)
        bus.do(owned(lane.owner, 1, record()))

        bus.do(owned(lane.owner, 1, record(), mail=(steer,)))

        assert texts(bus.do(Pending(lane.owner))) == ["hello", "steer"]

    def test_mail_seen_in_an_append_does_not_come_back_after_a_crash(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "hello")
        bus.mail("A", "c1", "steer")
        lane = bus.claim_one("w1")
        bus.do(owned(lane.owner, 1, record(), mail=(lane.mail[1].ref,)))

        bus.leave("w1")

        new = bus.claim_one("w2")
        assert (texts(new.mail), new.attempt, new.pending) == (["hello"], 2, 1)

    def test_mail_of_other_lanes_is_passed_over(self, bus: BusDriver) -> None:
        other = bus.mail("A", "c0", "theirs")
        lane = held_second(bus)

        bus.do(owned(lane.owner, 1, record(), mail=(other, lane.mail[0].ref)))

        assert bus.do(Pending(lane.owner)) == ()
        assert [texts(lane.mail) for lane in taken_back(bus, "w1")] == [["theirs"]]

    def test_an_append_may_set_heads_and_nothing_else(self, bus: BusDriver) -> None:
        lane = held(bus)

        answer = bus.do(owned(lane.owner, 1, heads=(SetHead(STREAM, {"active": "A"}),)))

        assert (answer, dict(bus.info(STREAM).head)) == (AppendResult(()), {"active": "A"})

    def test_a_known_id_in_an_owners_append_is_left_out_and_the_rest_is_written(self, bus: BusDriver) -> None:
        old = held(bus)
        bus.do(owned(old.owner, 1, NewRecord(STREAM, {"x": 1}, "sent")))
        bus.leave("w1")
        new = bus.claim_one("w2")

        answer = bus.do(owned(new.owner, 1, NewRecord(STREAM, {"x": 1}, "sent"), record(x=2)))

        assert answer.seqs == (1, 2)
        assert [r.payload["x"] for r in bus.read(STREAM)] == [1, 2]

    @pytest.mark.parametrize("fault", ["id", "deleted", "condition", "blob"])
    def test_an_owners_append_is_refused_as_any_other_and_changes_nothing(self, bus: BusDriver, fault: str) -> None:
        lane = held(bus)
        bus.put("stream:x", {"x": 1}, "used")
        bus.do(PutBlob(b"another"))
        faults: dict[str, tuple[dict[str, Any], type[Exception]]] = {
            "id": ({"records": (record(), NewRecord("stream:x", {"x": 2}, "used"))}, IdConflict),
            "deleted": ({"records": (record(), NewRecord("stream:gone", {}))}, TopicDeleted),
            "condition": ({"records": (record(),), "conditions": (LastSeqIs("stream:x", 0),)}, ConditionFailed),
            "blob": ({"records": (record(), NewRecord(STREAM, {}, blobs=("a" * 64,)))}, BlobMissing),
        }
        bus.do(Delete(("stream:gone",)))
        parts, error = faults[fault]

        for operation in (
            OwnedAppend(owner=lane.owner, n=1, mail=refs(lane), **parts),
            Settle(owner=lane.owner, mail=refs(lane), **parts),
            Later(owner=lane.owner, delay_s=0, **parts),
        ):
            with pytest.raises(error):
                bus.do(operation)

        assert bus.info(STREAM).last == 0
        assert texts(bus.do(Pending(lane.owner))) == ["hello"]
