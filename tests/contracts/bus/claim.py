"""Lanes: how mail is sorted into lanes, and how workers claim them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magent2.bus.operations import CLAIM_MAIL_MAX, Claim, Delete, Lanes, Pending, Renew, Trim, Workers
from magent2.bus.records import ClaimedLane, NewRecord
from tests.contracts.bus.driver import LEASE_S, BusDriver, ContractClass, refs, texts
from tests.support.waiting import eventually

SHORT_LEASE_S = 0.03
DAY_S = 86_400.0
MANY = 600  # more new mail than one claim sorts


class ClaimTests:
    # --- what becomes mail, and where it waits

    def test_mail_waits_in_the_lane_of_its_agent_and_conversation(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "hello", id="m1", headers={"steer": True})

        (lane,) = bus.claim("w1").lanes

        owner = lane.owner
        assert (owner.worker, owner.agent, owner.conversation) == ("w1", "A", "c1")
        assert (lane.attempt, lane.pending, lane.mail) == (1, 1, bus.read("chat:A"))

    def test_a_claim_tells_the_last_seq_of_the_history(self, bus: BusDriver) -> None:
        for conversation in ("new", "old", "swept"):
            bus.mail("A", conversation)
        bus.fill("history:old", 3)
        bus.fill("history:swept", 3)
        bus.do(Trim("history:swept", keep=1))

        claim = Claim(worker="w1", agents=("A",), limit=3, lease_s=LEASE_S)
        first, repeated = bus.do(claim), bus.do(claim)

        for lanes in (first.lanes, repeated.lanes):
            assert {lane.owner.conversation: lane.history_last for lane in lanes} == {"new": 0, "old": 3, "swept": 3}

    def test_mail_of_one_conversation_comes_together_and_in_order(self, bus: BusDriver) -> None:
        for n in range(6):
            bus.mail("A", f"c{n % 2}", str(n))

        first, second = bus.claim().lanes

        assert (texts(first.mail), texts(second.mail)) == (["0", "2", "4"], ["1", "3", "5"])

    def test_lanes_come_in_the_order_of_their_first_mail(self, bus: BusDriver) -> None:
        for conversation in ("c3", "c1", "c2", "c1", "c3"):
            bus.mail("A", conversation)

        assert bus.claimed(limit=2) == ["c3", "c1"]
        assert bus.claimed(limit=2) == ["c2"]

    def test_control_goes_ahead_of_mail_in_its_lane(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        bus.mail("A", "c1", "second")
        bus.control("A", "c1", "stop")
        bus.control("A", "c1", "really")

        assert texts(bus.claim_one().mail) == ["stop", "really", "first", "second"]

    def test_a_lane_that_begins_with_control_goes_to_the_front(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        bus.claim("w0", limit=0)

        bus.control("A", "c3")

        assert bus.claimed() == ["c3", "c1", "c2"]

    @pytest.mark.parametrize(
        "payload", [{}, {"conversation_id": ""}, {"conversation_id": 7}, {"conversation_id": " x\n"}]
    )
    def test_mail_that_names_no_conversation_waits_in_the_lane_without_a_name(
        self, bus: BusDriver, payload: dict[str, Any]
    ) -> None:
        bus.put("chat:A", payload)
        bus.put("control:A", payload)

        (lane,) = bus.claim().lanes

        assert (lane.owner.conversation, [record.ref.topic for record in lane.mail]) == ("", ["control:A", "chat:A"])
        bus.settle(lane)

    def test_what_an_agent_says_itself_opens_no_lane(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "hello")
        bus.put("chat:A", {"conversation_id": "c2", "sender": "agent:A"})

        assert bus.claimed() == ["c1"]

    def test_the_log_of_a_conversation_is_no_mail_for_an_agent_of_its_name(self, bus: BusDriver) -> None:
        bus.put("chat:c1", {"conversation_id": "c1", "sender": "user:ann"})

        assert bus.claimed(agents=("c1",)) == []

    def test_agents_have_their_own_lanes_in_one_conversation(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "for A")
        bus.mail("B", "c1", "for B")

        assert [texts(lane.mail) for lane in bus.claim("w1", ("A",)).lanes] == [["for A"]]
        assert [texts(lane.mail) for lane in bus.claim("w2", ("B",)).lanes] == [["for B"]]

    def test_names_with_colons_keep_their_lanes_apart(self, bus: BusDriver) -> None:
        bus.mail("a:b", "c", "first")
        bus.mail("a", "b:c", "second")
        bus.mail("a", "b", "third")

        lanes = {(lane.owner.agent, lane.owner.conversation): lane for lane in bus.claim(agents=("a", "a:b")).lanes}

        assert {name: texts(lane.mail) for name, lane in lanes.items()} == {
            ("a:b", "c"): ["first"],
            ("a", "b:c"): ["second"],
            ("a", "b"): ["third"],
        }
        for lane in lanes.values():
            bus.settle(lane)

    def test_a_deleted_inbox_does_not_block_other_inboxes(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim("w0", limit=0)
        bus.mail("A", "c2")
        bus.mail("B", "c1", "other")
        bus.do(Delete(("chat:A",)))

        lanes = bus.claim(agents=("A", "B")).lanes

        assert [texts(lane.mail) for lane in lanes if lane.owner.agent == "B"] == [["other"]]
        for lane in lanes:
            assert all(record.erased for record in lane.mail) or lane.owner.agent == "B"
            bus.settle(lane)

    def test_a_claim_brings_the_first_mail_and_says_how_much_there_is(self, bus: BusDriver) -> None:
        total = CLAIM_MAIL_MAX + 4
        for n in range(total):
            bus.mail("A", "c1", str(n))

        lane = bus.claim_one()

        assert (len(lane.mail), lane.pending) == (CLAIM_MAIL_MAX, total)
        assert texts(bus.do(Pending(lane.owner, limit=100))) == [str(n) for n in range(total)]
        assert texts(bus.do(Pending(lane.owner, limit=3))) == ["0", "1", "2"]

    def test_all_new_mail_is_sorted_however_much_there_is(self, bus: BusDriver) -> None:
        bus.append(*(NewRecord("chat:A", {"conversation_id": f"c{n}"}) for n in range(MANY)))

        got: list[str] = []
        for _ in range(MANY):
            claims = bus.claim(limit=1000)
            got += [lane.owner.conversation for lane in claims.lanes]
            if not claims.more:
                break

        assert got == [f"c{n}" for n in range(MANY)]

    def test_mail_that_cannot_be_read_comes_with_the_reason(self: ContractClass, bus: BusDriver) -> None:
        bus.mail("A", "c1", "good")
        self.append_malformed(bus.engine, "chat:A")

        lanes = bus.claim().lanes

        mail = {record.seq: record for lane in lanes for record in lane.mail}
        assert [(bool(mail[seq].malformed), mail[seq].erased) for seq in (1, 2)] == [(False, False), (True, False)]
        assert mail[2].payload == {}
        for lane in lanes:
            bus.settle(lane)
        assert bus.claimed() == []

    # --- one owner at a time

    def test_a_lane_has_one_owner_at_a_time(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1")
        bus.mail("A", "c1")

        assert bus.claimed("w2") == []
        assert bus.claimed("w1") == []

    def test_workers_that_claim_together_never_share_a_lane(self, bus: BusDriver) -> None:
        bus.append(*(NewRecord("chat:A", {"conversation_id": f"c{n}"}) for n in range(40)))
        together = threading.Barrier(4)

        def claim(worker: int) -> list[ClaimedLane]:
            together.wait()
            operation = [Claim(worker=f"w{worker}", agents=("A",), limit=5, lease_s=LEASE_S) for _ in range(3)]
            return [lane for each in operation for lane in bus.engine.call(each).lanes]

        with ThreadPoolExecutor(4) as pool:
            lanes = [lane for lanes in pool.map(claim, range(4)) for lane in lanes]

        assert sorted(lane.owner.conversation for lane in lanes) == sorted(f"c{n}" for n in range(40))
        assert len({lane.owner.token for lane in lanes}) == 40

    def test_mail_for_a_held_lane_is_seen_by_its_owner(self, bus: BusDriver) -> None:
        bus.mail("A", "c1", "first")
        lane = bus.claim_one("w1")

        bus.mail("A", "c1", "second")
        bus.control("A", "c1", "stop")
        bus.claim("w2", limit=0)

        assert texts(bus.do(Pending(lane.owner))) == ["stop", "first", "second"]

    def test_a_claim_takes_at_most_its_limit(self, bus: BusDriver) -> None:
        for n in range(5):
            bus.mail("A", f"c{n}")

        assert [len(bus.claimed(limit=limit)) for limit in (0, 2, 1, 100)] == [0, 2, 1, 2]

    def test_a_busy_agent_does_not_starve_another(self, bus: BusDriver) -> None:
        for n in range(4):
            bus.mail("A", f"c{n}")
        bus.claim("w1", ("A", "B"), limit=0)
        bus.mail("B", "only")

        for _ in range(6):
            lanes = bus.claim("w1", ("A", "B"), limit=1).lanes
            if lanes[0].owner.agent == "B":
                return
            bus.mail("A", lanes[0].owner.conversation)
            bus.settle(lanes[0])
        pytest.fail("six claims, and none of them for B")

    def test_a_lost_reply_is_asked_for_again_with_the_same_nonce(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        first = bus.claim("w1", nonce="n1", limit=2)
        bus.mail("A", "c3")

        again = bus.claim("w1", nonce="n1", limit=2)

        assert again.lanes == first.lanes
        assert bus.claimed("w1") == ["c3"]

    def test_the_same_nonce_hands_out_only_what_is_still_held(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        first, second = bus.claim("w1", nonce="n1").lanes
        bus.settle(first)

        assert bus.claim("w1", nonce="n1").lanes == (second,)

    def test_the_same_nonce_hands_out_nothing_if_nothing_came_the_first_time(self, bus: BusDriver) -> None:
        bus.claim("w1", nonce="n1")
        bus.mail("A", "c1")

        assert bus.claim("w1", nonce="n1").lanes == ()
        assert bus.claimed("w1") == ["c1"]

    # --- leases

    def test_lanes_of_a_worker_whose_lease_ran_out_go_to_another(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        first = bus.claim_one("w1", lease_s=SHORT_LEASE_S)

        (second,) = eventually(lambda: bus.claim("w2").lanes)

        assert (second.attempt, second.mail) == (2, first.mail)
        assert second.owner.token != first.owner.token

    def test_lanes_of_an_expired_worker_go_to_the_front(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=SHORT_LEASE_S)
        bus.mail("A", "c2")

        def both_ready() -> bool:
            bus.claim("w2", limit=0)
            return [lane.state for lane in bus.do(Lanes("A"))] == ["ready", "ready"]

        eventually(both_ready)

        assert bus.claimed("w2") == ["c1", "c2"]

    def test_a_renewed_lease_does_not_run_out(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=SHORT_LEASE_S)

        assert bus.do(Renew("w1", LEASE_S))

        assert bus.do(Workers())[0].lease_s > LEASE_S / 2
        assert bus.claimed("w2") == []

    def test_a_claim_renews_the_lease(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=SHORT_LEASE_S)

        bus.claim("w1", limit=0, lease_s=LEASE_S)

        assert bus.do(Workers())[0].lease_s > LEASE_S / 2

    def test_a_worker_that_is_not_known_has_nothing_to_renew(self, bus: BusDriver) -> None:
        bus.claim("w1")
        bus.leave("w1")

        assert not bus.do(Renew("never", LEASE_S))
        assert not bus.do(Renew("w1", LEASE_S))

    def test_a_worker_that_leaves_gives_its_lanes_back_to_the_front(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1")
        bus.mail("A", "c2")
        bus.claim("w2", limit=0)

        assert bus.leave("w1") == 1

        assert [(lane.owner.conversation, lane.attempt) for lane in bus.claim("w2").lanes] == [("c1", 2), ("c2", 1)]

    def test_a_worker_that_holds_nothing_may_leave_too(self, bus: BusDriver) -> None:
        bus.claim("w1")

        assert (bus.leave("w1"), bus.leave("w1"), bus.leave("never")) == (0, 0, 0)
        assert bus.do(Workers()) == ()

    def test_a_crash_of_a_worker_returns_all_its_lanes(self, bus: BusDriver) -> None:
        for conversation in ("c1", "c2", "c3"):
            bus.mail("A", conversation)
        bus.mail("B", "c1")
        bus.claim("w1", ("A", "B"))

        assert bus.leave("w1") == 4
        assert sorted(bus.claimed("w2", ("A", "B"))) == ["c1", "c1", "c2", "c3"]

    # --- when to come back

    def test_nothing_to_wait_for_is_no_time(self, bus: BusDriver) -> None:
        assert bus.claim("w1").wait_s is None

        bus.mail("A", "c1")
        assert bus.claim("w1").wait_s is None

    def test_a_claim_tells_when_the_next_lane_falls_due(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, 30)

        wait_s = bus.claim("w1").wait_s

        assert wait_s is not None
        assert 20 < wait_s < 30.1

    def test_a_claim_tells_when_the_lease_of_another_worker_runs_out(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=40)

        wait_s = bus.claim("w2").wait_s

        assert wait_s is not None
        assert 30 < wait_s < 40.1

    # --- a clock that is set

    @pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
    def test_a_delay_is_as_long_when_the_clock_is_set(self: ContractClass, bus: BusDriver, jump_s: float) -> None:
        bus.mail("A", "c1")
        bus.later(bus.claim_one().owner, 30)

        self.jump_clock(jump_s)
        claimed = bus.claim("w1")

        assert claimed.lanes == ()
        assert claimed.wait_s is not None
        assert 20 < claimed.wait_s < 30.1
        assert 20 < (bus.do(Lanes("A"))[0].due_s or 0) < 30.1

    @pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
    def test_a_delayed_lane_comes_when_it_is_due_although_the_clock_is_set(
        self: ContractClass, bus: BusDriver, jump_s: float
    ) -> None:
        bus.mail("A", "c1")
        lane = bus.claim_one()
        self.jump_clock(jump_s)
        bus.later(lane.owner, 0.02)
        self.jump_clock(jump_s)

        (again,) = eventually(lambda: bus.claim("w1").lanes)

        assert (again.owner.conversation, again.attempt) == ("c1", 2)

    @pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
    def test_a_lease_lasts_as_long_when_the_clock_is_set(self: ContractClass, bus: BusDriver, jump_s: float) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1")

        self.jump_clock(jump_s)

        assert bus.claimed("w2") == []
        assert LEASE_S - 10 < {info.worker: info.lease_s for info in bus.do(Workers())}["w1"] < LEASE_S + 0.1

    @pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
    def test_a_lease_ends_although_the_clock_is_set(self: ContractClass, bus: BusDriver, jump_s: float) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=SHORT_LEASE_S)

        self.jump_clock(jump_s)

        (lane,) = eventually(lambda: bus.claim("w2").lanes)
        assert lane.attempt == 2

    @pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
    def test_the_clock_of_a_claim_goes_on_when_the_clock_is_set(
        self: ContractClass, bus: BusDriver, jump_s: float
    ) -> None:
        bus.mail("A", "c1")
        bus.mail("A", "c2")
        before = bus.claim("w1", limit=1).lanes[0].clock_ms

        self.jump_clock(jump_s)

        assert 0 <= bus.claim("w1", limit=1).lanes[0].clock_ms - before < 10_000

    # --- what an operator sees

    def test_an_operator_sees_every_lane_with_mail(self, bus: BusDriver) -> None:
        for conversation in ("c1", "c2", "c3", "c4", "c4"):
            bus.mail("A", conversation)
        first, second, third = bus.claim("w1", limit=3).lanes
        bus.later(second.owner, 30)
        bus.later(third.owner, None)

        lanes = {lane.conversation: lane for lane in bus.do(Lanes("A"))}

        assert {name: (lane.state, lane.pending, lane.attempt, lane.worker) for name, lane in lanes.items()} == {
            "c1": ("held", 1, 1, "w1"),
            "c2": ("later", 1, 1, None),
            "c3": ("parked", 1, 1, None),
            "c4": ("ready", 2, 0, None),
        }
        assert [20 < (lane.due_s or 0) < 30.1 for lane in lanes.values()].count(True) == 1
        assert bus.do(Lanes("B")) == ()
        bus.settle(first)
        assert "c1" not in {lane.conversation for lane in bus.do(Lanes("A"))}

    def test_lanes_are_shown_oldest_first_and_up_to_a_limit(self, bus: BusDriver) -> None:
        for conversation in ("c2", "c3", "c1"):
            bus.mail("A", conversation)
        bus.claim("w1", limit=0)

        assert [lane.conversation for lane in bus.do(Lanes("A", limit=2))] == ["c2", "c3"]

    def test_an_operator_sees_every_worker(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim("w1", ("A", "B"))
        bus.claim("w2", ("B",), lease_s=30)

        workers = {worker.worker: worker for worker in bus.do(Workers())}

        assert {name: (sorted(worker.agents), worker.lanes) for name, worker in workers.items()} == {
            "w1": (["A", "B"], 1),
            "w2": (["B"], 0),
        }
        assert 20 < workers["w2"].lease_s < 30.1

    def test_an_expired_worker_is_listed_until_a_claim_removes_it(self, bus: BusDriver) -> None:
        bus.mail("A", "c1")
        bus.claim_one("w1", lease_s=SHORT_LEASE_S)

        eventually(lambda: bus.do(Workers())[0].lease_s < 0)

        bus.claim("w2", limit=0)
        assert [worker.worker for worker in bus.do(Workers())] == ["w2"]

    def test_mail_of_a_lane_is_named_by_inbox_and_number(self, bus: BusDriver) -> None:
        chat, control = bus.mail("A", "c1"), bus.control("A", "c1")

        assert refs(bus.claim_one()) == (control, chat)
