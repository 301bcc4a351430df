"""Random histories of a log and its lanes: whatever is done to an engine, its answers are those of the model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from magent2.bus.operations import Claim, Lanes, Later, Leave, OwnedAppend, Pending, Renew, Settle, Workers
from magent2.bus.records import ClaimResult, MailRef, NewRecord, Owner
from tests.contracts.bus_machine_log import AGENTS, CONVERSATIONS, LogMachine, picks, shown, shown_all

WORKERS = ("w1", "w2", "w3")
LEASE_S = 3600.0  # leases do not run out by themselves here: `Leave` is what happens when one does

WORKS = st.sampled_from(["append", "append", "append", "pending"])
ENDS = st.sampled_from(["settle", "later"])
CLAIMS = st.sampled_from([("A",), ("B",), ("A", "B")])
KINDS = st.sampled_from(["chat", "chat", "chat", "control", "nameless", "own"])


class BusMachine(LogMachine):
    """What `LogMachine` does, and workers that claim, append, settle, put off, crash and come back as zombies."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Owner] = []  # all that ever were: most of them are zombies
        self.claims: dict[str, Claim] = {}
        self.tokens: set[str] = set()

    def check_everything(self) -> None:
        super().check_everything()
        self.lanes_are_as_the_model_says()
        self.workers_are_as_the_model_says()

    def carry_over(self) -> None:
        """No lane has an owner there, and the zombies know."""
        super().carry_over()
        self.model.carry_over()
        for pick in range(1, 40, 4):
            if self.owners:
                self.work("pending", pick)
                self.end("settle", pick)
        self.claim("w9", AGENTS, 100)

    # --- mail

    @initialize(conversation=st.sampled_from(CONVERSATIONS))
    def begin(self, conversation: str) -> None:
        for agent in AGENTS:
            self.mail(agent, [conversation, "c1", "c1"], "chat")
        self.claim("w1", AGENTS, 2)

    @rule(
        agent=st.sampled_from(AGENTS),
        conversations=st.lists(st.sampled_from(CONVERSATIONS), min_size=1, max_size=3),
        kind=KINDS,
    )
    def mail(self, agent: str, conversations: list[str], kind: str) -> None:
        for conversation in conversations:
            payload = {"conversation_id": conversation, "n": str(self.names)}
            if kind == "nameless":
                del payload["conversation_id"]
            if kind == "own":
                payload["sender"] = f"agent:{agent}"
            topic = f"control:{agent}" if kind == "control" else f"chat:{agent}"
            self.append(NewRecord(topic, payload, self.new_id()))

    # --- workers

    @rule(worker=st.sampled_from(WORKERS), chosen=CLAIMS, limit=st.sampled_from([2, 1, 3, 0]))
    def claim(self, worker: str, chosen: tuple[str, ...], limit: int) -> None:
        operation = Claim(worker=worker, agents=chosen, limit=limit, lease_s=LEASE_S)
        claims = self.do(operation)
        self.claims[worker] = operation

        self.model.sort(chosen)
        self.model.workers[worker] = operation.nonce
        assert len(claims.lanes) == min(limit, self.model.count_ready(chosen))
        for claimed in claims.lanes:
            self.hand_out(claimed.owner, operation)
        self.check_claims(claims, operation)

    def hand_out(self, owner: Owner, operation: Claim) -> None:
        assert owner.worker == operation.worker
        assert owner.conversation in self.model.next_ready(owner.agent)
        assert owner.token not in self.tokens
        self.tokens.add(owner.token)
        self.owners.append(owner)
        self.model.hand_out(owner, operation.nonce)

    def check_claims(self, claims: ClaimResult, operation: Claim) -> None:
        """All lanes held by this claim, and as they are now."""
        expected = {lane.owner: lane for lane in self.model.held_by(operation.worker, operation.nonce)}
        assert {claimed.owner for claimed in claims.lanes} == set(expected)
        for claimed in claims.lanes:
            lane = expected[claimed.owner]
            assert (claimed.attempt, claimed.pending) == (lane.attempt, len(lane.mail))
            assert [shown(record) for record in claimed.mail] == shown_all(self.model.mail_of(lane))
        assert not claims.more
        self.check_wait(claims, operation)

    def check_wait(self, claims: ClaimResult, operation: Claim) -> None:
        lanes = self.model.lanes.items()
        later = any(agent in operation.agents and lane.state == "later" for (agent, _), lane in lanes)
        others = any(lane.owner and lane.owner.worker != operation.worker for _, lane in lanes)
        if later:
            assert claims.wait_s is not None
        if not later and not others:
            assert claims.wait_s is None

    @rule(worker=st.sampled_from(WORKERS), how=st.sampled_from(["again", "crash", "crash", "renew"]))
    def worker(self, worker: str, how: str) -> None:
        if how == "crash":  # its lease is over; it may still try to write, as a zombie
            self.agree(Leave(worker), lambda: self.model.leave(worker))
        elif how == "renew":
            self.agree(Renew(worker, LEASE_S), lambda: worker in self.model.workers)
        else:
            self.claim_again(worker)

    def claim_again(self, worker: str) -> None:
        """The reply of the last claim was lost."""
        operation = self.claims.get(worker)
        if operation is not None and self.model.workers.get(worker) == operation.nonce:
            claims = self.do(operation)
            self.model.sort(operation.agents)
            self.check_claims(claims, operation)

    # --- owners

    @precondition(lambda self: self.owners)
    @rule(how=WORKS, pick=picks)
    def work(self, how: str, pick: int) -> None:
        getattr(self, f"work_{how}")(self.owner(pick), pick)

    @precondition(lambda self: self.owners)
    @rule(how=ENDS, pick=picks)
    def end(self, how: str, pick: int) -> None:
        getattr(self, f"end_{how}")(self.owner(pick), pick)

    def owner(self, pick: int) -> Owner:
        """One in four is any that ever was, the others hold their lane."""
        current = [owner for owner in self.owners if self.holds(owner)]
        chosen = self.owners if pick % 4 == 1 or not current else current
        return chosen[pick // 4 % len(chosen)]

    def holds(self, owner: Owner) -> bool:
        lane = self.model.lanes.get((owner.agent, owner.conversation))
        return lane is not None and lane.owner == owner

    def mail_in(self, owner: Owner) -> list[MailRef]:
        lane = self.model.lanes.get((owner.agent, owner.conversation))
        return lane.ordered() if lane is not None else []

    def work_append(self, owner: Owner, pick: int) -> None:
        """The next number mostly; sometimes one already seen, or one too far. Sometimes with the second mail."""
        lane = self.model.lanes.get((owner.agent, owner.conversation))
        n = max((lane.n if lane else 0) + [1, 1, 1, 0, -1, 2][pick % 6], 1)
        records = (NewRecord(f"stream:{owner.conversation}", {"by": owner.token}), NewRecord("dead:A", {}))
        mail = tuple(self.mail_in(owner)[1:2]) if pick % 2 else ()
        operation = OwnedAppend(owner=owner, n=n, records=records, mail=mail)
        self.agree(operation, lambda: self.model.owned_append(operation))

    def end_settle(self, owner: Owner, pick: int) -> None:
        """With an output, or buried."""
        mail = tuple(self.mail_in(owner)[: 1 + pick % 3]) or (MailRef(f"chat:{owner.agent}", 1),)
        topic = f"dead:{owner.agent}" if pick % 3 == 0 else f"stream:{owner.conversation}"
        record = NewRecord(topic, {"conversation_id": owner.conversation}, f"end-{owner.token}")
        operation = Settle(owner=owner, mail=mail, records=(record,))
        self.agree(operation, lambda: self.model.settle(operation))

    def end_later(self, owner: Owner, pick: int) -> None:
        operation = Later(owner=owner, delay_s=[0.0, 3600.0, None][pick % 3], refund=pick % 2 == 0)
        self.agree(operation, lambda: self.model.later(operation))

    def work_pending(self, owner: Owner, pick: int) -> None:
        self.agree(
            Pending(owner),
            lambda: shown_all(self.model.mail_of(self.model.owned(owner))),
            lambda records: [shown(record) for record in records],
        )

    # --- after every step

    @invariant()
    def lanes_are_as_the_model_says(self) -> None:
        for agent in AGENTS:
            lanes = self.do(Lanes(agent))
            assert {(lane.conversation, lane.state, lane.pending, lane.attempt, lane.worker) for lane in lanes} == {
                (conversation, lane.state, len(lane.mail), lane.attempt, lane.owner.worker if lane.owner else None)
                for (name, conversation), lane in self.model.lanes.items()
                if name == agent and lane.mail
            }

    @invariant()
    def workers_are_as_the_model_says(self) -> None:
        assert {(info.worker, info.lanes) for info in self.do(Workers())} == {
            (worker, len(self.model.held_by(worker))) for worker in self.model.workers
        }
