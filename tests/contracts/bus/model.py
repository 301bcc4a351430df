"""Reference model of a log: the results of every operation, in simple code without time, threads or encoding.

Where the contract allows several results, the model allows them all: lanes that became ready in one step may be claimed
in any order, and so may lanes of different agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from magent2.bus.operations import (
    CLAIM_MAIL_MAX,
    HEAD_MAX_BYTES,
    OLDEST,
    Condition,
    Delete,
    LastSeqIs,
    Later,
    OwnedAppend,
    Settle,
    Trim,
    Write,
    head_size,
)
from magent2.bus.records import (
    AppendResult,
    CompactResult,
    MailRef,
    NewRecord,
    Owner,
    TrimResult,
    assigned_id,
    assigned_seq,
)
from magent2.errors import (
    ConditionFailed,
    CounterGap,
    Fenced,
    HeadTooLarge,
    IdConflict,
    TopicDeleted,
    UnknownCursor,
)


@dataclass
class ModelRecord:
    """A record of the model."""

    new: NewRecord
    seq: int
    erased: bool = False

    @property
    def shown(self) -> tuple[Any, ...]:
        """Everything that a reader sees of the record, except its time."""
        record_id = self.new.id or assigned_id(self.seq)
        kept = (self.seq, record_id, self.new.draft, self.new.closes, self.erased)
        return (*kept, {}, {}) if self.erased else (*kept, self.new.payload, dict(self.new.headers))


@dataclass
class ModelId:
    """What the model remembers of an id."""

    seq: int
    digest: str
    answer: tuple[int, ...]


@dataclass
class ModelTopic:
    entries: dict[int, ModelRecord] = field(default_factory=dict)
    ids: dict[str, ModelId] = field(default_factory=dict)
    head: dict[str, str] = field(default_factory=dict)
    last: int = 0
    floor: int = 0
    deleted: bool = False
    active: int = 0  # the step in which the topic was last active; 0 for a topic that does not exist


@dataclass
class ModelLane:
    mail: set[MailRef] = field(default_factory=set)
    state: str = "idle"  # idle (no mail), ready, held, later, parked
    attempt: int = 0
    owner: Owner | None = None
    nonce: str = ""
    n: int = 0
    answer: tuple[int, ...] = ()
    finished: str = ""  # the token of the last owner that gave the lane up
    finished_answer: tuple[int, ...] = ()

    def ordered(self) -> list[MailRef]:
        return sorted(self.mail, key=lambda ref: (not ref.topic.startswith("control:"), ref.seq))

    def give_up(self, state: str) -> None:
        self.state, self.owner, self.nonce = state if self.mail else "idle", None, ""


class LogModel:
    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        self.lanes: dict[tuple[str, str], ModelLane] = {}
        # Per agent and principal; those in one set may be claimed in any order. Without empty sets and lists.
        self.ready: dict[str, dict[str, list[set[str]]]] = {}
        self.turns: dict[str, list[set[str]]] = {}  # the principals of `ready`, those in one set in any order
        self.sorted: dict[str, int] = {}  # per inbox
        self.workers: dict[str, str] = {}  # to the nonce of the last claim
        self.steps = 0

    # --- reading

    def topic(self, name: str) -> ModelTopic:
        """Return the topic, or an empty one if it does not exist."""
        return self.topics.get(name, ModelTopic())

    def read(self, name: str, after: int | str | None, limit: int, before: int | None = None) -> list[ModelRecord]:
        topic = self.topic(name)
        if after is None:
            below = [seq for seq in sorted(topic.entries) if before is None or seq < before]
            return [topic.entries[seq] for seq in below[-limit:]]
        cursor = self._cursor(topic, after)
        return [topic.entries[seq] for seq in sorted(topic.entries) if seq > cursor][:limit]

    def _cursor(self, topic: ModelTopic, after: int | str) -> int:
        if after == OLDEST:
            return topic.floor
        if isinstance(after, str) and assigned_seq(after) is None:
            known = topic.ids.get(after)
            if known is None or known.seq not in topic.entries:
                raise UnknownCursor
            return known.seq
        seq = after if isinstance(after, int) else assigned_seq(after) or 0
        if not topic.floor <= seq <= topic.last:
            raise UnknownCursor
        return seq

    def find(self, name: str, record_id: str) -> ModelRecord | None:
        topic = self.topic(name)
        known = topic.ids.get(record_id)
        seq = known.seq if known else assigned_seq(record_id) or 0
        return topic.entries.get(seq)

    # --- writing

    def append(self, operation: Write) -> AppendResult:
        key = operation.records[0]
        known = self.topic(key.topic).ids.get(key.id or "")
        if known is not None:
            if known.digest != key.digest:
                raise IdConflict
            return AppendResult(known.answer, repeat=True)
        self._check(operation)
        seqs = self._write(operation)
        self.topics[key.topic].ids[key.id or ""].answer = seqs
        return AppendResult(seqs)

    def _check(self, operation: Write) -> None:
        written = [record.topic for record in operation.records] + [head.topic for head in operation.heads]
        if any(self.topic(name).deleted for name in written):
            raise TopicDeleted
        for record in operation.records:
            known = self.topic(record.topic).ids.get(record.id or "")
            if known is not None and known.digest != record.digest:
                raise IdConflict
        if not all(self._holds(condition) for condition in operation.conditions):
            raise ConditionFailed
        for head in operation.heads:
            if head_size(self._merged(head.topic, head.texts)) > HEAD_MAX_BYTES:
                raise HeadTooLarge

    def _holds(self, condition: Condition) -> bool:
        topic = self.topic(condition.topic)
        if isinstance(condition, LastSeqIs):
            return topic.last == condition.seq
        return topic.head.get(condition.name, "") == condition.text

    def _merged(self, name: str, texts: dict[str, str]) -> dict[str, str]:
        return {field: text for field, text in (self.topic(name).head | texts).items() if text}

    def _write(self, operation: Write) -> tuple[int, ...]:
        self.steps += 1
        seqs = tuple(self._add(record) for record in operation.records)
        for head in operation.heads:
            topic = self.topics.setdefault(head.topic, ModelTopic())
            topic.head = self._merged(head.topic, head.texts)
            topic.active = self.steps
        return seqs

    def _add(self, record: NewRecord) -> int:
        topic = self.topics.setdefault(record.topic, ModelTopic(active=self.steps))
        if record.id in topic.ids:
            return topic.ids[record.id].seq
        topic.last += 1
        topic.entries[topic.last] = ModelRecord(record, topic.last)
        if record.id is not None:
            topic.ids[record.id] = ModelId(topic.last, record.digest, (topic.last,))
        return topic.last

    # --- maintenance

    def trim(self, operation: Trim) -> TrimResult:
        """Trim by number or seq; the model has no time."""
        topic = self.topic(operation.topic)
        excess = len(topic.entries) - (operation.keep or 0)
        oldest = sorted(topic.entries)[: max(excess, 0)]
        dropped = 0
        for seq in oldest if operation.through is None else [seq for seq in oldest if seq <= operation.through]:
            if self._unsettled(operation.topic, topic.entries[seq]):
                break
            del topic.entries[seq]
            topic.floor = seq
            dropped += 1
        return TrimResult(topic.floor, dropped)

    def _unsettled(self, name: str, entry: ModelRecord) -> bool:
        ref = MailRef(name, entry.seq)
        if any(ref in lane.mail for lane in self.lanes.values()):
            return True
        return entry.new.lane is not None and not entry.erased and entry.seq > self.sorted.get(name, 0)

    def compact(self, name: str) -> CompactResult:
        entries = self.topic(name).entries
        closed = {entry.new.closes for entry in entries.values()} - {None}
        drafts = [seq for seq, entry in entries.items() if entry.new.draft in closed]
        for seq in drafts:
            del entries[seq]
        return CompactResult(len(drafts))

    def erase(self, name: str, seqs: tuple[int, ...]) -> int:
        entries = [entry for seq, entry in self.topic(name).entries.items() if seq in seqs]
        for entry in entries:
            entry.erased = True
        return len(entries)

    def delete(self, operation: Delete) -> None:
        for name in operation.topics:
            last = self.topic(name).last
            self.topics[name] = ModelTopic(last=last, floor=last, deleted=True)
        if operation.conversation is None:
            return
        for topic in self.topics.values():
            for entry in topic.entries.values():
                if entry.new.copy == operation.conversation and not entry.erased:
                    entry.erased = True
                    if entry.new.id is not None:
                        topic.ids[entry.new.id].digest = ""
        for agent, conversation in list(self.lanes):
            if conversation == operation.conversation:
                self._unready(agent, conversation)
                del self.lanes[agent, conversation]

    # --- lanes

    def sort(self, agents: tuple[str, ...]) -> None:
        for agent in agents:
            urgent = {
                conversation
                for conversation in self._sort(f"control:{agent}", agent)
                if self._waits(agent, conversation)
            }
            for conversation in urgent:
                self._unready(agent, conversation)
            fresh = [c for c in self._sort(f"chat:{agent}", agent) if self.lanes[agent, c].state == "idle"]
            self._make_ready(agent, urgent, front=True)
            for conversation in fresh:
                if conversation not in urgent:
                    self._make_ready(agent, {conversation}, front=False)

    def _sort(self, inbox: str, agent: str) -> list[str]:
        """Sort new mail of one inbox into lanes; return its conversations in order."""
        topic, touched = self.topic(inbox), []
        for seq in sorted(topic.entries):
            entry = topic.entries[seq]
            if seq > self.sorted.get(inbox, 0) and entry.new.lane is not None and not entry.erased:
                self.lanes.setdefault((agent, entry.new.lane), ModelLane()).mail.add(MailRef(inbox, seq))
                touched.append(entry.new.lane)
        self.sorted[inbox] = topic.last
        return list(dict.fromkeys(touched))

    def _waits(self, agent: str, conversation: str) -> bool:
        return self.lanes[agent, conversation].state in ("idle", "later", "parked")

    def _make_ready(self, agent: str, conversations: set[str], *, front: bool) -> None:
        conversations = {c for c in conversations if self.lanes[agent, c].mail}
        for conversation in conversations:
            self.lanes[agent, conversation].state = "ready"
        groups: dict[str, set[str]] = {}
        for conversation in conversations:
            groups.setdefault(self._principal(conversation), set()).add(conversation)
        queues = self.ready.setdefault(agent, {})
        joining = groups.keys() - queues.keys()
        for principal, group in groups.items():
            queue = queues.setdefault(principal, [])
            queue.insert(0 if front else len(queue), group)
        if joining:
            self.turns.setdefault(agent, []).append(set(joining))

    def _principal(self, conversation: str) -> str:
        return self.topic(f"stream:{conversation}").head.get("owner", "")

    def _unready(self, agent: str, conversation: str) -> None:
        queues = self.ready.get(agent, {})
        for principal, queue in list(queues.items()):
            for group in queue:
                group.discard(conversation)
            queues[principal] = [group for group in queue if group]
            if not queues[principal]:
                del queues[principal]
                self._end_turn(agent, principal)

    def _end_turn(self, agent: str, principal: str) -> None:
        self.turns[agent] = [left for group in self.turns[agent] if (left := group - {principal})]

    def next_ready(self, agent: str) -> set[str]:
        """Return the lanes of the agent that may be claimed next."""
        principals = next(iter(self.turns.get(agent, [])), set())
        return set().union(*(self.ready[agent][principal][0] for principal in principals))

    def count_ready(self, agents: tuple[str, ...]) -> int:
        return sum(len(group) for agent in agents for queue in self.ready.get(agent, {}).values() for group in queue)

    def claim_lane(self, owner: Owner, nonce: str) -> ModelLane:
        principal = next(
            principal
            for principal, queue in self.ready[owner.agent].items()
            if any(owner.conversation in group for group in queue)
        )
        self._unready(owner.agent, owner.conversation)
        if principal in self.ready[owner.agent]:
            self._end_turn(owner.agent, principal)
            self.turns[owner.agent].append({principal})
        lane = self.lanes[owner.agent, owner.conversation]
        lane.state, lane.owner, lane.nonce, lane.n, lane.answer = "held", owner, nonce, 0, ()
        lane.attempt += 1
        return lane

    def mail_of(self, lane: ModelLane, limit: int = CLAIM_MAIL_MAX) -> list[ModelRecord]:
        return [self.topics[ref.topic].entries[ref.seq] for ref in lane.ordered()[:limit]]

    def held_by(self, worker: str, nonce: str | None = None) -> list[ModelLane]:
        held = [lane for lane in self.lanes.values() if lane.owner is not None and lane.owner.worker == worker]
        return [lane for lane in held if nonce is None or lane.nonce == nonce]

    def leave(self, worker: str) -> int:
        self.workers.pop(worker, None)
        held = self.held_by(worker)
        back: dict[str, set[str]] = {}
        for lane in held:
            assert lane.owner is not None
            back.setdefault(lane.owner.agent, set()).add(lane.owner.conversation)
            lane.give_up("ready")
        for agent, conversations in back.items():
            self._make_ready(agent, conversations, front=True)
        return len(held)

    def after_transfer(self) -> None:
        """Forget what a dump does not contain: workers, the last owner of each lane, the order of ready lanes."""
        for worker in list(self.workers):
            self.leave(worker)
        for lane in self.lanes.values():
            lane.finished = ""
        for agent, queues in self.ready.items():
            lanes = set().union(*(group for queue in queues.values() for group in queue))
            queues.clear()
            self.turns[agent] = []
            self._make_ready(agent, lanes, front=True)

    def owned(self, owner: Owner) -> ModelLane:
        lane = self.lanes.get((owner.agent, owner.conversation))
        if lane is None or lane.owner is None or lane.owner.token != owner.token:
            raise Fenced
        return lane

    def owned_append(self, operation: OwnedAppend) -> AppendResult:
        lane = self.owned(operation.owner)
        if operation.n <= lane.n:
            return AppendResult(lane.answer if operation.n == lane.n else (), repeat=True)
        if operation.n > lane.n + 1:
            raise CounterGap
        self._check(operation)
        lane.n, lane.answer = operation.n, self._write(operation)
        lane.mail -= set(operation.mail)
        return AppendResult(lane.answer)

    def settle(self, operation: Settle) -> AppendResult:
        answer = self._finish(operation)
        if not answer.repeat:
            owner, lane = operation.owner, self.lanes[operation.owner.agent, operation.owner.conversation]
            lane.mail -= set(operation.mail)
            lane.attempt = 0
            lane.give_up("ready")
            self._make_ready(owner.agent, {owner.conversation}, front=False)
        return answer

    def later(self, operation: Later) -> AppendResult:
        answer = self._finish(operation)
        if not answer.repeat:
            owner, lane = operation.owner, self.lanes[operation.owner.agent, operation.owner.conversation]
            lane.attempt -= operation.refund
            lane.give_up("parked" if operation.delay_s is None else "later")
            if operation.delay_s == 0 or any(ref.topic.startswith("control:") for ref in lane.mail):
                self._make_ready(owner.agent, {owner.conversation}, front=True)
        return answer

    def _finish(self, operation: Settle | Later) -> AppendResult:
        lane = self.lanes.get((operation.owner.agent, operation.owner.conversation))
        if lane is not None and lane.finished == operation.owner.token:
            return AppendResult(lane.finished_answer, repeat=True)
        lane = self.owned(operation.owner)
        self._check(operation)
        lane.finished, lane.finished_answer = operation.owner.token, self._write(operation)
        return AppendResult(lane.finished_answer)
