"""State machines that run random histories on an engine and compare every result with the reference model.

There are few rules, each with many variants, because Hypothesis leaves out whole rules in most of its histories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    OLDEST,
    Append,
    Claim,
    Compact,
    Condition,
    Delete,
    Describe,
    Erase,
    Find,
    HeadIs,
    Lanes,
    LastSeqIs,
    Later,
    Leave,
    Operation,
    OwnedAppend,
    Pending,
    Read,
    Renew,
    SetHead,
    Settle,
    Topics,
    Trim,
    Workers,
)
from magent2.bus.records import ClaimResult, MailRef, NewRecord, Owner, Record, TrimResult
from magent2.errors import Magent2Error
from tests.contracts.bus.driver import AsyncDriver, BusDriver
from tests.contracts.bus.follow import take
from tests.contracts.bus.model import LogModel, ModelRecord
from tests.contracts.bus.transfer import dumped, load

R = TypeVar("R")

AGENTS = ("A", "B")
CONVERSATIONS = ("c1", "c2", "c3")
STREAMS = tuple(f"stream:{name}" for name in CONVERSATIONS)
INBOXES = tuple(f"{kind}:{agent}" for kind in ("chat", "control") for agent in AGENTS)
TOPICS = (*STREAMS, *INBOXES, "chat:c1", "dead:A")
DELETE_FROM_STEP = 60

streams = st.sampled_from(STREAMS)
topics = st.sampled_from(TOPICS)
picks = st.integers(0, 10_000)

WRITES = st.sampled_from(["plain", "conditional", "again", "conflict", "many", "tokens", "head", "conditional"])
READS = st.sampled_from(["seq", "id", "none", "oldest", "before", "find", "follow", "follow", "listing"])
MAINTENANCE = st.sampled_from(["trim", "trim", "trim_through", "trim_by_age", "compact", "compact", "erase", "deleted"])


def shown(record: Record) -> tuple[Any, ...]:
    """Return what the model knows of a record: everything except its time."""
    kept = (record.seq, record.id, record.draft, record.closes, record.erased)
    return (*kept, record.payload, dict(record.headers))


def shown_all(entries: list[ModelRecord]) -> list[tuple[Any, ...]]:
    return [entry.shown for entry in entries]


class LogStateMachine(RuleBasedStateMachine):
    """Appends, reads and maintenance. The steps alternate between `call` and `acall`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LogModel()
        self.driver: BusDriver = AsyncDriver(self.open_engine())
        self.steps = 0
        self.names = 0
        self.appends: list[Append] = []
        self.followed: dict[str, int] = {}

    def open_engine(self) -> Engine:
        """Open an engine on an empty log."""
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self.check_everything()
            self.transfer()
            self.check_everything()
        finally:
            self.driver.close()

    def check_everything(self) -> None:
        self.topics_are_as_the_model_says()
        for topic in TOPICS:
            self.agree_on_page(Read(topic, OLDEST, 10_000))

    def transfer(self) -> None:
        """Export the log, import it into another engine, and continue there."""
        rows = dumped(self.driver)
        self.driver.close()
        self.driver = AsyncDriver(self.open_engine())
        load(self.driver, rows)
        for pick in range(0, len(self.appends), 3):
            self.write_again("", pick)

    # --- comparing

    def do(self, operation: Operation[R]) -> R:
        self.steps += 1
        return self.driver.engine.call(operation) if self.steps % 2 else self.driver.do(operation)

    def agree(self, operation: Operation[R], expect: Callable[[], Any], show: Callable[[R], Any] = lambda r: r) -> None:
        """Check that the engine returns, or raises, the same as the model."""
        assert self.outcome(lambda: show(self.do(operation))) == self.outcome(expect), operation

    def outcome(self, answer: Callable[[], Any]) -> Any:
        try:
            return answer()
        except Magent2Error as error:
            return type(error)

    def agree_on_page(self, read: Read) -> None:
        self.agree(
            read,
            lambda: shown_all(self.model.read(read.topic, read.after, read.limit, read.before)),
            lambda page: [shown(record) for record in page.records],
        )

    def new_id(self) -> str:
        self.names += 1
        return f"id-{self.names}"

    def append(
        self, *records: NewRecord, conditions: tuple[Condition, ...] = (), heads: tuple[SetHead, ...] = ()
    ) -> None:
        operation = Append(records=records, conditions=conditions, heads=heads)
        self.appends.append(operation)
        self.agree(operation, lambda: self.model.append(operation))

    def earlier(self, pick: int) -> Append | None:
        return self.appends[pick % len(self.appends)] if self.appends else None

    # --- appending

    @rule(how=WRITES, topic=streams, pick=picks)
    def write(self, how: str, topic: str, pick: int) -> None:
        getattr(self, f"write_{how}")(topic, pick)

    def write_plain(self, topic: str, pick: int) -> None:
        self.append(NewRecord(topic, {"x": pick % 3}, self.new_id() if pick % 2 else None))

    def write_again(self, topic: str, pick: int) -> None:
        operation = self.earlier(pick)
        if operation is not None:
            self.agree(operation, lambda: self.model.append(operation))

    def write_conflict(self, topic: str, pick: int) -> None:
        """Append another body under an id that may be known."""
        operation = self.earlier(pick)
        if operation is not None and operation.records[-1].id is not None:
            self.append(NewRecord(operation.records[-1].topic, {"other": True}, operation.records[-1].id))

    def write_many(self, topic: str, pick: int) -> None:
        """Append to several topics; the last record may be one that is known already."""
        records = [NewRecord(name, {"x": 1}, self.new_id() if pick % 3 else None) for name in (topic, *STREAMS[:2])]
        operation = self.earlier(pick)
        if operation is not None:
            known = operation.records[0]
            records.append(NewRecord(known.topic, known.payload, known.id))
        self.append(*records)

    def write_conditional(self, topic: str, pick: int) -> None:
        other = TOPICS[pick % len(TOPICS)]
        at = LastSeqIs(other, self.model.topic(other).last + (pick % 3 == 0))
        self.append(NewRecord(topic, {}), conditions=(at, HeadIs(topic, "title", [None, None, "x"][pick % 3])))

    def write_tokens(self, topic: str, pick: int) -> None:
        message = self.new_id()
        for n in range(1 + pick % 2):
            self.append(NewRecord(topic, {"event": "token", "n": n}, draft=message))
        if pick % 3:
            self.append(NewRecord(topic, {"event": "output"}, closes=message))

    def write_head(self, topic: str, pick: int) -> None:
        """Set fields of a head; two of the long ones exceed its limit."""
        fields: list[dict[str, Any]] = [
            {"title": "x"},
            {"title": None},
            {"long": "y" * 2500},
            {"longer": "y" * 2500},
            {"long": None},
        ]
        owner = [None, "ann", "bob"][pick % 3]
        self.append(NewRecord("dead:A", {}), heads=(SetHead(topic, fields[pick % 5] | {"owner": owner}),))

    # --- reading

    @rule(how=READS, topic=topics, pick=picks, limit=st.integers(1, 5))
    def read(self, how: str, topic: str, pick: int, limit: int) -> None:
        number = pick % (self.model.topic(topic).last + 3)
        if how in ("find", "follow", "listing"):
            getattr(self, f"read_{how}")(topic, pick)
        elif how in ("seq", "id"):
            self.read_after(topic, number if how == "seq" else self.some_id(topic, pick, number), limit)
        else:
            after = OLDEST if how == "oldest" else None
            self.agree_on_page(Read(topic, after, limit, number + 1 if how == "before" else None))

    def read_after(self, topic: str, cursor: int | str, limit: int) -> None:
        if not self.model.topic(topic).deleted:  # a deleted topic accepts every cursor, the model does not
            self.agree_on_page(Read(topic, cursor, limit))

    def some_id(self, topic: str, pick: int, number: int) -> str:
        ids = [record.id for append in self.appends for record in append.records if record.topic == topic and record.id]
        return ids[pick % len(ids)] if ids and pick % 4 else f"@{number}"

    def read_find(self, topic: str, pick: int) -> None:
        operation = self.earlier(pick)
        if operation is not None:
            topic, record_id = operation.records[-1].topic, operation.records[-1].id or "never"
            entry, found = self.model.find(topic, record_id), self.do(Find(topic, record_id))
            assert (found and shown(found)) == (entry and entry.shown)

    def read_follow(self, topic: str, pick: int) -> None:
        """Follow the topic from where the last follower ended."""
        cursor = self.followed.get(topic, 0)
        if self.model.topic(topic).deleted or cursor < self.model.topic(topic).floor:
            return
        new = [entry.seq for entry in self.model.read(topic, cursor, 1000)]
        if new:
            assert self.driver.run(take(self.driver.engine.follow(topic, cursor), len(new))) == new
            self.followed[topic] = new[-1]

    def read_listing(self, topic: str, pick: int) -> None:
        prefix, owner = ["", "stream:", "chat:c"][pick % 3], [None, "ann", "bob"][pick // 3 % 3]
        listed = self.do(Topics(prefix, owner)).topics
        assert {info.topic for info in listed} == self.listed_by_model(prefix, owner)
        order = [(info.active_ms, info.topic) for info in listed]
        assert order == sorted(order, reverse=True)
        by_step = sorted(listed, key=lambda info: self.model.topics[info.topic].active)
        assert [info.active_ms for info in by_step] == sorted(info.active_ms for info in listed)

    def listed_by_model(self, prefix: str, owner: str | None) -> set[str]:
        text = "" if owner is None else orjson.dumps(owner).decode()
        return {
            name
            for name, topic in self.model.topics.items()
            if name.startswith(prefix) and not topic.deleted and (not text or topic.head.get("owner") == text)
        }

    # --- maintenance

    @rule(how=MAINTENANCE, topic=topics, pick=picks)
    def maintain(self, how: str, topic: str, pick: int) -> None:
        getattr(self, f"maintain_{how}")(topic, pick)

    def maintain_trim(self, topic: str, pick: int) -> None:
        operation = Trim(topic, keep=pick % 7)
        self.agree(operation, lambda: self.model.trim(operation))

    def maintain_trim_through(self, topic: str, pick: int) -> None:
        operation = Trim(topic, through=pick % 12)
        self.agree(operation, lambda: self.model.trim(operation))

    def maintain_trim_by_age(self, topic: str, pick: int) -> None:
        """Trim by an age that no record has."""
        self.agree(Trim(topic, max_age_s=1e6), lambda: TrimResult(self.model.topic(topic).floor))

    def maintain_compact(self, topic: str, pick: int) -> None:
        topic = STREAMS[pick % len(STREAMS)]
        self.agree(Compact(topic, min_age_s=0), lambda: self.model.compact(topic))

    def maintain_erase(self, topic: str, pick: int) -> None:
        seqs = (pick % (self.model.topic(topic).last + 1) + 1,)
        self.agree(Erase(topic, seqs), lambda: self.model.erase(topic, seqs))

    def maintain_deleted(self, topic: str, pick: int) -> None:
        """Delete topics after some steps, and never those of `c1`: too little can happen to a deleted topic."""
        operations = [Delete(("stream:c2",)), Delete(("stream:c3", "chat:c3"), "c3"), Delete(("stream:c2",), "c2")]
        if self.steps > DELETE_FROM_STEP:
            operation = operations[pick % 3]
            self.agree(operation, lambda: self.model.delete(operation))

    # --- after every step

    @invariant()
    def topics_are_as_the_model_says(self) -> None:
        for info in self.do(Describe(TOPICS)):
            topic = self.model.topic(info.topic)
            head = {name: orjson.loads(text) for name, text in topic.head.items()}
            found = (info.last, info.floor, info.deleted, dict(info.head))
            assert found == (topic.last, topic.floor, topic.deleted, head)


WORKERS = ("w1", "w2", "w3")
LEASE_S = 3600.0  # longer than a test: `Leave` has the effect of a lease that expires

WORKS = st.sampled_from(["append", "append", "append", "pending"])
ENDS = st.sampled_from(["settle", "later"])
CLAIMS = st.sampled_from([("A",), ("B",), ("A", "B")])
KINDS = st.sampled_from(["chat", "chat", "chat", "control", "nameless", "own"])


class EngineStateMachine(LogStateMachine):
    """`LogStateMachine` with workers that claim lanes, append, settle, delay, crash, and go on as zombies."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Owner] = []  # every owner of this history; most of them are zombies
        self.claims: dict[str, Claim] = {}
        self.tokens: set[str] = set()

    def check_everything(self) -> None:
        super().check_everything()
        self.lanes_are_as_the_model_says()
        self.workers_are_as_the_model_says()

    def transfer(self) -> None:
        """No lane has an owner after the import, and every owner from before is fenced."""
        super().transfer()
        self.model.after_transfer()
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
            self.claim_lane(claimed.owner, operation)
        self.check_claims(claims, operation)

    def claim_lane(self, owner: Owner, operation: Claim) -> None:
        assert owner.worker == operation.worker
        assert owner.conversation in self.model.next_ready(owner.agent)
        assert owner.token not in self.tokens
        self.tokens.add(owner.token)
        self.owners.append(owner)
        self.model.claim_lane(owner, operation.nonce)

    def check_claims(self, claims: ClaimResult, operation: Claim) -> None:
        """Check the lanes that this claim returned against those that the model has for it."""
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
        """Append with the next number, or a repeated one, or one that skips; sometimes settle the second mail."""
        lane = self.model.lanes.get((owner.agent, owner.conversation))
        n = max((lane.n if lane else 0) + [1, 1, 1, 0, -1, 2][pick % 6], 1)
        records = (NewRecord(f"stream:{owner.conversation}", {"by": owner.token}), NewRecord("dead:A", {}))
        mail = tuple(self.mail_in(owner)[1:2]) if pick % 2 else ()
        operation = OwnedAppend(owner=owner, n=n, records=records, mail=mail)
        self.agree(operation, lambda: self.model.owned_append(operation))

    def end_settle(self, owner: Owner, pick: int) -> None:
        """Settle with an output or with a dead letter."""
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
