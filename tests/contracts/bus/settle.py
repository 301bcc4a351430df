"""Lanes: settling a run, delaying or parking a lane, and when it is ready again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from magent2.bus.operations import Claim, Lanes, Later, OwnedAppend, Pending, Settle
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import Fenced
from tests.contracts.bus.driver import LEASE_S, BusDriver, refs, texts
from tests.support.waiting import DEADLINE_S, eventually

STREAM = "stream:c1"


def woken(bus: BusDriver, operation: Settle | Later | None, inbox: str, leaving: str = "") -> bool:
    """Return whether a thread that watches the inbox is woken when the operation gives a lane back."""
    with bus.engine.watch([inbox]) as watch, ThreadPoolExecutor(1) as pool:
        while watch.wait(0.05):
            pass
        waiting = pool.submit(watch.wait, DEADLINE_S)
        bus.do(operation) if operation is not None else bus.leave(leaving)
        return inbox in waiting.result(DEADLINE_S)


class SettleTests:
    # --- settle

    def test_settling_removes_the_mail_appends_the_records_and_frees_the_lane(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one()

        answer = bus.settle(lane, NewRecord(STREAM, {"event": "output"}), NewRecord("history:c1", {}))

        assert answer == AppendResult((1, 1))
        assert bus.do(Lanes("A")) == ()
        assert bus.claimed() == []

    def test_mail_is_settled_once_for_all(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.settle(bus.claim_one())

        bus.mail("A", "c1", "second")

        lane = bus.claim_one()
        assert (texts(lane.mail), lane.attempt, lane.pending) == (["second"], 1, 1)

    def test_mail_that_a_run_has_not_settled_stays_in_the_lane(self, bus: BusDriver) -> None:
        for text in ("first", "second", "third"):
            bus.mail("A", "c1", text)
        lane = bus.claim_one()

        bus.do(Settle(owner=lane.owner, mail=(lane.mail[1].ref,)))

        assert texts(bus.claim_one().mail) == ["first", "third"]

    def test_a_lane_with_more_mail_goes_to_the_end_of_the_queue(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.mail("A", "c1", "second")
        bus.mail("A", "c2")
        lane = bus.claim("w1", limit=1).lanes[0]

        bus.do(Settle(owner=lane.owner, mail=(lane.mail[0].ref,)))

        assert bus.claimed() == ["c2", "c1"]

    def test_attempts_start_again_after_settling(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.mail("A", "c1", "second")
        bus.claim_one("w1")
        bus.leave("w1")
        lane = bus.claim_one("w2")
        assert lane.attempt == 2

        bus.do(Settle(owner=lane.owner, mail=(lane.mail[0].ref,)))

        assert bus.claim_one("w2").attempt == 1

    def test_a_lane_that_a_crash_left_without_mail_starts_again_with_the_first_attempt(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one("w1")
        bus.do(OwnedAppend(owner=lane.owner, n=1, mail=refs(lane)))
        bus.leave("w1")
        assert bus.claimed("w2") == []

        bus.mail("A", "c1", "new")

        assert bus.claim_one("w2").attempt == 1

    def test_settling_mail_that_is_no_longer_in_the_lane_does_no_harm(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.mail("A", "c1", "second")
        lane = bus.claim_one()
        bus.do(OwnedAppend(owner=lane.owner, n=1, mail=(lane.mail[0].ref,)))

        bus.settle(lane, NewRecord(STREAM, {}))

        assert (bus.seqs(STREAM), bus.claimed()) == ([1], [])

    def test_settling_again_answers_as_the_first_time(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        operation = Settle(owner=(lane := bus.claim_one()).owner, mail=refs(lane), records=(NewRecord(STREAM, {}),))
        bus.do(operation)
        bus.put(STREAM)

        assert bus.do(operation) == AppendResult((1,), repeat=True)
        assert bus.seqs(STREAM) == [1, 2]

    def test_settling_again_is_a_repeat_while_the_next_run_is_under_way(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        first = bus.claim_one("w1")
        bus.settle(first, NewRecord(STREAM, {}))
        bus.mail("A", "c1")
        bus.claim_one("w2")

        assert bus.settle(first, NewRecord(STREAM, {})) == AppendResult((1,), repeat=True)

    def test_settling_again_is_fenced_once_another_owner_has_settled(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        first = bus.claim_one("w1")
        bus.settle(first)
        bus.mail("A", "c1")
        bus.settle(bus.claim_one("w2"))

        with pytest.raises(Fenced):
            bus.settle(first, NewRecord(STREAM, {}))

        assert bus.info(STREAM).last == 0

    def test_an_owner_that_has_settled_owns_nothing(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c1")
        lane = bus.claim_one()
        bus.do(Settle(owner=lane.owner, mail=(lane.mail[0].ref,)))

        with pytest.raises(Fenced):
            bus.do(OwnedAppend(owner=lane.owner, n=1, records=(NewRecord(STREAM, {}),)))
        with pytest.raises(Fenced):
            bus.do(Pending(lane.owner))

    def test_what_a_run_sends_in_its_last_append_is_mail_for_another_agent(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one()

        bus.settle(lane, NewRecord("chat:B", {"conversation_id": "c1", "sender": "agent:A", "content": "over to you"}))

        assert texts(bus.claim_one("w2", "B").mail) == ["over to you"]

    def test_mail_moves_to_the_dead_letters_in_the_settling_append(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "poison")
        lane = bus.claim_one()

        bus.settle(lane, NewRecord("dead:A", dict(lane.mail[0].payload)), NewRecord(STREAM, {"event": "error"}))

        assert texts(bus.read("dead:A")) == ["poison"]
        assert bus.claimed() == []

    def test_a_settled_lane_with_more_mail_wakes_watchers_of_the_inbox(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.mail("A", "c1", "second")
        lane = bus.claim_one()

        assert woken(bus, Settle(owner=lane.owner, mail=(lane.mail[0].ref,)), "chat:A")

    def test_leaving_wakes_watchers_of_the_inbox(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1")

        assert woken(bus, None, "chat:A", leaving="w1")

    def test_a_lane_that_another_claim_took_from_an_expired_worker_wakes_watchers(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=0.02)

        with bus.engine.watch(["chat:A"]) as watch:
            while watch.wait(0.05):
                pass
            bus.claim("w2", limit=0)

            assert watch.wait(DEADLINE_S) == {"chat:A"}

    # --- later

    def test_a_lane_that_was_put_off_comes_when_it_is_due(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "again")
        bus.later(bus.claim_one().owner, 0.05)

        (lane,) = eventually(lambda: bus.claim().lanes)

        assert (texts(lane.mail), lane.attempt) == (["again"], 2)

    def test_a_lane_that_was_put_off_does_not_come_early(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, 60)
        bus.mail("A", "c1", "more mail does not hurry it")

        assert bus.claimed() == []
        assert bus.do(Lanes("A"))[0].pending == 2

    def test_no_delay_means_at_once_and_at_the_front(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        lane = bus.claim("w1", limit=1).lanes[0]

        assert woken(bus, Later(owner=lane.owner, delay_s=0), "chat:A")

        assert [(each.owner.conversation, each.attempt) for each in bus.claim("w2").lanes] == [("c1", 2), ("c2", 1)]

    def test_a_refunded_attempt_does_not_count(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")

        bus.later(bus.claim_one().owner, 0, refund=True)

        assert bus.claim_one().attempt == 1

    def test_records_go_out_with_the_lane(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        owner = bus.claim_one().owner

        answer = bus.do(Later(owner=owner, delay_s=60, records=(NewRecord(STREAM, {"event": "run"}),)))

        assert (answer, bus.seqs(STREAM)) == (AppendResult((1,)), [1])

    def test_putting_off_again_answers_as_the_first_time(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        owner = bus.claim_one().owner
        operation = Later(owner=owner, delay_s=60, records=(NewRecord(STREAM, {}),))
        bus.do(operation)

        assert bus.do(operation) == AppendResult((1,), repeat=True)
        assert bus.seqs(STREAM) == [1]
        assert bus.do(Lanes("A"))[0].state == "later"

    def test_putting_off_again_does_not_refund_twice(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, 0)
        operation = Later(owner=bus.claim_one().owner, delay_s=0, refund=True)

        bus.do(operation)
        bus.do(operation)

        assert bus.claim_one().attempt == 2

    def test_an_owner_that_delayed_a_lane_is_fenced_once_another_has_given_it_up(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        first = bus.claim_one("w1")
        bus.later(first.owner, 0)
        bus.later(bus.claim_one("w2").owner, 0)

        with pytest.raises(Fenced):
            bus.later(first.owner, 0)
        with pytest.raises(Fenced):
            bus.settle(first)

    # --- parked, and control

    def test_a_parked_lane_waits_for_control_and_nothing_else(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.later(bus.claim_one().owner, None)

        bus.mail("A", "c1", "second")
        assert bus.claimed() == []

        bus.control("A", "c1", "approved")
        assert texts(bus.claim_one().mail) == ["approved", "first", "second"]

    def test_a_parked_lane_is_nothing_to_wait_for(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, None)

        assert bus.claim().wait_s is None

    @pytest.mark.parametrize("delay_s", [60, None])
    def test_control_makes_a_waiting_lane_ready_at_the_front(self, bus: BusDriver, delay_s: float | None) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, delay_s)
        bus.mail("A", "c2")
        bus.do(Claim(worker="w0", agents=("A",), limit=0, lease_s=LEASE_S))

        bus.control("A", "c1")

        assert bus.claimed() == ["c1", "c2"]

    def test_a_lane_that_holds_control_does_not_wait(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one("w1")
        bus.control("A", "c1", "stop")
        assert bus.claimed("w2") == []  # sorts the command into the held lane

        for delay_s in (None, 60.0):
            bus.later(lane.owner, delay_s)
            lane = bus.claim_one("w2")

        assert texts(lane.mail) == ["stop", ""]

    def test_unsorted_control_mail_is_not_lost_when_the_lane_is_parked(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        owner = bus.claim_one().owner
        bus.control("A", "c1", "unseen")

        bus.later(owner, None)

        assert [texts(lane.mail)[0] for lane in bus.claim().lanes] == ["unseen"]
