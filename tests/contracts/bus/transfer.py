"""Identity of a log, and its export and import."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import magent2
from magent2.bus.operations import (
    DUMP_SCHEMA,
    OLDEST,
    Compact,
    Delete,
    Describe,
    Dump,
    Erase,
    GetBlob,
    Info,
    Lanes,
    Load,
    PutBlob,
    Read,
    SweepBlobs,
    Topics,
    Trim,
)
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import IdConflict, NotEmpty, TopicDeleted
from tests.contracts.bus.driver import BusDriver, ContractClass, EngineOpener, opened

TOPICS = ("stream:a", "stream:b", "stream:gone", "stream:empty", "chat:A", "control:A", "note:head", "dead:A")


def fill_log(bus: BusDriver) -> str:
    """Fill a log with one of everything that it can hold; return the name of its blob."""
    blob = bus.do(PutBlob(b"attached"))
    bus.fill("stream:a", 4)
    bus.put("stream:a", {}, "t1", draft="m1")
    bus.put("stream:a", {"ä": [1]}, "out", closes="m1", headers={"principal": "user:ann"}, blobs=(blob,))
    bus.do(Trim("stream:a", keep=4))
    bus.do(Compact("stream:a", min_age_s=0))
    bus.append(NewRecord("stream:b", {"x": 1}, "key"), NewRecord("stream:b", {"secret": 1}), NewRecord("dead:A", {}))
    bus.do(Erase("stream:b", (2,)))
    bus.fill("stream:gone", 3)
    bus.do(Delete(("stream:gone",)))
    bus.set_head("stream:empty", owner="ann", title="x")
    fill_lanes(bus)
    return blob


def fill_lanes(bus: BusDriver) -> None:
    for conversation in ("held", "later", "parked", "ready", "settled"):
        bus.mail("A", conversation, conversation)
    lanes = {lane.owner.conversation: lane for lane in bus.claim("w1").lanes}
    bus.later(lanes["later"].owner, 60)
    bus.later(lanes["parked"].owner, None)
    bus.later(lanes["ready"].owner, 0)
    bus.settle(lanes["settled"], NewRecord("stream:b", {"event": "output"}))
    bus.control("A", "held", "sorted")
    bus.claim("w1", limit=0)
    bus.mail("A", "unsorted")


def dumped(bus: BusDriver, limit: int = 500) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        chunk, cursor = bus.do(Dump(cursor, limit))
        rows += chunk
    return rows


def load(bus: BusDriver, rows: list[dict[str, Any]], limit: int = 500) -> None:
    for start in range(0, len(rows), limit):
        bus.do(Load(tuple(rows[start : start + limit]), first=start == 0))


def content(bus: BusDriver) -> list[Any]:
    """Read everything that a log shows, except the owners of lanes."""
    lanes = {(lane.conversation, lane.pending, lane.attempt) for lane in bus.do(Lanes("A"))}
    return [bus.do(Describe(TOPICS)), [bus.do(Read(topic, OLDEST)) for topic in TOPICS], bus.do(Topics()), lanes]


class TransferTests:
    # --- which log

    def test_a_log_has_an_identity(self: ContractClass, bus: BusDriver) -> None:
        info = bus.do(Info())

        assert (info.schema, info.release) == (self.schema, magent2.__version__)
        assert info.engine
        assert info.log_id == bus.do(Info()).log_id != ""

    def test_two_logs_are_not_the_same(self, bus: BusDriver, opener: EngineOpener) -> None:
        with opened(opener, "another", bus) as other:
            bus.put("stream:a")

            assert other.do(Info()).log_id != bus.do(Info()).log_id
            assert other.info("stream:a").last == 0

    def test_a_log_that_is_opened_again_is_the_same_log(
        self: ContractClass, bus: BusDriver, opener: EngineOpener
    ) -> None:
        if not self.persistent:
            pytest.skip("the engine is not persistent")
        with opened(opener, "again", bus) as first:
            blob = fill_log(first)
            log_id, before = first.do(Info()).log_id, content(first)

        with opened(opener, "again", bus) as second:
            assert (second.do(Info()).log_id, content(second)) == (log_id, before)
            assert second.do(GetBlob(blob)) == b"attached"
            assert second.append(NewRecord("stream:b", {"x": 1}, "key")) == AppendResult((1, 2, 1), repeat=True)
            assert second.put("stream:b") == first_after(before, "stream:b")

    # --- dump and load

    def test_a_dump_begins_with_the_log_and_goes_on_by_kind(self, bus: BusDriver) -> None:
        fill_log(bus)

        rows = dumped(bus)

        kinds = [row["kind"] for row in rows]
        assert kinds == sorted(kinds, key=["log", "blob", "topic", "record", "id", "inbox", "lane"].index)
        assert rows[0] == {
            "kind": "log",
            "log_id": bus.do(Info()).log_id,
            "schema": DUMP_SCHEMA,
            "release": magent2.__version__,
        }
        assert Counter(kinds)["lane"] == 4

    def test_small_chunks_make_the_same_dump(self, bus: BusDriver) -> None:
        fill_log(bus)

        assert dumped(bus, limit=2) == dumped(bus, limit=500)

    def test_a_loaded_log_shows_what_the_first_one_showed(self, bus: BusDriver, opener: EngineOpener) -> None:
        blob = fill_log(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))

            assert content(copy) == content(bus)
            assert copy.do(Info()).log_id == bus.do(Info()).log_id
            assert copy.do(GetBlob(blob)) == b"attached"
            assert copy.do(SweepBlobs(min_age_s=0)) == 0

    def test_a_dump_of_a_loaded_log_is_the_dump_that_was_loaded(self, bus: BusDriver, opener: EngineOpener) -> None:
        fill_log(bus)
        rows = dumped(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, rows, limit=3)

            assert by_name(dumped(copy)) == by_name(rows)

    def test_a_loaded_log_remembers_ids_numbers_and_tombstones(self, bus: BusDriver, opener: EngineOpener) -> None:
        fill_log(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))

            assert copy.append(NewRecord("stream:a", {"n": 1}, "r1")) == AppendResult((1,), repeat=True)
            assert copy.append(NewRecord("stream:b", {"x": 1}, "key")) == AppendResult((1, 2, 1), repeat=True)
            with pytest.raises(IdConflict):
                copy.put("stream:a", {"n": 9}, "r4")
            with pytest.raises(TopicDeleted):
                copy.put("stream:gone")
            assert copy.put("stream:a") == bus.info("stream:a").last + 1

    def test_a_loaded_log_goes_on_with_its_mail(self, bus: BusDriver, opener: EngineOpener) -> None:
        fill_log(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))
            lanes = {lane.owner.conversation: lane for lane in copy.claim("w2").lanes}

            assert {name: (lane.attempt, lane.pending) for name, lane in lanes.items()} == {
                "held": (2, 2),
                "ready": (2, 1),
                "unsorted": (1, 1),
            }
            states = {lane.conversation: lane.state for lane in copy.do(Lanes("A"))}
            assert (states["later"], states["parked"]) == ("later", "parked")
            copy.control("A", "parked")
            assert copy.claimed("w2") == ["parked"]

    def test_a_loaded_log_still_erases_the_copies_of_a_conversation(self, bus: BusDriver, opener: EngineOpener) -> None:
        fill_log(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))
            copy.do(Delete(("stream:held",), "held"))

            assert [r.seq for r in copy.read("chat:A") if r.erased] == [1]
            assert "held" not in {lane.conversation for lane in copy.do(Lanes("A"))}

    def test_rows_may_be_loaded_twice(self, bus: BusDriver, opener: EngineOpener) -> None:
        fill_log(bus)
        rows = dumped(bus)

        with opened(opener, "copy", bus) as copy:
            load(copy, rows)
            copy.do(Load(tuple(rows)))

            assert content(copy) == content(bus)
            assert by_name(dumped(copy)) == by_name(rows)

    def test_only_an_empty_log_can_be_loaded(self, bus: BusDriver, opener: EngineOpener) -> None:
        bus.fill("stream:a", 1)
        rows = tuple(dumped(bus))

        with opened(opener, "copy", bus) as copy:
            copy.put("stream:b")

            with pytest.raises(NotEmpty):
                copy.do(Load(rows, first=True))

            assert copy.info("stream:a").last == 0


def first_after(before: list[Any], topic: str) -> int:
    return int(before[0][TOPICS.index(topic)].last) + 1


def by_name(rows: list[dict[str, Any]]) -> list[str]:
    """Sort rows for comparison: within a kind, an engine may dump them in any order."""
    return sorted(repr(sorted(row.items())) for row in rows)
