"""Random histories of a log: appending, reading, keeping house. Lanes are in `bus_machine.py`.

There are few rules, each with many ways, because Hypothesis leaves out whole rules in most of its histories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    OLDEST,
    Append,
    Compact,
    Condition,
    Delete,
    Describe,
    Erase,
    Find,
    HeadIs,
    LastSeqIs,
    Operation,
    Read,
    SetHead,
    Topics,
    Trim,
)
from magent2.bus.records import NewRecord, Record
from magent2.errors import Magent2Error
from tests.contracts.bus_following import take
from tests.contracts.bus_model import Entry, Model
from tests.contracts.bus_moving import dumped, load
from tests.support.faces import AsyncFace, Face

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
LOOKS = st.sampled_from(["seq", "id", "none", "oldest", "before", "find", "follow", "follow", "listing"])
CHORES = st.sampled_from(["trim", "trim", "trim_through", "trim_by_age", "compact", "compact", "erase", "deleted"])


def shown(record: Record) -> tuple[Any, ...]:
    """A record as the model shows it: all but its time."""
    kept = (record.seq, record.id, record.draft, record.closes, record.erased)
    return (*kept, record.payload, dict(record.headers))


def shown_all(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return [entry.shown for entry in entries]


class LogMachine(RuleBasedStateMachine):
    """Steps take turns between the two faces of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.face: Face = AsyncFace(self.open_engine())
        self.steps = 0
        self.names = 0
        self.appends: list[Append] = []
        self.followed: dict[str, int] = {}

    def open_engine(self) -> Engine:
        """An engine on an empty log."""
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self.check_everything()
            self.carry_over()
            self.check_everything()
        finally:
            self.face.close()

    def check_everything(self) -> None:
        self.topics_are_as_the_model_says()
        for topic in TOPICS:
            self.agree_on_page(Read(topic, OLDEST, 10_000))

    def carry_over(self) -> None:
        """Dump the log, load it into another engine, and go on there."""
        rows = dumped(self.face)
        self.face.close()
        self.face = AsyncFace(self.open_engine())
        load(self.face, rows)
        for pick in range(0, len(self.appends), 3):
            self.write_again("", pick)

    # --- comparing

    def do(self, operation: Operation[R]) -> R:
        self.steps += 1
        return self.face.engine.call(operation) if self.steps % 2 else self.face.do(operation)

    def agree(self, operation: Operation[R], expect: Callable[[], Any], show: Callable[[R], Any] = lambda r: r) -> None:
        """The engine answers, or refuses, as the model does."""
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
        """Another body under an id that may be known."""
        operation = self.earlier(pick)
        if operation is not None and operation.records[-1].id is not None:
            self.append(NewRecord(operation.records[-1].topic, {"other": True}, operation.records[-1].id))

    def write_many(self, topic: str, pick: int) -> None:
        """For several topics, the last record perhaps one that is known already."""
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
        """Two of the long fields are too much for one head."""
        fields: list[dict[str, Any]] = [
            {"title": "x"},
            {"title": None},
            {"long": "y" * 2500},
            {"longer": "y" * 2500},
            {"long": None},
        ]
        owner = [None, "ann", "bob"][pick % 3]
        self.append(NewRecord("dead:A", {}), heads=(SetHead(topic, fields[pick % 5] | {"owner": owner}),))

    # --- looking

    @rule(how=LOOKS, topic=topics, pick=picks, limit=st.integers(1, 5))
    def look(self, how: str, topic: str, pick: int, limit: int) -> None:
        number = pick % (self.model.topic(topic).last + 3)
        if how in ("find", "follow", "listing"):
            getattr(self, f"look_{how}")(topic, pick)
        elif how in ("seq", "id"):
            self.read_after(topic, number if how == "seq" else self.some_id(topic, pick, number), limit)
        else:
            after = OLDEST if how == "oldest" else None
            self.agree_on_page(Read(topic, after, limit, number + 1 if how == "before" else None))

    def read_after(self, topic: str, cursor: int | str, limit: int) -> None:
        if not self.model.topic(topic).deleted:  # there a cursor is at the end, or unknown
            self.agree_on_page(Read(topic, cursor, limit))

    def some_id(self, topic: str, pick: int, number: int) -> str:
        ids = [record.id for append in self.appends for record in append.records if record.topic == topic and record.id]
        return ids[pick % len(ids)] if ids and pick % 4 else f"@{number}"

    def look_find(self, topic: str, pick: int) -> None:
        operation = self.earlier(pick)
        if operation is not None:
            topic, record_id = operation.records[-1].topic, operation.records[-1].id or "never"
            entry, found = self.model.find(topic, record_id), self.do(Find(topic, record_id))
            assert (found and shown(found)) == (entry and entry.shown)

    def look_follow(self, topic: str, pick: int) -> None:
        """Take up all that is new since the last time."""
        cursor = self.followed.get(topic, 0)
        if self.model.topic(topic).deleted or cursor < self.model.topic(topic).floor:
            return
        new = [entry.seq for entry in self.model.read(topic, cursor, 1000)]
        if new:
            assert self.face.run(take(self.face.engine.follow(topic, cursor), len(new))) == new
            self.followed[topic] = new[-1]

    def look_listing(self, topic: str, pick: int) -> None:
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

    # --- keeping house

    @rule(how=CHORES, topic=topics, pick=picks)
    def keep_house(self, how: str, topic: str, pick: int) -> None:
        getattr(self, f"keep_{how}")(topic, pick)

    def keep_trim(self, topic: str, pick: int) -> None:
        operation = Trim(topic, keep=pick % 7)
        self.agree(operation, lambda: self.model.trim(operation))

    def keep_trim_through(self, topic: str, pick: int) -> None:
        operation = Trim(topic, through=pick % 12)
        self.agree(operation, lambda: self.model.trim(operation))

    def keep_trim_by_age(self, topic: str, pick: int) -> None:
        """Nothing is that old."""
        self.agree(Trim(topic, max_age_s=1e6), lambda: self.model.topic(topic).floor)

    def keep_compact(self, topic: str, pick: int) -> None:
        topic = STREAMS[pick % len(STREAMS)]
        self.agree(Compact(topic, min_age_s=0), lambda: self.model.compact(topic))

    def keep_erase(self, topic: str, pick: int) -> None:
        seqs = (pick % (self.model.topic(topic).last + 1) + 1,)
        self.agree(Erase(topic, seqs), lambda: self.model.erase(topic, seqs))

    def keep_deleted(self, topic: str, pick: int) -> None:
        """What is deleted stays so: first something has to happen, and `c1` is never deleted."""
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
