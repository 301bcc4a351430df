"""Promises 6, 9 and 11: retention, compaction, erasing, and blobs."""

from __future__ import annotations

import hashlib

import pytest

from magent2.bus.operations import BLOB_MAX_BYTES, Claim, Compact, Erase, Find, GetBlob, PutBlob, SweepBlobs, Trim
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import BlobMissing, BlobTooLarge, IdConflict, UnknownCursor
from tests.contracts.bus.driver import LEASE_S, BusDriver
from tests.support.waiting import eventually


def tokens(bus: BusDriver, message: str, count: int) -> None:
    for n in range(count):
        bus.put("stream:a", {"event": "token", "n": n}, f"{message}-{n}", draft=message)


class RetentionTests:
    # --- retention

    def test_trimming_by_number_keeps_the_newest(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        assert bus.do(Trim("stream:a", keep=2)) == 3

        assert bus.seqs("stream:a") == [4, 5]
        assert (bus.info("stream:a").floor, bus.info("stream:a").last) == (3, 5)

    def test_trimming_what_is_short_enough_changes_nothing(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.do(Trim("stream:a", keep=2))

        assert bus.do(Trim("stream:a", keep=2)) == bus.do(Trim("stream:a", keep=9)) == 1
        assert bus.do(Trim("stream:never", keep=0)) == 0
        assert bus.seqs("stream:a") == [2, 3]

    def test_trimming_through_a_seq_drops_nothing_after_it(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)
        bus.do(Erase("stream:a", (2, 4)))

        assert bus.do(Trim("stream:a", through=3)) == 3

        assert bus.seqs("stream:a") == [4, 5]
        assert bus.do(Trim("stream:a", through=2)) == 3
        assert bus.do(Trim("stream:a", through=99)) == 5
        assert (bus.seqs("stream:a"), bus.put("stream:a")) == ([], 6)

    def test_numbers_go_on_after_trimming_to_nothing(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)

        bus.do(Trim("stream:a", keep=0))

        assert (bus.seqs("stream:a"), bus.info("stream:a").last) == ([], 3)
        assert bus.put("stream:a") == 4
        assert bus.seqs("stream:a") == [4]

    def test_trimming_by_age_drops_what_is_old(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        assert bus.do(Trim("stream:a", max_age_s=3600)) == 0

        eventually(lambda: bus.do(Trim("stream:a", max_age_s=0.01)) == 3)

        assert bus.seqs("stream:a") == []

    def test_trimming_by_age_keeps_what_is_young(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)
        eventually(lambda: bus.do(Trim("stream:a", max_age_s=0.05)) == 2)

        bus.put("stream:a")

        assert bus.do(Trim("stream:a", max_age_s=30)) == 2
        assert bus.seqs("stream:a") == [3]

    def test_unsorted_mail_is_never_trimmed(self, bus: BusDriver) -> None:
        bus.put("chat:A", {"conversation_id": "A"})
        ref = bus.mail("A", "c1")
        bus.put("chat:A", {"conversation_id": "A"})

        assert bus.do(Trim("chat:A", keep=0)) == 1

        assert bus.seqs("chat:A") == [ref.seq, 3]

    def test_unsettled_mail_is_not_trimmed_by_its_seq_either(self, bus: BusDriver) -> None:
        bus.put("chat:A", {"conversation_id": "c1"})

        assert bus.do(Trim("chat:A", through=1)) == 0

    def test_mail_that_is_held_is_never_trimmed_until_it_is_settled(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        lane = bus.claim_one()
        bus.mail("A", "c1", "second")
        assert bus.do(Trim("chat:A", keep=0)) == 0

        bus.settle(lane)

        assert bus.do(Trim("chat:A", keep=0)) == 1
        assert bus.seqs("chat:A") == [2]

    def test_the_oldest_unsettled_mail_of_all_lanes_stops_trimming(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        bus.mail("A", "c3")
        first, second, _ = bus.claim().lanes

        bus.settle(second)
        assert bus.do(Trim("chat:A", max_age_s=0.0)) == 0

        bus.settle(first)
        eventually(lambda: bus.do(Trim("chat:A", max_age_s=0.0)) == 2)

    def test_control_mail_is_never_trimmed_until_it_is_settled(self, bus: BusDriver) -> None:
        bus.control("A", "c1")
        assert bus.do(Trim("control:A", keep=0)) == 0

        bus.settle(bus.claim_one())

        assert bus.do(Trim("control:A", keep=0)) == 1

    def test_mail_that_was_erased_before_it_was_sorted_can_be_trimmed(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")

        bus.do(Erase("chat:A", (1,)))

        assert bus.do(Trim("chat:A", keep=0)) == 1

    def test_the_log_of_a_conversation_is_no_mail_and_free_to_trim(self, bus: BusDriver) -> None:
        bus.put("chat:c1", {"conversation_id": "c1", "sender": "user:ann"})

        assert bus.do(Trim("chat:c1", keep=0)) == 1

    # --- compaction

    def test_compaction_drops_closed_drafts_and_leaves_holes(self, bus: BusDriver) -> None:
        tokens(bus, "m1", 2)
        bus.put("stream:a", {"event": "output"}, closes="m1")
        tokens(bus, "m2", 2)

        assert bus.do(Compact("stream:a", min_age_s=0)) == 2

        assert bus.seqs("stream:a") == [3, 4, 5]
        assert (bus.info("stream:a").floor, bus.info("stream:a").last) == (0, 5)
        assert bus.do(Compact("stream:a", min_age_s=0)) == 0

    def test_a_cursor_in_a_hole_is_good(self, bus: BusDriver) -> None:
        tokens(bus, "m1", 3)
        bus.put("stream:a", {}, "out", closes="m1")

        bus.do(Compact("stream:a", min_age_s=0))

        for cursor in (0, 1, 3, "@2"):
            assert [r.seq for r in bus.read("stream:a", after=cursor)] == [4]
        with pytest.raises(UnknownCursor):
            bus.read("stream:a", after="m1-1")

    def test_a_draft_is_kept_until_its_output_is_old_enough(self, bus: BusDriver) -> None:
        tokens(bus, "m1", 2)
        bus.put("stream:a", {}, closes="m1")

        assert bus.do(Compact("stream:a", min_age_s=3600)) == 0
        eventually(lambda: bus.do(Compact("stream:a", min_age_s=0.02)) == 2)

    def test_the_id_of_a_compacted_draft_is_still_known(self, bus: BusDriver) -> None:
        tokens(bus, "m1", 1)
        bus.put("stream:a", {}, closes="m1")
        bus.do(Compact("stream:a", min_age_s=0))

        again = bus.append(NewRecord("stream:a", {"event": "token", "n": 0}, "m1-0", draft="m1"))

        assert again == AppendResult((1,), repeat=True)

    def test_trimming_by_number_counts_records_and_not_holes(self, bus: BusDriver) -> None:
        bus.put("stream:a", {}, "start")
        tokens(bus, "m1", 3)
        bus.put("stream:a", {}, "out", closes="m1")
        bus.do(Compact("stream:a", min_age_s=0))

        bus.do(Trim("stream:a", keep=2))

        assert bus.seqs("stream:a") == [1, 5]

    # --- erasing

    def test_an_erased_record_keeps_its_number_and_id_and_nothing_else(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"secret": 1}, "r1", headers={"principal": "user:ann"})
        before = bus.read("stream:a")[0]

        assert bus.do(Erase("stream:a", (1,))) == 1

        (record,) = bus.read("stream:a")
        assert (record.seq, record.id, record.at_ms) == (1, "r1", before.at_ms)
        assert (record.erased, record.payload, dict(record.headers)) == (True, {}, {})
        assert bus.do(Find("stream:a", "r1")) == record

    def test_erasing_counts_the_records_that_were_there(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.do(Trim("stream:a", keep=2))

        assert bus.do(Erase("stream:a", (1, 2, 3, 99))) == 2
        assert bus.do(Erase("stream:never", (1,))) == 0

    def test_erasing_moves_neither_floor_nor_last(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)

        bus.do(Erase("stream:a", (1, 3)))

        assert (bus.info("stream:a").floor, bus.info("stream:a").last, bus.seqs("stream:a")) == (0, 3, [1, 2, 3])
        assert [record.erased for record in bus.read("stream:a")] == [True, False, True]

    def test_the_id_of_an_erased_record_still_stands_for_its_body(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "r1")
        bus.do(Erase("stream:a", (1,)))

        assert bus.append(NewRecord("stream:a", {"x": 1}, "r1")) == AppendResult((1,), repeat=True)
        with pytest.raises(IdConflict):
            bus.put("stream:a", {"x": 2}, "r1")

    def test_an_id_whose_body_was_forgotten_stands_for_none(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "r1")
        bus.do(Erase("stream:a", (1,), forget=True))

        for body in ({"x": 1}, {"x": 2}):
            with pytest.raises(IdConflict):
                bus.put("stream:a", body, "r1")
        assert bus.seqs("stream:a") == [1]

    def test_mail_that_was_erased_before_a_claim_opens_no_lane(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")

        bus.do(Erase("chat:A", (1,)))

        assert bus.claimed() == ["c2"]

    def test_mail_that_was_erased_after_it_was_sorted_comes_empty(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "secret")
        bus.do(Claim(worker="w0", agents=("A",), limit=0, lease_s=LEASE_S))

        bus.do(Erase("chat:A", (1,)))

        (record,) = bus.claim_one().mail
        assert (record.seq, record.erased, record.payload) == (1, True, {})

    # --- blobs

    def test_a_blob_comes_back_by_its_name(self, bus: BusDriver) -> None:
        data = bytes(range(256)) * 300

        name = bus.do(PutBlob(data))

        assert name == hashlib.sha256(data).hexdigest()
        assert bus.do(GetBlob(name)) == data
        assert bus.do(GetBlob(bus.do(PutBlob(b"")))) == b""

    def test_a_blob_that_is_not_there_is_missing(self, bus: BusDriver) -> None:
        with pytest.raises(BlobMissing):
            bus.do(GetBlob("a" * 64))

    def test_a_blob_over_the_cap_is_refused(self, bus: BusDriver) -> None:
        with pytest.raises(BlobTooLarge):
            bus.do(PutBlob(bytes(BLOB_MAX_BYTES + 1)))

    def test_an_append_that_names_a_missing_blob_is_refused(self, bus: BusDriver) -> None:
        present = bus.do(PutBlob(b"here"))

        with pytest.raises(BlobMissing):
            bus.put("stream:a", {}, blobs=(present, "a" * 64))

        assert bus.info("stream:a").last == 0

    def test_a_blob_that_a_record_names_is_kept(self, bus: BusDriver) -> None:
        named, unnamed = bus.do(PutBlob(b"named")), bus.do(PutBlob(b"unnamed"))
        bus.put("stream:a", {}, blobs=(named,))

        assert bus.do(SweepBlobs(min_age_s=0)) == 1

        assert bus.read("stream:a")[0].blobs == (named,)
        assert bus.do(GetBlob(named)) == b"named"
        with pytest.raises(BlobMissing):
            bus.do(GetBlob(unnamed))

    def test_a_young_blob_is_not_swept(self, bus: BusDriver) -> None:
        name = bus.do(PutBlob(b"young"))

        assert bus.do(SweepBlobs(min_age_s=3600)) == 0
        assert bus.do(GetBlob(name)) == b"young"

    @pytest.mark.parametrize("how", ["trim", "compact", "erase"])
    def test_a_blob_goes_with_the_last_record_that_names_it(self, bus: BusDriver, how: str) -> None:
        name = bus.do(PutBlob(b"shared"))
        bus.put("stream:b", {}, "keep", blobs=(name,))
        bus.put("stream:a", {}, draft="m1", blobs=(name,))
        bus.put("stream:a", {}, closes="m1")
        operations = {
            "trim": Trim("stream:a", keep=1),
            "compact": Compact("stream:a", min_age_s=0),
            "erase": Erase("stream:a", (1,)),
        }

        bus.do(operations[how])
        assert bus.do(SweepBlobs(min_age_s=0)) == 0

        bus.do(Trim("stream:b", keep=0))
        assert bus.do(SweepBlobs(min_age_s=0)) == 1

    def test_a_repeated_append_holds_its_blob_once(self, bus: BusDriver) -> None:
        name = bus.do(PutBlob(b"x"))
        bus.put("stream:a", {}, "r1", blobs=(name,))
        bus.put("stream:a", {}, "r1", blobs=(name,))

        bus.do(Trim("stream:a", keep=0))

        assert bus.do(SweepBlobs(min_age_s=0)) == 1
