"""Promises 6, 9 and 11: retention, compaction, erasing, and blobs."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from magent2.bus.operations import (
    BLOB_MAX_BYTES,
    Claim,
    Compact,
    Erase,
    Expire,
    Find,
    GetBlob,
    PutBlob,
    SetHead,
    SweepBlobs,
    Trim,
)
from magent2.bus.records import AppendResult, NewRecord, TrimResult
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

        assert bus.do(Trim("stream:a", keep=2)).floor == 3

        assert bus.seqs("stream:a") == [4, 5]
        assert (bus.info("stream:a").floor, bus.info("stream:a").last) == (3, 5)

    @pytest.mark.parametrize("by", [{"keep": 1}, {"max_age_s": 0.0}, {"through": 6}])
    def test_a_trim_drops_no_more_than_its_limit_and_says_whether_there_is_more(
        self, bus: BusDriver, by: dict[str, Any]
    ) -> None:
        bus.fill("stream:a", 7)
        bus.do(Erase("stream:a", (2,)))
        eventually(lambda: bus.do(Trim("stream:a", max_age_s=0.0, limit=1)).dropped)  # the clock has gone on

        first = bus.do(Trim("stream:a", **by, limit=4))
        left = bus.seqs("stream:a")
        rest = bus.do(Trim("stream:a", **by, limit=4))

        assert (first, left) == (TrimResult(floor=5, dropped=4, more=True), [6, 7])
        assert not rest.more
        assert bus.seqs("stream:a") == ([7] if "max_age_s" not in by else [])

    def test_trimming_what_is_short_enough_changes_nothing(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.do(Trim("stream:a", keep=2))

        assert bus.do(Trim("stream:a", keep=2)).floor == bus.do(Trim("stream:a", keep=9)).floor == 1
        assert bus.do(Trim("stream:never", keep=0)).floor == 0
        assert bus.seqs("stream:a") == [2, 3]

    def test_trimming_through_a_seq_drops_nothing_after_it(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)
        bus.do(Erase("stream:a", (2, 4)))

        assert bus.do(Trim("stream:a", through=3)).floor == 3

        assert bus.seqs("stream:a") == [4, 5]
        assert bus.do(Trim("stream:a", through=2)).floor == 3
        assert bus.do(Trim("stream:a", through=99)).floor == 5
        assert (bus.seqs("stream:a"), bus.put("stream:a")) == ([], 6)

    def test_numbers_go_on_after_trimming_to_nothing(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)

        bus.do(Trim("stream:a", keep=0))

        assert (bus.seqs("stream:a"), bus.info("stream:a").last) == ([], 3)
        assert bus.put("stream:a") == 4
        assert bus.seqs("stream:a") == [4]

    def test_trimming_by_age_drops_what_is_old(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        assert bus.do(Trim("stream:a", max_age_s=3600)).floor == 0

        eventually(lambda: bus.do(Trim("stream:a", max_age_s=0.01)).floor == 3)

        assert bus.seqs("stream:a") == []

    def test_trimming_by_age_keeps_what_is_young(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)
        eventually(lambda: bus.do(Trim("stream:a", max_age_s=0.05)).floor == 2)

        bus.put("stream:a")

        assert bus.do(Trim("stream:a", max_age_s=30)).floor == 2
        assert bus.seqs("stream:a") == [3]

    def test_unsorted_mail_is_never_trimmed(self, bus: BusDriver) -> None:
        bus.put("chat:A", {"conversation_id": "A"})
        ref = bus.mail("A", "c1")
        bus.put("chat:A", {"conversation_id": "A"})

        assert bus.do(Trim("chat:A", keep=0)).floor == 1

        assert bus.seqs("chat:A") == [ref.seq, 3]

    def test_unsettled_mail_is_not_trimmed_by_its_seq_either(self, bus: BusDriver) -> None:
        bus.put("chat:A", {"conversation_id": "c1"})

        assert bus.do(Trim("chat:A", through=1)).floor == 0

    def test_mail_that_is_held_is_never_trimmed_until_it_is_settled(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        lane = bus.claim_one()
        bus.mail("A", "c1", "second")
        assert bus.do(Trim("chat:A", keep=0)).floor == 0

        bus.settle(lane)

        assert bus.do(Trim("chat:A", keep=0)).floor == 1
        assert bus.seqs("chat:A") == [2]

    def test_the_oldest_unsettled_mail_of_all_lanes_stops_trimming(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        bus.mail("A", "c3")
        first, second, _ = bus.claim().lanes

        bus.settle(second)
        assert bus.do(Trim("chat:A", max_age_s=0.0)).floor == 0

        bus.settle(first)
        eventually(lambda: bus.do(Trim("chat:A", max_age_s=0.0)).floor == 2)

    def test_control_mail_is_never_trimmed_until_it_is_settled(self, bus: BusDriver) -> None:
        bus.control("A", "c1")
        assert bus.do(Trim("control:A", keep=0)).floor == 0

        bus.settle(bus.claim_one())

        assert bus.do(Trim("control:A", keep=0)).floor == 1

    def test_mail_that_was_erased_before_it_was_sorted_can_be_trimmed(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")

        bus.do(Erase("chat:A", (1,)))

        assert bus.do(Trim("chat:A", keep=0)).floor == 1

    def test_the_log_of_a_conversation_is_no_mail_and_free_to_trim(self, bus: BusDriver) -> None:
        bus.put("chat:c1", {"conversation_id": "c1", "sender": "user:ann"})

        assert bus.do(Trim("chat:c1", keep=0)).floor == 1

    # --- compaction

    def test_compaction_drops_closed_drafts_and_leaves_holes(self, bus: BusDriver) -> None:
        tokens(bus, "m1", 2)
        bus.put("stream:a", {"event": "output"}, closes="m1")
        tokens(bus, "m2", 2)

        assert bus.do(Compact("stream:a", min_age_s=0)).dropped == 2

        assert bus.seqs("stream:a") == [3, 4, 5]
        assert (bus.info("stream:a").floor, bus.info("stream:a").last) == (0, 5)
        assert bus.do(Compact("stream:a", min_age_s=0)).dropped == 0

    def test_a_compaction_looks_at_no_more_drafts_than_its_limit(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"event": "run"})
        for message in ("m1", "m2"):
            tokens(bus, message, 3)
            bus.put("stream:a", {"event": "output"}, closes=message)
        tokens(bus, "m3", 3)

        steps: list[int] = []
        after: int | None = 0
        while after is not None:
            result = bus.do(Compact("stream:a", min_age_s=0, after=after, limit=2))
            steps.append(result.dropped)
            after = result.next

        assert sum(steps) == 6
        assert max(steps) <= 2
        assert bus.seqs("stream:a") == [1, 5, 9, 10, 11, 12]

    def test_pieces_of_a_draft_after_its_closing_record_wait_for_the_next_one(self, bus: BusDriver) -> None:
        tokens(bus, "run", 1)
        bus.put("stream:a", {"event": "message"}, closes="run")
        bus.put("stream:a", {"event": "token"}, draft="run")

        assert bus.do(Compact("stream:a", min_age_s=0)).dropped == 1
        assert bus.seqs("stream:a") == [2, 3]

        bus.put("stream:a", {"event": "output"}, closes="run")
        assert bus.do(Compact("stream:a", min_age_s=0)).dropped == 1
        assert bus.seqs("stream:a") == [2, 4]

    def test_a_long_compaction_leaves_every_other_record_as_it_was(self, bus: BusDriver) -> None:
        """Enough drafts for an engine to rewrite its storage of the topic."""
        for message in ("m1", "m2"):
            pieces = [NewRecord("stream:a", {"n": n}, draft=message) for n in range(400)]
            bus.append(*pieces, NewRecord("stream:a", {"text": message}, f"out-{message}", closes=message))
        kept = [record for record in bus.read("stream:a") if record.draft is None]

        after: int | None = 0
        while after is not None:
            after = bus.do(Compact("stream:a", min_age_s=0, after=after)).next

        assert list(bus.read("stream:a")) == kept
        assert (bus.info("stream:a").floor, bus.info("stream:a").last) == (0, 802)
        assert bus.put("stream:a", {}, "next") == 803
        assert [record.seq for record in bus.read("stream:a", after=17)] == [401, 802, 803]

    # --- expiry

    def converse(self, bus: BusDriver) -> None:
        bus.append(
            NewRecord("chat:c1", {"conversation_id": "c1", "content": "hi"}),
            NewRecord("stream:c1", {"event": "user_message"}),
            NewRecord("history:c1", {"kind": "start"}),
            heads=(SetHead("stream:c1", {"owner": "user:ann"}),),
        )

    def test_an_idle_conversation_is_deleted_with_all_its_topics(self, bus: BusDriver) -> None:
        self.converse(bus)
        bus.mail("A", "c1", "secret")
        bus.settle(bus.claim_one())

        eventually(lambda: bus.do(Expire("c1", idle_s=0.0)))

        assert all(bus.info(f"{kind}:c1").deleted for kind in ("chat", "stream", "history"))
        assert [record.erased for record in bus.read("chat:A")] == [True]
        assert not bus.do(Expire("c1", idle_s=0.0))

    def test_a_conversation_that_was_used_a_moment_ago_is_not_expired(self, bus: BusDriver) -> None:
        self.converse(bus)

        assert not bus.do(Expire("c1", idle_s=3600))
        assert not bus.do(Expire("never", idle_s=0.0))
        assert (bus.info("stream:c1").deleted, bus.info("stream:never").deleted) == (False, False)

    @pytest.mark.parametrize("state", ["not sorted", "ready", "held", "parked"])
    @pytest.mark.parametrize("kind", ["chat", "control"])
    def test_a_conversation_whose_mail_waits_is_not_expired(self, bus: BusDriver, state: str, kind: str) -> None:
        self.converse(bus)
        (bus.mail if kind == "chat" else bus.control)("A", "c1")
        if state != "not sorted":
            bus.do(Claim(worker="w0", agents=("A",), limit=0, lease_s=LEASE_S))
        if state in ("held", "parked"):
            owner = bus.claim_one().owner
            if state == "parked" and kind == "chat":
                bus.later(owner, None)
        self.wait_a_millisecond(bus)

        assert not bus.do(Expire("c1", idle_s=0.0))
        assert not bus.info("stream:c1").deleted

    def wait_a_millisecond(self, bus: BusDriver) -> None:
        """Wait until the clock of the log has gone on since everything that the test has written."""
        bus.put("note:clock")
        eventually(lambda: bus.do(Trim("note:clock", max_age_s=0.0)).dropped)

    def test_a_dry_run_only_says_whether_a_conversation_would_expire(self, bus: BusDriver) -> None:
        self.converse(bus)

        eventually(lambda: bus.do(Expire("c1", idle_s=0.0, dry_run=True)))

        assert not bus.info("stream:c1").deleted
        assert not bus.do(Expire("c1", idle_s=3600, dry_run=True))

    # --- cursors

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

        assert bus.do(Compact("stream:a", min_age_s=3600)).dropped == 0
        eventually(lambda: bus.do(Compact("stream:a", min_age_s=0.02)).dropped == 2)

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

    def test_blobs_are_swept_up_to_a_limit_and_counted_in_a_dry_run(self, bus: BusDriver) -> None:
        for text in (b"one", b"two", b"three"):
            bus.do(PutBlob(text))

        assert bus.do(SweepBlobs(min_age_s=0, limit=2, dry_run=True)) == 3
        assert bus.do(SweepBlobs(min_age_s=0, limit=2)) == 2
        assert bus.do(SweepBlobs(min_age_s=0, limit=2)) == 1

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
