"""Reopen a log after every power failure that a record allows, and compare it with the reference model."""

from __future__ import annotations

import copy
import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import orjson

from magent2.bus import sqlite as sqlite_bus
from magent2.bus.operations import (
    OLDEST,
    Append,
    Claim,
    Compact,
    Delete,
    Describe,
    Erase,
    GetBlob,
    Info,
    Lanes,
    Later,
    Operation,
    OwnedAppend,
    PutBlob,
    Read,
    Renew,
    Settle,
    Topics,
    Trim,
)
from magent2.bus.records import AppendResult, ClaimResult, NewRecord, Record
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.file_lock import FileLock
from magent2.bus.waiters import ThreadWaiter
from magent2.errors import BlobMissing, Magent2Error
from tests.contracts.bus.model import LogModel
from tests.support.disk_record import DiskRecord, FileSynced, FolderSynced, Noted
from tests.support.power_loss import Disk, Image, survivals, write_image

T = TypeVar("T")
R = TypeVar("R")

AGENTS = ("A", "B")
LEASE_S = 3600.0  # a power failure ends it at once
ALL = 10_000
NO_CHANGE = (Claim, Renew, PutBlob)  # operations that change nothing that the model compares
AFTER = NewRecord("stream:after", {"text": "after the power failure"}, "after")


# --- what is noted in a record


@dataclass(frozen=True)
class Submitted:
    """The change with this number was handed to the engine. Numbers count from 1."""

    number: int


@dataclass(frozen=True)
class Acknowledged:
    """The engine has returned the result of the change with this number."""

    number: int


@dataclass(frozen=True)
class Claimed:
    """The engine has returned the result of the claim with this nonce. A power failure may undo it (decision 46)."""

    nonce: str


@dataclass(frozen=True)
class Done:
    """Something else is done: a log is created, a blob stored, a backup written."""

    what: str


# --- every power failure of a record


@dataclass
class Counts:
    moments: int = 0
    failures: int = 0  # moments × what survives
    disks: int = 0  # different ones among them, each of which was opened


@dataclass(frozen=True)
class Plan:
    """Which power failures are looked at."""

    moments: int | None  # how many moments of the record, chosen by chance; `None` for all
    chances: int  # how often each kind of survival by chance is tried (`survivals`)
    seed: str = "power"


class WrongAfterPowerLoss(AssertionError):
    """A log is not as promised after a power failure."""


class Audit(Generic[T]):
    """Power failures of one record. `recover` opens the files of one, `judge` compares what it found with the notes."""

    def __init__(
        self, record: DiskRecord, scratch: Path, recover: Callable[[Path], T], judge: Callable[[Sequence[Any], T], None]
    ) -> None:
        self._record = record
        self._scratch = scratch
        self._recover = recover
        self._judge = judge
        self._found: dict[bytes, T] = {}
        self.counts = Counts()

    def run(self, plan: Plan) -> Counts:
        events = self._record.events
        chosen = self._choose(plan)
        disk = Disk(self._record)
        notes: list[Any] = []
        for position in range(len(events) + 1):
            if position:
                event = events[position - 1]
                disk.apply(event)
                if isinstance(event, Noted):
                    notes.append(event.note)
            if position not in chosen:
                continue
            self.counts.moments += 1
            for survival in survivals(disk, f"{plan.seed}/{position}", plan.chances):
                self.counts.failures += 1
                try:
                    self._judge(notes, self._open(disk.after(survival)))
                except (AssertionError, Magent2Error, sqlite3.Error) as error:
                    raise WrongAfterPowerLoss(
                        f"power failure after event {position} of {len(events)}, {survival.name}, seed {plan.seed!r},"
                        f" last notes {notes[-2:]}: {type(error).__name__}: {error}"
                    ) from error
        self.counts.disks = len(self._found)
        return self.counts

    def _choose(self, plan: Plan) -> set[int]:
        """Choose moments, two of three right after a sync or a note: there the disk or a promise changes."""
        every = range(len(self._record.events) + 1)
        if plan.moments is None or plan.moments >= len(every):
            return set(every)
        kinds = (Noted, FileSynced, FolderSynced)
        turns = [place for place in every[1:] if isinstance(self._record.events[place - 1], kinds)]
        numbers = random.Random(plan.seed)
        chosen = set(numbers.sample(turns, min(len(turns), plan.moments * 2 // 3)))
        return chosen | set(numbers.sample(every, plan.moments - len(chosen))) | {len(every) - 1}

    def _open(self, image: Image) -> T:
        digest = hashlib.blake2b()
        for name, content in image.items():
            digest.update(f"{name}\0{-1 if content is None else len(content)}\0".encode())
            digest.update(content or b"")
        key = digest.digest()
        if key not in self._found:
            folder = self._scratch / "after"
            folder.mkdir()
            try:
                write_image(image, folder)
                self._found[key] = self._recover(folder)
            finally:
                shutil.rmtree(folder)
        return self._found[key]


@contextmanager
def opened_after_reboot(path: Path) -> Iterator[SqliteBus]:
    """Open a log on a machine that has started again."""
    with patch.object(sqlite_bus, "boot_id", lambda: "next-boot"):
        bus = SqliteBus(path)
    try:
        yield bus
    finally:
        bus.close()


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def sql_dump(path: Path) -> str:
    """Return the whole content of a database as SQL, after a check of its integrity."""
    check_integrity(path)
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump())


# --- a log that is written while its record is made


class NotingWaiter(ThreadWaiter):
    """Notes the acknowledgement right before the caller gets it."""

    __slots__ = ("acknowledge",)

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        super().__init__()
        self.acknowledge = acknowledge

    def finish(self, outcome: object) -> None:
        if not isinstance(outcome, Exception):
            self.acknowledge()
        super().finish(outcome)


@dataclass
class LogState:
    """What every reader and worker can see of a log, in a form in which it can be compared."""

    topics: dict[str, Any]
    lanes: dict[tuple[str, str], Any]


class Workload:
    """Changes a log step by step, and keeps the state that the reference model has after each change."""

    def __init__(self, record: DiskRecord, path: Path) -> None:
        self.record = record
        self.path = path
        self.bus = SqliteBus(path)
        self.model = LogModel()
        self.states = [_state_of_model(self.model)]
        self.appends: dict[int, tuple[Append, AppendResult]] = {}  # by the number of the change
        self.blobs: list[str] = []
        self.undone_claims = 0  # failures after which the last claim was lost
        record.note(Done(f"log {self.bus.call(Info()).log_id}"))

    def reopen(self) -> None:
        self.bus.close()
        self.bus = SqliteBus(self.path)

    def do(self, operation: Operation[R]) -> R:
        (result,) = self.do_together(operation)
        return result  # type: ignore[no-any-return]

    def do_together(self, *operations: Operation[Any]) -> list[Any]:
        """Run operations in one commit: they are queued while the file lock is held by somebody else."""
        lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        assert lock.acquire_within(LEASE_S)
        number = len(self.states)
        waiters: list[NotingWaiter] = []
        for operation in operations:
            waiters.append(self._submit(number, operation))
            number += not isinstance(operation, NO_CHANGE)
        lock.release()
        lock.close()
        outcomes = [waiter.wait() for waiter in waiters]
        for operation, outcome in zip(operations, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            self._follow(operation, outcome)
        return outcomes

    def _submit(self, number: int, operation: Operation[Any]) -> NotingWaiter:
        note: Any = Acknowledged(number)
        if isinstance(operation, PutBlob):
            note = Done(f"blob {operation.name}")
        elif isinstance(operation, Claim):
            note = Claimed(operation.nonce)
        elif isinstance(operation, Renew):
            note = Done(f"renewal of {operation.worker}")
        else:
            self.record.note(Submitted(number))
        waiter = NotingWaiter(lambda: self.record.note(note))
        self.bus._writer.submit(operation, waiter)
        return waiter

    def _follow(self, operation: Operation[Any], outcome: Any) -> None:
        """Let the model make the same change, and check that it has the same result."""
        if isinstance(operation, Claim):
            self._follow_claim(operation, outcome)
            return
        if isinstance(operation, PutBlob):
            self.blobs.append(operation.name)
            return
        if isinstance(operation, Renew):
            assert outcome
            return
        answer: dict[type, Callable[[Any], object]] = {
            Append: self.model.append,
            OwnedAppend: self.model.owned_append,
            Settle: self.model.settle,
            Later: self.model.later,
            Trim: self.model.trim,
            Compact: lambda compact: self.model.compact(compact.topic),
            Erase: lambda erase: self.model.erase(erase.topic, erase.seqs),
            Delete: self.model.delete,
        }
        assert answer[type(operation)](operation) == outcome
        if isinstance(operation, Append):
            self.appends[len(self.states)] = operation, outcome
        self.states.append(_state_of_model(self.model))

    def _follow_claim(self, operation: Claim, claimed: ClaimResult) -> None:
        self.model.sort(operation.agents)
        self.model.workers[operation.worker] = operation.nonce
        for lane in claimed.lanes:
            self.model.claim_lane(lane.owner, operation.nonce)

    # --- after a power failure

    def recover(self, folder: Path) -> Recovered:
        path = folder / self.path.relative_to(self.record.folder)
        with opened_after_reboot(path) as bus:
            check_integrity(path)
            nonces = {nonce for (nonce,) in bus._db.all("SELECT nonce FROM workers")}
            blobs = {name for name in self.blobs if _has_blob(bus, name)}
            found = Recovered(_state_of(bus), bus.call(Info()).log_id, blobs, nonces)
            found.repeats = self._run_again(bus)
            assert bus.call(Append(records=(AFTER,))) == AppendResult((1,))
            check_integrity(path)
        return found

    def _run_again(self, bus: SqliteBus) -> dict[int, AppendResult | Exception]:
        """Run all appends again, as clients do that got no reply."""
        waiters: list[tuple[int, ThreadWaiter]] = []
        for number, (operation, _) in self.appends.items():
            waiter = ThreadWaiter()
            bus._writer.submit(operation, waiter)
            waiters.append((number, waiter))
        return {number: waiter.wait() for number, waiter in waiters}  # type: ignore[misc]

    def judge(self, notes: Sequence[Any], found: Recovered) -> None:
        """Check that the log is as it was after some change, and that no acknowledged change comes after that one."""
        acknowledged = max((note.number for note in notes if isinstance(note, Acknowledged)), default=0)
        submitted = max((note.number for note in notes if isinstance(note, Submitted)), default=0)
        possible = range(acknowledged, submitted + 1)
        number = next((number for number in possible if self.states[number] == found.state), None)
        if number is None:
            raise AssertionError(self._explain(possible, found.state))
        done = {note.what for note in notes if isinstance(note, Done)}
        stored = {what for what in done if what.startswith("blob ")}
        assert stored <= {f"blob {name}" for name in found.blobs}, "a blob is acknowledged and lost"
        assert {what for what in done if what.startswith("log ")} <= {f"log {found.log_id}"}, "the log is another one"
        claims = [note.nonce for note in notes if isinstance(note, Claimed)]
        self.undone_claims += bool(claims) and claims[-1] not in found.nonces
        for earlier, (_, result) in self.appends.items():
            if earlier <= number and earlier not in self.forgotten(number):
                assert found.repeats[earlier] == AppendResult(result.seqs, repeat=True), f"change {earlier}"
        if number < submitted and number + 1 in self.appends:
            assert found.repeats[number + 1] == self.appends[number + 1][1], "the first lost append cannot be repeated"

    def forgotten(self, number: int) -> set[int]:
        """Return the appends whose key is in a topic that is deleted after this change: they cannot be repeated."""
        topics = self.states[number].topics
        return {
            append
            for append, (operation, _) in self.appends.items()
            if topics.get(operation.records[0].topic, {}).get("deleted")
        }

    def _explain(self, possible: range, found: LogState) -> str:
        earlier = [number for number, state in enumerate(self.states) if state == found]
        if earlier:
            return f"the log is as after change {earlier[-1]}, but {possible.start} is acknowledged"
        last = self.states[possible.start]
        parts = [
            name for name in last.topics.keys() | found.topics.keys() if last.topics.get(name) != found.topics.get(name)
        ]
        lanes = [
            name for name in last.lanes.keys() | found.lanes.keys() if last.lanes.get(name) != found.lanes.get(name)
        ]
        return f"the log is as after no change; different from change {possible.start}: {parts} {lanes}"


@dataclass
class Recovered:
    """What was found after a power failure."""

    state: LogState
    log_id: str
    blobs: set[str]
    nonces: set[str]  # of the last claims
    repeats: dict[int, AppendResult | Exception] = field(default_factory=dict)


def _has_blob(bus: SqliteBus, name: str) -> bool:
    try:
        bus.call(GetBlob(name))
    except BlobMissing:
        return False
    return True


def _shown(record: Record) -> tuple[Any, ...]:
    kept = (record.seq, record.id, record.draft, record.closes, record.erased)
    return (*kept, record.payload, dict(record.headers))


def _state_of(bus: SqliteBus) -> LogState:
    """Read a log. Claims all lanes of it, as the first worker after a power failure does."""
    names = tuple(info.topic for info in bus.call(Topics(limit=ALL)).topics)
    deleted = tuple(name for (name,) in bus._db.all("SELECT name FROM topics WHERE deleted = 1"))
    topics: dict[str, Any] = {}
    for info in bus.call(Describe((*names, *deleted))) if names or deleted else ():
        records = [] if info.deleted else [_shown(record) for record in bus.call(Read(info.topic, OLDEST, ALL)).records]
        topics[info.topic] = {
            "last": info.last,
            "floor": info.floor,
            "deleted": info.deleted,
            "head": dict(info.head),
            "records": records,
        }
    claim = Claim(worker="after", agents=AGENTS, limit=1000, lease_s=LEASE_S)
    claimed = {(lane.owner.agent, lane.owner.conversation): lane for lane in bus.call(claim).lanes}
    lanes: dict[tuple[str, str], Any] = {
        (agent, lane.conversation): lane.state for agent in AGENTS for lane in bus.call(Lanes(agent))
    }
    for name, lane in claimed.items():
        assert lanes[name] == "held"
        lanes[name] = [record.ref for record in lane.mail]
    return LogState(topics, lanes)


def _state_of_model(model: LogModel) -> LogState:
    """Return what a worker finds that claims all lanes when the leases of all others are over."""
    topics = {
        name: {
            "last": topic.last,
            "floor": topic.floor,
            "deleted": topic.deleted,
            "head": {field: orjson.loads(text) for field, text in topic.head.items()},
            "records": [topic.entries[seq].shown for seq in sorted(topic.entries)],
        }
        for name, topic in model.topics.items()
    }
    after = copy.deepcopy(model)
    for worker in list(after.workers):
        after.leave(worker)
    after.sort(AGENTS)
    lanes = {
        name: lane.ordered() if lane.state == "ready" else lane.state for name, lane in after.lanes.items() if lane.mail
    }
    return LogState(topics, lanes)
