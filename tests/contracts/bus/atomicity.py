"""Promises 3 and 4: an append is atomic, and happens only if its conditions hold."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magent2.bus.operations import OLDEST, Append, Condition, Delete, Describe, HeadIs, LastSeqIs, Read, SetHead, Topics
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import BlobMissing, ConditionFailed, HeadTooLarge, IdConflict, TopicDeleted
from tests.contracts.bus.driver import BusDriver

NO_BLOB = "0" * 64
TOPICS = ("stream:a", "stream:b", "stream:c", "stream:gone")


def snapshot(bus: BusDriver) -> list[Any]:
    """Read everything that an append could have changed."""
    return [bus.do(Describe(TOPICS)), [bus.do(Read(topic, OLDEST)) for topic in TOPICS], bus.do(Topics())]


def prepare(bus: BusDriver) -> None:
    bus.append(NewRecord("stream:a", {"x": 1}, "used"), heads=(SetHead("stream:a", {"owner": "ann"}),))
    bus.put("stream:b", {"x": 1}, "used")
    bus.do(Delete(("stream:gone",)))


def key_conflict() -> Append:
    return Append(records=(NewRecord("stream:a", {"x": 2}, "used"), NewRecord("stream:c", {})))


def gone(**more: Any) -> Append:
    return Append(records=(NewRecord("stream:c", {}), NewRecord("stream:gone", {})), **more)


def id_conflict(**more: Any) -> Append:
    return Append(records=(NewRecord("stream:c", {}), NewRecord("stream:b", {"x": 2}, "used")), **more)


def condition() -> Append:
    return Append(
        records=(NewRecord("stream:c", {}), NewRecord("stream:b", {}, blobs=(NO_BLOB,))),
        conditions=(LastSeqIs("stream:b", 1), LastSeqIs("stream:a", 7)),
        heads=(SetHead("stream:c", {"x": 1}),),
    )


def blob() -> Append:
    return Append(
        records=(NewRecord("stream:c", {}), NewRecord("stream:b", {}, blobs=(NO_BLOB,))),
        heads=(SetHead("stream:a", {"note": "x" * 4085}),),
    )


def head() -> Append:
    records = (NewRecord("stream:c", {}), NewRecord("stream:b", {}))
    return Append(records=records, heads=(SetHead("stream:c", {"x": 1}), SetHead("stream:a", {"note": "x" * 4085})))


REFUSALS: dict[str, tuple[Callable[[], Append], type[Exception]]] = {
    "key": (key_conflict, IdConflict),
    "deleted": (gone, TopicDeleted),
    "id": (id_conflict, IdConflict),
    "condition": (condition, ConditionFailed),
    "blob": (blob, BlobMissing),
    "head": (head, HeadTooLarge),
}

# Each append has two faults. The error is that of the check that `operations.py` lists first.
FIRST_FAULTS: dict[str, tuple[Callable[[], Append], type[Exception]]] = {
    "key before deleted": (
        lambda: Append(records=(NewRecord("stream:a", {"x": 2}, "used"), NewRecord("stream:gone", {}))),
        IdConflict,
    ),
    "deleted before id": (
        lambda: Append(
            records=(NewRecord("stream:c", {}), NewRecord("stream:b", {"x": 2}, "used"), NewRecord("stream:gone", {}))
        ),
        TopicDeleted,
    ),
    "deleted before condition": (lambda: gone(conditions=(LastSeqIs("stream:a", 7),)), TopicDeleted),
    "id before condition": (lambda: id_conflict(conditions=(LastSeqIs("stream:a", 7),)), IdConflict),
    "condition before blob": (condition, ConditionFailed),
    "blob before head": (blob, BlobMissing),
}


class AtomicityTests:
    # --- all or nothing

    def test_an_append_to_many_topics_numbers_each_of_them(self, bus: BusDriver) -> None:
        bus.put("stream:b")

        answer = bus.append(
            *(NewRecord(topic, {"in": topic}) for topic in ("stream:a", "stream:b", "stream:a", "stream:c"))
        )

        assert answer == AppendResult((1, 2, 2, 1))
        assert bus.seqs("stream:a") == [1, 2]
        assert bus.read("stream:c")[0].payload == {"in": "stream:c"}

    @pytest.mark.parametrize("refusal", REFUSALS)
    def test_a_refused_append_changes_nothing_anywhere(self, bus: BusDriver, refusal: str) -> None:
        prepare(bus)
        before = snapshot(bus)
        build, error = REFUSALS[refusal]

        with pytest.raises(error):
            bus.do(build())

        assert snapshot(bus) == before

    @pytest.mark.parametrize("faults", FIRST_FAULTS)
    def test_of_two_faults_the_earlier_check_is_reported(self, bus: BusDriver, faults: str) -> None:
        prepare(bus)
        build, error = FIRST_FAULTS[faults]

        with pytest.raises(error):
            bus.do(build())

    def test_a_repeated_key_is_reported_before_any_other_check(self, bus: BusDriver) -> None:
        prepare(bus)

        answer = bus.append(
            NewRecord("stream:a", {"x": 1}, "used"),
            NewRecord("stream:gone", {}),
            NewRecord("stream:b", {"x": 2}, "used", blobs=(NO_BLOB,)),
            conditions=(LastSeqIs("stream:a", 7),),
        )

        assert answer == AppendResult((1,), repeat=True)

    def test_a_refused_id_is_free_again(self, bus: BusDriver) -> None:
        with pytest.raises(ConditionFailed):
            bus.append(NewRecord("stream:a", {"x": 1}, "mine"), conditions=(LastSeqIs("stream:a", 5),))

        assert bus.append(NewRecord("stream:a", {"x": 2}, "mine")) == AppendResult((1,))

    # --- conditions

    def test_a_topic_that_is_still_there_lets_the_append_through(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)

        bus.append(NewRecord("stream:a", {}), conditions=(LastSeqIs("stream:a", 2), LastSeqIs("stream:new", 0)))

        assert bus.info("stream:a").last == 3

    @pytest.mark.parametrize("seq", [0, 1, 3])
    def test_a_topic_that_is_elsewhere_refuses_the_append(self, bus: BusDriver, seq: int) -> None:
        bus.fill("stream:a", 2)

        with pytest.raises(ConditionFailed):
            bus.append(NewRecord("stream:b", {}), conditions=(LastSeqIs("stream:a", seq),))

        assert bus.info("stream:b").last == 0

    def test_one_condition_of_many_that_fails_refuses_the_append(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)

        with pytest.raises(ConditionFailed):
            bus.append(
                NewRecord("stream:b", {}),
                conditions=(LastSeqIs("stream:a", 2), LastSeqIs("stream:b", 0), LastSeqIs("stream:c", 1)),
            )

        assert bus.info("stream:b").last == 0

    @pytest.mark.parametrize("value", ["ann", 'say "hi"', 7, 2.5, True, False, "7"])
    def test_a_head_is_compared_by_the_value_of_its_field(self, bus: BusDriver, value: Any) -> None:
        bus.set_head("stream:a", who=value)

        bus.append(NewRecord("stream:b", {}), conditions=(HeadIs("stream:a", "who", value),))

        with pytest.raises(ConditionFailed):
            bus.append(NewRecord("stream:b", {}), conditions=(HeadIs("stream:a", "who", "someone else"),))

    def test_the_number_7_and_the_text_7_are_different_values(self, bus: BusDriver) -> None:
        bus.set_head("stream:a", n=7)

        with pytest.raises(ConditionFailed):
            bus.append(NewRecord("stream:b", {}), conditions=(HeadIs("stream:a", "n", "7"),))

    def test_no_value_means_a_field_that_is_not_set(self, bus: BusDriver) -> None:
        bus.set_head("stream:a", owner="ann")
        absent: tuple[Condition, ...] = (HeadIs("stream:a", "title", None), HeadIs("stream:never", "owner", None))

        bus.append(NewRecord("stream:b", {}), conditions=absent)

        with pytest.raises(ConditionFailed):
            bus.append(NewRecord("stream:b", {}), conditions=(HeadIs("stream:a", "owner", None),))

    def test_conditions_look_at_the_log_before_the_append(self, bus: BusDriver) -> None:
        bus.append(
            NewRecord("stream:a", {}),
            conditions=(LastSeqIs("stream:a", 0), HeadIs("stream:a", "x", None)),
            heads=(SetHead("stream:a", {"x": 1}),),
        )

        assert bus.info("stream:a").last == 1

    def test_of_many_that_start_a_topic_only_if_it_is_empty_one_wins(self, bus: BusDriver) -> None:
        def start(n: int) -> bool:
            try:
                bus.engine.call(
                    Append(records=(NewRecord("stream:a", {"n": n}),), conditions=(LastSeqIs("stream:a", 0),))
                )
            except ConditionFailed:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(start, range(8)))

        assert won.count(True) == 1
        assert [record.payload["n"] for record in bus.read("stream:a")] == [won.index(True)]
