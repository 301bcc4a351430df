"""Promise 6: deletion is final and includes the copies of a conversation in other topics."""

from __future__ import annotations

import pytest

from magent2.bus.operations import (
    OLDEST,
    Claim,
    Delete,
    Erase,
    Find,
    GetBlob,
    OwnedAppend,
    Pending,
    PutBlob,
    Scrub,
    SetHead,
    SweepBlobs,
)
from magent2.bus.records import NewRecord, Page
from magent2.errors import BlobMissing, Fenced, IdConflict, TopicDeleted
from tests.contracts.bus.driver import LEASE_S, BusDriver

CONVERSATION = ("stream:c1", "chat:c1", "history:c1")


class DeleteTests:
    # --- topics

    def test_a_deleted_topic_has_no_record_and_no_head_but_keeps_its_last_number(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.set_head("stream:a", owner="ann")

        bus.do(Delete(("stream:a",)))

        info = bus.info("stream:a")
        assert (info.last, info.floor, info.deleted, dict(info.head)) == (3, 3, True, {})
        for cursor in (None, OLDEST, 3):
            assert bus.page("stream:a", after=cursor) == Page((), 3, 3, True)
        assert bus.do(Find("stream:a", "r1")) is None

    def test_a_deleted_topic_answers_every_cursor_with_a_page_that_says_so(self, bus: BusDriver) -> None:
        bus.fill("t:a", 3)
        bus.do(Delete(("t:a",)))

        pages = [bus.page("t:a", cursor) for cursor in (0, 3, 9, "r1", "never-was", OLDEST, None)]

        assert all(page.deleted and page.records == () and page.last == 3 for page in pages)

    def test_an_append_to_a_deleted_topic_is_refused_for_ever(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 1)

        bus.do(Delete(("stream:a",)))

        with pytest.raises(TopicDeleted):
            bus.put("stream:a")
        with pytest.raises(TopicDeleted):
            bus.put("stream:a", {"n": 1}, "r1")

    def test_the_head_of_a_deleted_topic_cannot_be_set(self, bus: BusDriver) -> None:
        bus.do(Delete(("stream:a",)))

        with pytest.raises(TopicDeleted):
            bus.append(NewRecord("stream:b", {}), heads=(SetHead("stream:a", {"x": 1}),))

        assert bus.info("stream:b").last == 0

    def test_a_topic_that_never_was_gets_its_tombstone_too(self, bus: BusDriver) -> None:
        bus.do(Delete(("stream:a",)))

        assert (bus.info("stream:a").last, bus.info("stream:a").deleted) == (0, True)
        with pytest.raises(TopicDeleted):
            bus.put("stream:a")

    def test_deleting_again_changes_nothing(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)
        bus.do(Delete(("stream:a",)))

        bus.do(Delete(("stream:a", "stream:b")))

        assert (bus.info("stream:a").last, bus.info("stream:a").floor) == (2, 2)
        assert bus.info("stream:b").deleted

    def test_blobs_go_with_the_topic(self, bus: BusDriver) -> None:
        name = bus.do(PutBlob(b"x"))
        bus.put("stream:a", {}, blobs=(name,))

        bus.do(Delete(("stream:a",)))

        assert bus.do(SweepBlobs(min_age_s=0)) == 1
        with pytest.raises(BlobMissing):
            bus.do(GetBlob(name))

    # --- conversations

    def test_copies_of_a_deleted_conversation_are_erased_everywhere(self, bus: BusDriver) -> None:
        bus.put("stream:c1", {"conversation_id": "c1"})
        bus.mail("A", "c1", "secret")
        bus.mail("A", "c2", "other")
        bus.put("dead:B", {"conversation_id": "c1", "content": "secret"}, "d1")
        bus.put("outbox:web", {"conversation_id": "c1", "content": "secret"})

        bus.do(Delete(CONVERSATION, "c1"))

        assert [(r.seq, r.erased) for r in bus.read("chat:A")] == [(1, True), (2, False)]
        assert [(r.id, r.erased, r.payload) for r in bus.read("dead:B")] == [("d1", True, {})]
        assert bus.read("outbox:web")[0].erased
        assert bus.info("stream:c1").deleted

    def test_blobs_that_only_a_deleted_conversation_named_go_at_once(self, bus: BusDriver) -> None:
        own, copied, shared = (bus.do(PutBlob(data)) for data in (b"own", b"copied", b"shared"))
        bus.put("stream:c1", {"conversation_id": "c1"}, blobs=(own, shared))
        bus.put("outbox:web", {"conversation_id": "c1"}, blobs=(copied,))
        bus.put("outbox:web", {"conversation_id": "c2"}, blobs=(shared,))

        bus.do(Delete(CONVERSATION, "c1"))

        assert bus.do(GetBlob(shared)) == b"shared"
        for name in (own, copied):
            with pytest.raises(BlobMissing):
                bus.do(GetBlob(name))

    def test_the_id_of_a_copy_stands_for_no_body_once_its_conversation_is_deleted(self, bus: BusDriver) -> None:
        bus.put("chat:A", {"conversation_id": "c1", "content": "secret"}, "m1")

        bus.do(Delete(CONVERSATION, "c1"))

        with pytest.raises(IdConflict):
            bus.put("chat:A", {"conversation_id": "c1", "content": "secret"}, "m1")

    def test_what_is_left_of_an_inbox_goes_on_as_before(self, bus: BusDriver) -> None:
        mail = [{"conversation_id": "c1" if n % 2 else "c2", "content": str(n)} for n in range(1, 1201)]
        for start in (0, 600):  # more in all than one page of whatever an engine has to rewrite
            bus.append(*(NewRecord("chat:A", payload) for payload in mail[start : start + 600]))

        bus.do(Delete(CONVERSATION, "c1"))
        bus.mail("A", "c2", "1201")

        left = bus.read("chat:A")
        assert [record.seq for record in left] == list(range(1, 1202))
        assert [record.erased for record in left] == [*[True, False] * 600, False]
        assert left[-2].payload["content"] == "1200"
        assert bus.read("chat:A", 1199)[0].seq == 1200

    def test_a_scrub_changes_nothing_that_an_operation_returns(self, bus: BusDriver) -> None:
        mail = [{"conversation_id": "c1" if n % 2 else "c2", "content": str(n)} for n in range(1, 601)]
        bus.append(*(NewRecord("chat:A", payload, id=f"m{payload['content']}") for payload in mail))
        bus.do(Delete(CONVERSATION, "c1"))
        bus.do(Erase("chat:A", (2,)))
        before = bus.read("chat:A"), bus.info("chat:A")

        assert bus.do(Scrub())

        assert before == (bus.read("chat:A"), bus.info("chat:A"))
        assert bus.claimed(agents=("A",)) == ["c2"]
        assert bus.mail("A", "c2", "601").seq == 601
        assert [record.seq for record in bus.read("chat:A", 600)] == [601]

    def test_a_scrub_of_a_log_without_deletions_and_a_repeated_one_do_nothing(self, bus: BusDriver) -> None:
        assert bus.do(Scrub())
        bus.fill("stream:a", 2)
        bus.do(Delete(("stream:a",), "a"))

        assert [bus.do(Scrub()), bus.do(Scrub(any_size=True))] == [True, True]

    def test_mail_of_a_deleted_conversation_is_never_handed_out(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.do(Claim(worker="w0", agents=("A",), limit=0, lease_s=LEASE_S))
        bus.mail("A", "c1")
        bus.control("A", "c1")
        bus.mail("B", "c1")
        bus.mail("B", "c2")

        bus.do(Delete(CONVERSATION, "c1"))

        assert bus.claimed(agents=("A", "B")) == ["c2"]

    def test_the_owner_of_a_deleted_conversation_is_fenced(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one()

        bus.do(Delete(CONVERSATION, "c1"))

        for operation in (
            OwnedAppend(owner=lane.owner, n=1, records=(NewRecord("stream:x", {}),)),
            Pending(lane.owner),
        ):
            with pytest.raises(Fenced):
                bus.do(operation)
        with pytest.raises(Fenced):
            bus.settle(lane, NewRecord("stream:x", {}))
        with pytest.raises(Fenced):
            bus.later(lane.owner, 0)
        assert bus.info("stream:x").last == 0

    def test_other_lanes_are_left_alone(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        lanes = {lane.owner.conversation: lane for lane in bus.claim().lanes}

        bus.do(Delete(CONVERSATION, "c1"))

        assert len(bus.do(Pending(lanes["c2"].owner))) == 1
        bus.settle(lanes["c2"])

    def test_a_token_of_a_deleted_lane_is_worth_nothing_in_a_lane_of_the_same_name(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        old = bus.claim_one()
        bus.do(Delete(("stream:c1",), "c1"))
        bus.mail("A", "c1", "raw publish after the deletion")

        new = bus.claim_one()

        assert (new.attempt, new.pending, new.owner.token != old.owner.token) == (1, 1, True)
        with pytest.raises(Fenced):
            bus.settle(old)
        bus.settle(new)
