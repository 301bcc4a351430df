"""An engine wrapper that records, in order, what a simulated world does to its lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    Append,
    Claim,
    Compact,
    Delete,
    Later,
    Operation,
    OwnedAppend,
    Settle,
    Trim,
    Write,
)
from magent2.bus.records import (
    AppendResult,
    ClaimedLane,
    ClaimResult,
    MailRef,
    NewRecord,
    Owner,
    Record,
    TrimResult,
    assigned_id,
)
from magent2.errors import Fenced
from magent2.mail.headers import RELAY_JOB, STOP, TARGET_ENVELOPE
from magent2.models.address import INTERNAL_AGENTS, SWEEPER, chat_topic, relay_agent
from magent2.sessions.approvals import APPROVE, CALL, OUTPUT
from magent2.worker.settlement import POSTPONED_S
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper

Lane = tuple[str, str]
RELAYS = relay_agent("")
Step = tuple[str, int, str]  # (run, turn, call id); a model answer has no call id


class EngineRecorder(EngineWrapper):
    """Passes every call on. Derives the owner of each lane from the results of claims, independently of the engine."""

    def __init__(self, engine: Engine, now: Callable[[], float], agents: tuple[str, ...]) -> None:
        super().__init__(engine)
        self.counts: Counter[str] = Counter()
        self.unowned_writes: list[str] = []
        self.settled: dict[MailRef, list[str]] = {}  # mail → tokens of the owners that settled it
        self.arrived: dict[MailRef, int] = {}  # mail of the agents → position in the order of all mail
        self.begun: dict[str, int] = {}  # stops → how much mail had arrived when they were sent
        self.aimed: dict[
            MailRef, MailRef | None
        ] = {}  # commands → the mail that their lane worked on when they arrived
        self.pending: dict[MailRef, str] = {}  # mail that is not settled → its conversation
        self.deleted: set[str] = set()
        self.removable: dict[str, dict[int, Record]] = {}  # topics → copies of drafts and mail, which sweeps remove
        self._closed: dict[str, dict[str, int]] = {}  # topics → drafts → seq of the last record that closed them
        self.recorded: set[Step] = set()
        self.decided: dict[Step, str] = {}  # calls that needed approval → the decision
        self.outputs: dict[str, str] = {}  # calls of clients' tools → the output that was accepted first
        self.on_pause: Callable[[Mapping[str, Any]], None] = lambda pause: None
        self.on_write: Callable[[Write], None] = lambda write: None
        self.on_note: Callable[[Mapping[str, Any]], None] = lambda note: None  # called for each record of an outbox
        self.trace: list[tuple[float, str, str, int, str]] = []
        self._now = now
        self._inboxes = {f"{kind}:{agent}" for kind in ("chat", "control") for agent in agents}
        self._holders: dict[Lane, Owner] = {}
        self._paused: dict[str, str] = {}  # runs → the worker that paused them
        self._stopped_mail: dict[str, str] = {}  # owner token → the mail that its owner must not answer

    def place(self, ref: MailRef) -> int:
        """Position of mail in the order of all mail. A broken engine may return mail that never arrived."""
        return self.arrived.get(ref, len(self.arrived))

    def holds(self, owner: Owner) -> bool:
        holder = self._holders.get((owner.agent, owner.conversation))
        return holder is not None and holder.token == owner.token

    def answer(self, operation: Operation[Any]) -> Any:
        try:
            answer = self.inner.call(operation)
        except Exception as error:
            self._write(operation, type(error).__name__)
            self.counts["fenced"] += isinstance(error, Fenced) and isinstance(operation, Write)
            raise
        self._write(operation, "")
        if isinstance(operation, Claim):
            self._note_claims(answer)
        elif isinstance(operation, Delete) and operation.conversation is not None:
            self._note_delete(operation.conversation)
        elif isinstance(operation, Write):
            self._note_append(operation, answer)
            self.on_write(operation)
        elif isinstance(operation, Compact) and answer.dropped:
            self._note_compaction(operation.topic, answer.dropped)
        elif isinstance(operation, Trim):
            self._note_trim(operation.topic, answer)
        return answer

    def _write(self, operation: Operation[Any], outcome: str) -> None:
        owner: Owner | None = getattr(operation, "owner", None)
        who = str(getattr(operation, "worker", "") if owner is None else owner.worker)
        records = len(getattr(operation, "records", ()))
        self.trace.append((self._now(), who, type(operation).__name__, records, outcome))

    def _note_compaction(self, topic: str, dropped: int) -> None:
        """Check at once that only closed drafts are missing: later, every draft is closed."""
        self.counts["drafts swept"] += dropped
        present = {record.seq for record in whole_log(self.inner, topic)}
        closed = self._closed.get(topic, {})
        for seq, copy in self.removable.get(topic, {}).items():
            if copy.draft is not None and seq not in present and seq > closed.get(copy.draft, 0):
                self.unowned_writes.append(f"{topic} {seq} was removed before anything had closed {copy.draft}")

    def _note_trim(self, topic: str, answer: TrimResult) -> None:
        self.counts["mail swept"] += answer.dropped if topic in self._inboxes else 0
        lost = [ref.seq for ref in self.pending if ref.topic == topic and ref.seq <= answer.floor]
        if lost:
            self.unowned_writes.append(f"{topic}: a sweep removed {lost}, which were not settled")

    # --- lanes

    def _note_claims(self, claims: ClaimResult) -> None:
        for claimed in claims.lanes:
            lane = claimed.owner.agent, claimed.owner.conversation
            before = self._holders.get(lane)
            taken = before is not None and before.worker != claimed.owner.worker
            self._holders[lane] = claimed.owner
            if lane[0] in INTERNAL_AGENTS:
                self.counts["a sweep was taken over" if lane[0] == SWEEPER else "a schedule was taken over"] += taken
                continue
            self.counts["a relay took over" if lane[0].startswith(RELAYS) else "taken over"] += taken
            self._note_stop(claimed)

    def _note_stop(self, claimed: ClaimedLane) -> None:
        """A claim that returns a stop together with older mail that it targets obliges the owner to stop that mail."""
        head = next((record for record in claimed.mail if record.topic.startswith("chat:")), None)
        if head is None or head.headers.get(RELAY_JOB) is not None:
            return
        name = str(head.payload["id"])
        stops = [record for record in claimed.mail if record.payload.get("content") == STOP]
        meant = [stop for stop in stops if stop.headers.get(TARGET_ENVELOPE, name) == name]
        begun = [self.begun.get(stop.payload["id"], -1) for stop in meant]  # only stops from clients, not from agents
        if any(seen > self.place(head.ref) for seen in begun):
            self._stopped_mail[claimed.owner.token] = name

    def _note_delete(self, conversation: str) -> None:
        self.counts["deleted under way"] += any(lane[1] == conversation for lane in self._holders)
        self.deleted.add(conversation)
        self.pending = {ref: name for ref, name in self.pending.items() if name != conversation}
        self._holders = {lane: owner for lane, owner in self._holders.items() if lane[1] != conversation}

    # --- appends

    def _note_append(self, operation: Write, answer: AppendResult) -> None:
        """Record an append. A repeat changes nothing and is always allowed."""
        if answer.repeat:
            mail = isinstance(operation, Append) and operation.records[0].topic.startswith("chat:")
            self.counts["repeated"] += mail
            self.counts["reply was lost"] += not isinstance(operation, Append)
            return
        self._note_when_busy(operation)
        for record, seq in zip(operation.records, answer.seqs, strict=False):
            self._note_record(record, seq)
            self._note_mark(record.payload, getattr(operation, "owner", None))
            if record.topic.startswith(RELAYS):
                self.on_note(record.payload)
        if isinstance(operation, OwnedAppend | Settle | Later):
            self._note_write(operation)

    def _note_when_busy(self, operation: Write) -> None:
        """Check an accepted message against what was under way: only an idle conversation accepts one with `reject`.

        A stop that waits is no message, so it does not count. One with `interrupt` brings a stop if its lane has mail,
        and the stop names the first of it or none.
        """
        if not isinstance(operation, Append) or not operation.records[0].topic.startswith("chat:"):
            return
        mail = operation.records[0].payload
        mode = (mail.get("metadata") or {}).get("when_busy")
        name, conversation = mail.get("id"), str(mail.get("conversation_id"))
        if mode == "reject":
            self.counts["accepted by an idle conversation"] += 1
            waiting = (ref for ref, lane in self.pending.items() if lane == conversation)
            under_way = [ref for ref in waiting if ref.topic.startswith("chat:")]
            if under_way:
                self.unowned_writes.append(f"{name} was to be rejected, and was accepted while {under_way} waited")
        if mode == "interrupt":
            head = self._head(str(mail["recipient"]).partition(":")[2], conversation)
            stops = [one for one in operation.records if one.topic.startswith("control:")]
            targets = [stop.headers.get(TARGET_ENVELOPE) for stop in stops]
            self.counts["interrupted"] += bool(targets)
            first = None if head is None else self.removable[head.topic][head.seq].payload.get("id")
            if head is not None and targets not in ([None], [first]):
                self.unowned_writes.append(f"{name} was to interrupt {first}, and its append stops {targets}")

    def _note_record(self, record: NewRecord, seq: int) -> None:
        if record.closes is not None:
            self._closed.setdefault(record.topic, {})[record.closes] = seq
        if record.draft is not None or record.topic in self._inboxes:
            copy = Record(
                record.topic, record.payload, record.id or assigned_id(seq), seq, 0, record.headers, record.draft
            )
            self.removable.setdefault(record.topic, {})[seq] = copy
        if record.payload.get("content") == APPROVE and OUTPUT in record.payload["metadata"]:
            self.outputs.setdefault(record.payload["metadata"][CALL]["call_id"], record.payload["metadata"][OUTPUT])
        if record.topic in self._inboxes and record.lane is not None:
            ref = MailRef(record.topic, seq)
            self.arrived.setdefault(ref, len(self.arrived))
            self.aimed[ref] = self._head(record.topic.partition(":")[2], record.lane)
            self.pending.setdefault(ref, record.lane)

    def _note_mark(self, mark: Mapping[str, Any], owner: Owner | None) -> None:
        """Record an entry that a run has written to the history."""
        kind = mark.get("kind")
        if kind == "snapshot":
            self.counts["a snapshot was written"] += 1
            self.counts["a snapshot left runs out"] += mark["ended"] > 0
        if owner is None or kind not in ("answer", "tool", "pause", "decision"):
            return
        step = mark["run"], mark["turn"], str(mark.get("call_id", ""))
        if kind == "pause":
            self.counts["paused"] += 1
            self._paused[mark["run"]] = owner.worker
            self.on_pause(mark)
        elif kind == "decision":
            self.decided[step] = mark["status"]
            self.counts[mark["status"]] += 1
            self.counts["decided elsewhere"] += self._paused.get(mark["run"]) != owner.worker
        else:
            self.recorded.add(step)

    def _head(self, agent: str, conversation: str) -> MailRef | None:
        mail = (ref for ref, lane in self.pending.items() if ref.topic == chat_topic(agent) and lane == conversation)
        return next(mail, None)

    def _note_write(self, operation: OwnedAppend | Settle | Later) -> None:
        owner, lane = operation.owner, (operation.owner.agent, operation.owner.conversation)
        if not self.holds(owner):
            what = type(operation).__name__
            self.unowned_writes.append(f"{owner.worker} wrote ({what}) for lane {lane}, which was not its own")
        if not isinstance(operation, Later):
            for ref in operation.mail:
                owners = self.settled.setdefault(ref, [])
                owners += [owner.token] if owner.token not in owners else []
                self.pending.pop(ref, None)
        if isinstance(operation, Settle):
            self.unowned_writes += self._answered_despite_stop(operation)
        if isinstance(operation, Later):
            self._note_later(operation)
        if not isinstance(operation, OwnedAppend):
            self._holders.pop(lane, None)

    def _note_later(self, operation: Later) -> None:
        if operation.owner.agent == SWEEPER:
            self.counts["sweeps"] += bool(operation.delay_s)
            return
        self.counts["retried"] += not operation.refund
        self.counts["given back"] += operation.refund and not operation.delay_s
        self.counts["postponed"] += operation.refund and operation.delay_s == POSTPONED_S
        self.counts["deferred"] += any(record.payload.get("kind") == "defer" for record in operation.records)

    def _answered_despite_stop(self, settle: Settle) -> Iterator[str]:
        halted = self._stopped_mail.get(settle.owner.token)
        for record in settle.records if halted else ():
            if record.payload.get("status") == "finished" and record.payload.get("envelope_id") == halted:
                yield f"{halted} was answered by {settle.owner.worker}, which had been handed a stop with it"
