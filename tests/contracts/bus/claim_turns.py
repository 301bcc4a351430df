"""Principals: how ready lanes of different owners are claimed in turn, and how many slots one of them may use."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from magent2.bus.operations import Claim, Delete, Later, SetHead
from magent2.bus.records import ClaimResult, NewRecord
from tests.contracts.bus.driver import LEASE_S, BusDriver, ContractClass, EngineOpener, opened
from tests.contracts.bus.transfer import dumped, load
from tests.support.waiting import eventually

MANY = 250  # lanes of one principal; no more than one claim sorts


def mail_of(bus: BusDriver, owner: str | None, *conversations: str, agent: str = "A") -> None:
    """Append one message to each of these conversations, which belong to the owner."""
    for conversation in conversations:
        heads = () if owner is None else (SetHead(f"stream:{conversation}", {"owner": owner}),)
        record = NewRecord(f"chat:{agent}", {"conversation_id": conversation, "sender": "user:x"})
        bus.append(record, heads=heads)


def numbered(owner: str, count: int) -> list[str]:
    return [f"{owner}{number}" for number in range(1, count + 1)]


def claim_share(
    bus: BusDriver,
    limit: int,
    share: float,
    slots: Mapping[str, int] | None = None,
    agents: tuple[str, ...] = ("A",),
) -> ClaimResult:
    return bus.do(Claim(worker="w1", agents=agents, limit=limit, lease_s=LEASE_S, share=share, slots=slots or {}))


def conversations(claims: ClaimResult) -> list[str]:
    return [lane.owner.conversation for lane in claims.lanes]


class ClaimTurnsTests:
    # --- turns

    def test_a_claimed_lane_names_the_owner_of_its_conversation(self, bus: BusDriver) -> None:
        mail_of(bus, "user:ann", "c1")
        mail_of(bus, None, "c2")

        claims = bus.claim("w1", nonce="n1")

        assert [lane.principal for lane in claims.lanes] == ["user:ann", ""]
        assert sorted(lane.principal for lane in bus.claim("w1", nonce="n1").lanes) == ["", "user:ann"]

    def test_principals_take_turns_however_many_lanes_one_of_them_has(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 6))
        mail_of(bus, "bob", *numbered("b", 2))
        mail_of(bus, None, "c1")

        assert bus.claimed(limit=4) == ["a1", "b1", "c1", "a2"]
        assert bus.claimed(limit=4) == ["b2", "a3", "a4", "a5"]

    def test_turns_go_on_from_one_claim_to_the_next_and_over_all_workers(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 4))
        mail_of(bus, "bob", *numbered("b", 2))

        claimed = [bus.claimed(worker, limit=1)[0] for worker in ("w1", "w2", "w1", "w2", "w3", "w3")]

        assert claimed == ["a1", "b1", "a2", "b2", "a3", "a4"]

    def test_a_principal_that_comes_later_waits_for_one_lane_of_each_other(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", MANY))
        mail_of(bus, "bob", *numbered("b", 2))
        assert bus.claimed(limit=3) == ["a1", "b1", "a2"]

        mail_of(bus, "cyd", "c1")

        assert bus.claimed(limit=3) == ["b2", "a3", "c1"]

    def test_a_lane_with_more_mail_goes_behind_the_other_lanes_of_its_principal(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", "a1", "a2")
        mail_of(bus, "bob", "b1")
        (lane,) = bus.claim(limit=1).lanes
        mail_of(bus, "ann", "a1")
        bus.claim(limit=0)

        bus.settle(lane)

        assert bus.claimed() == ["b1", "a2", "a1"]

    def test_control_mail_goes_ahead_of_the_principals_own_lanes_only(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", "a1")
        mail_of(bus, "bob", "b1", "b2")
        bus.claim(limit=0)
        bus.set_head("stream:b3", owner="bob")

        bus.control("A", "b3")

        assert bus.claimed() == ["a1", "b3", "b1", "b2"]

    def test_lanes_of_a_lost_worker_go_ahead_of_the_principals_own_lanes(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", "a1")
        assert bus.claimed("w1") == ["a1"]
        mail_of(bus, "bob", "b1", "b2")
        mail_of(bus, "ann", "a2")
        bus.claim("w2", limit=0)

        bus.leave("w1")

        assert bus.claimed("w2") == ["b1", "a1", "b2", "a2"]

    def test_a_delayed_lane_keeps_its_principal(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", "a1")
        bus.do(Later(owner=bus.claim_one().owner, delay_s=0.01))

        (lane,) = eventually(lambda: bus.claim().lanes)

        assert (lane.principal, lane.attempt) == ("ann", 2)

    def test_principals_have_turns_with_every_agent(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 3))
        mail_of(bus, "ann", *numbered("x", 3), agent="B")
        mail_of(bus, "bob", "b1")
        mail_of(bus, "bob", "y1", agent="B")

        claimed = bus.claimed(agents=("A", "B"), limit=4)

        assert sorted(claimed) == ["a1", "b1", "x1", "y1"]

    def test_a_deleted_conversation_takes_its_lane_out_of_the_turns(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", "a1", "a2")
        mail_of(bus, "bob", "b1")
        mail_of(bus, "cyd", "c1")
        bus.claim(limit=0)

        bus.do(Delete(("stream:a1", "chat:a1"), "a1"))
        bus.do(Delete(("stream:b1",)))  # the owner is gone, the lane is not
        bus.do(Delete(("chat:b1",), "b1"))

        assert bus.claimed() == ["a2", "c1"]

    def test_an_export_keeps_the_principals_of_ready_lanes(self, bus: BusDriver, opener: EngineOpener) -> None:
        mail_of(bus, "ann", *numbered("a", 3))
        mail_of(bus, "bob", "b1")
        bus.claim(limit=0)

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))
            claims = copy.claim(limit=2)

        assert {lane.principal for lane in claims.lanes} == {"ann", "bob"}

    # --- shares

    @pytest.mark.parametrize(("share", "lanes"), [(0.5, 4), (0.75, 6), (0.01, 1), (1.0, 8)])
    def test_one_principal_uses_no_more_than_its_share_of_the_slots(
        self, bus: BusDriver, share: float, lanes: int
    ) -> None:
        mail_of(bus, "ann", *numbered("a", 10))

        claims = claim_share(bus, 8, share)

        assert conversations(claims) == numbered("a", lanes)
        assert claims.over_share is (lanes < 8)

    def test_slots_that_a_principal_uses_already_count(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 10))

        claims = claim_share(bus, 5, 0.5, {"ann": 3})

        assert conversations(claims) == ["a1"]
        assert claims.over_share
        assert claim_share(bus, 4, 0.5, {"ann": 4}).lanes == ()

    def test_a_principal_over_its_share_does_not_hold_up_another(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 10))
        mail_of(bus, "bob", "b1")

        claims = claim_share(bus, 4, 0.5, {"ann": 4})

        assert (conversations(claims), claims.over_share) == (["b1"], True)

    def test_slots_stay_free_however_many_principals_use_their_share(self, bus: BusDriver) -> None:
        for owner in ("a", "b", "c"):
            mail_of(bus, owner, *numbered(owner, 10))
        claims = claim_share(bus, 8, 0.5)
        mail_of(bus, "dan", "d1")

        used = {owner: conversations(claims).count(f"{owner}1") * 2 for owner in ("a", "b", "c")}
        assert sorted(conversations(claims)) == ["a1", "a2", "b1", "b2", "c1", "c2"]
        assert conversations(claim_share(bus, 2, 0.5, used)) == ["d1"]

    def test_a_principal_that_was_passed_over_keeps_its_turn(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 4))
        mail_of(bus, "bob", *numbered("b", 2))
        mail_of(bus, "cyd", *numbered("c", 2))
        assert conversations(claim_share(bus, 2, 0.5, {"ann": 5})) == ["b1", "c1"]

        assert bus.claimed(limit=3) == ["a1", "b2", "c2"]

    def test_conversations_without_an_owner_may_use_every_slot(self, bus: BusDriver) -> None:
        mail_of(bus, None, *numbered("c", 10))

        claims = claim_share(bus, 8, 0.5)

        assert (conversations(claims), claims.over_share) == (numbered("c", 8), False)

    def test_a_share_counts_the_lanes_of_all_agents(self, bus: BusDriver) -> None:
        mail_of(bus, "ann", *numbered("a", 5))
        mail_of(bus, "ann", *numbered("x", 5), agent="B")

        assert len(claim_share(bus, 8, 0.5, agents=("A", "B")).lanes) == 4

    # --- cost

    @pytest.mark.parametrize("slots", [0, 4])
    def test_a_claim_costs_no_more_when_a_principal_has_many_ready_lanes(
        self: ContractClass, bus: BusDriver, slots: int
    ) -> None:
        def claim(agent: str) -> Claim:
            used = {"ann": slots} if slots else {}
            return Claim(worker="w1", agents=(agent,), limit=4, lease_s=LEASE_S, share=0.5, slots=used)

        for agent, count in (("few", 10), ("many", 1000)):
            owned = [f"{agent}{number}" for number in range(count)]
            heads = tuple(SetHead(f"stream:{name}", {"owner": "ann"}) for name in owned)
            for start in range(0, count, MANY):
                page = owned[start : start + MANY]
                records = (NewRecord(f"chat:{agent}", {"conversation_id": name}) for name in page)
                bus.append(*records, heads=heads[start : start + MANY])
                bus.claim(agents=(agent,), limit=0)

        few, many = (self.count_work(bus.engine, claim(agent)) for agent in ("few", "many"))

        assert many < 1.5 * few, (few, many)
