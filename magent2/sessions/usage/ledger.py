"""The ledger of model calls: one record for each call, in the append that records its answer.

Each user has a ledger, `usage:user:{name}`. Where a budget applies, the run tree, the conversation or the deployment
has one too, and every call is reserved before it is made: a `reserve` with an estimate, which a `spend` settles. A
call whose worker died leaves its reservation open. The next reservation of the same run that does not keep it, or a
`lost`, says that it will not be settled: from then on it counts as its estimate, and is shown apart. A `release` takes
back a reservation of a call that the provider refused.

Now and then a `checkpoint` records what the records before it amount to, and the head of the ledger names it: a reader
needs the checkpoint and the records behind it. In the same append, the checkpoint of a user's ledger writes what these
records amount to by day, agent, model and conversation into `usage:days:{name}`. Then the records before it are
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NotRequired, TypedDict, cast

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, Condition, LastSeqIs, SetHead, Trim
from magent2.bus.records import NewRecord, Record
from magent2.bus.retention import forget_records, trim_steps
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, UnknownCursor
from magent2.models.address import usage_days_topic, usage_topic
from magent2.models.budgets import NOTHING, Amount
from magent2.models.json_types import JsonMapping

CHECKPOINT_EVERY = 256  # records
DAYS_KEPT = 3  # days whose sums a checkpoint has; a daily budget needs the current one
RESERVATION_MAX_S = 86_400.0  # a reservation that is older is lost: no attempt at a run takes longer
READ_PAGE = 500
READ_TRIES_MAX = 8  # reads of a ledger whose records are removed meanwhile
CHECKPOINT = "checkpoint"  # head field: the seq of the last checkpoint


class CallFacts(NamedTuple):
    """The call that a record is about. `conversation` and `root_run` are those at the root of a tree of subagents."""

    run: str
    agent: str
    model: str
    conversation: str
    root_run: str
    day: str  # the calendar day, as `2026-11-17`


class LedgerRecord(TypedDict):
    """The payload of a record. `id` names a reservation; `settles` is the one that is settled."""

    kind: str
    id: NotRequired[str]
    settles: NotRequired[str]
    keeps: NotRequired[list[str]]
    run: NotRequired[str]
    agent: NotRequired[str]
    model: NotRequired[str]
    conversation: NotRequired[str]
    root_run: NotRequired[str]
    day: NotRequired[str]
    amount: NotRequired[dict[str, object]]
    warned: NotRequired[str]


class StoredReservation(LedgerRecord):
    """A reservation in a checkpoint."""

    at_ms: int


class CheckpointRecord(TypedDict):
    """The payload of a `checkpoint`."""

    kind: str
    spent: dict[str, object]
    lost: dict[str, object]
    days: dict[str, list[dict[str, object]]]
    open: list[StoredReservation]
    warned: list[str]


def reserve_record(
    topic: str, reservation: str, call: CallFacts, estimate: Amount, keeps: Sequence[str] = ()
) -> NewRecord:
    """A call is about to be made, and may use this much. `keeps`: earlier ones of the run that are settled later."""
    kept = {"keeps": list(keeps)} if keeps else {}
    own = {"kind": "reserve", "id": reservation, "amount": estimate.as_json(), **kept}
    return NewRecord(topic, {**own, **call._asdict()}, id=reservation)


def spend_record(topic: str, call: CallFacts, used: Amount, settles: str | None) -> NewRecord:
    """A call was answered, and has used this much."""
    settled = {} if settles is None else {"settles": settles}
    return NewRecord(topic, {"kind": "spend", **call._asdict(), "amount": used.as_json(), **settled})


def release_record(topic: str, settles: str) -> NewRecord:
    """A call that was reserved has used nothing."""
    return NewRecord(topic, {"kind": "release", "settles": settles})


def lost_record(topic: str, settles: str) -> NewRecord:
    """A call was cut off: how much it has used is not known."""
    return NewRecord(topic, {"kind": "lost", "settles": settles})


def ended_record(topic: str, run: str) -> NewRecord:
    """A run has ended: a reservation of it that is still open was lost."""
    return NewRecord(topic, {"kind": "ended", "run": run})


def seed_record(topic: str, earlier: Amount) -> NewRecord:
    """What was used before the ledger began."""
    return NewRecord(topic, {"kind": "seed", "amount": earlier.as_json()})


def warned_record(topic: str, warned: str) -> NewRecord:
    """It was reported that most of a budget is used. `warned` names the budget, its limit and its day."""
    return NewRecord(topic, {"kind": "warned", "warned": warned})


@dataclass(frozen=True, slots=True)
class Reservation:
    """A call in progress, or one whose worker has died."""

    id: str
    call: CallFacts
    estimate: Amount
    at_ms: int

    def as_json(self) -> StoredReservation:
        own = {"kind": "reserve", "id": self.id, "amount": self.estimate.as_json(), "at_ms": self.at_ms}
        return cast(StoredReservation, {**own, **self.call._asdict()})


@dataclass(frozen=True, slots=True)
class Used:
    """What was used, and the estimates of the calls that were lost."""

    spent: Amount = NOTHING
    lost: Amount = NOTHING

    def __add__(self, other: Used) -> Used:
        return Used(self.spent + other.spent, self.lost + other.lost)

    @property
    def total(self) -> Amount:
        return self.spent + self.lost


UNUSED = Used()


class UsageEntry(NamedTuple):
    """What a record adds to the usage."""

    call: CallFacts
    used: Used


@dataclass(frozen=True, slots=True)
class Ledger:
    """The fold of a ledger up to the seq `last`. Immutable."""

    last: int = 0
    checkpoint: int = 0
    total: Used = UNUSED
    days: Mapping[str, Used] = field(default_factory=dict)  # the last ones
    open: Mapping[str, Reservation] = field(default_factory=dict)  # reservations by id
    warned: frozenset[str] = frozenset()

    def used(self, day: str | None = None) -> Used:
        return self.total if day is None else self.days.get(day, UNUSED)

    def reserved(self, day: str | None = None) -> Amount:
        """The estimates of the calls in progress."""
        found = (item.estimate for item in self.open.values() if day is None or item.call.day == day)
        return sum(found, NOTHING)

    def followed_by(self, records: Iterable[Record]) -> tuple[Ledger, list[UsageEntry]]:
        """The ledger with these records, and what they add to the usage."""
        fold = _LedgerFold(self)
        for record in records:
            fold.add(record)
        return fold.ledger(), fold.entries

    def without_old(self, now_ms: int) -> tuple[Ledger, list[UsageEntry]]:
        """The ledger in which reservations that can no longer be settled are lost."""
        fold = _LedgerFold(self)
        for item in list(self.open.values()):
            if item.at_ms < now_ms - RESERVATION_MAX_S * 1000:
                fold.lose(item.id)
        return fold.ledger(), fold.entries

    def checkpoint_record(self, topic: str) -> NewRecord:
        days = {day: [used.spent.as_json(), used.lost.as_json()] for day, used in self.days.items()}
        stored: CheckpointRecord = {
            "kind": "checkpoint",
            "spent": self.total.spent.as_json(),
            "lost": self.total.lost.as_json(),
            "days": days,
            "open": [item.as_json() for item in self.open.values()],
            "warned": sorted(self.warned),
        }
        return NewRecord(topic, dict(stored))

    @classmethod
    def of_checkpoint(cls, record: Record) -> Ledger:
        stored = cast(CheckpointRecord, record.payload)
        days = {day: Used(Amount.of_json(spent), Amount.of_json(lost)) for day, (spent, lost) in stored["days"].items()}
        total = Used(Amount.of_json(stored["spent"]), Amount.of_json(stored["lost"]))
        reservations = [
            Reservation(item["id"], _call(item), Amount.of_json(item["amount"]), item["at_ms"])
            for item in stored["open"]
        ]
        by_id = {item.id: item for item in reservations}
        return cls(record.seq, record.seq, total, days, by_id, frozenset(stored["warned"]))


class _LedgerFold:
    """Folds records into a copy of a ledger."""

    def __init__(self, before: Ledger) -> None:
        self.entries: list[UsageEntry] = []
        self._load(before)

    def _load(self, ledger: Ledger) -> None:
        self._last, self._checkpoint = ledger.last, ledger.checkpoint
        self._total = ledger.total
        self._days = dict(ledger.days)
        self._open = dict(ledger.open)
        self._warned = set(ledger.warned)

    def ledger(self) -> Ledger:
        days = {day: self._days[day] for day in sorted(self._days)[-DAYS_KEPT:]}
        oldest = min(days, default="")
        warned = (key for key in self._warned if not (day := key.rpartition("/")[2]) or day >= oldest)
        return Ledger(self._last, self._checkpoint, self._total, days, self._open, frozenset(warned))

    def add(self, record: Record) -> None:
        self._last = record.seq
        if record.erased:
            return
        payload = cast(LedgerRecord, record.payload)
        kind = payload["kind"]
        match kind:
            case "checkpoint":
                self._load(Ledger.of_checkpoint(record))
            case "reserve":
                self._reserve(payload, record)
            case "spend":
                self._open.pop(payload.get("settles", ""), None)
                self._use(_call(payload), Used(spent=Amount.of_json(payload["amount"])))
            case "release":
                self._open.pop(payload["settles"], None)
            case "lost":
                self.lose(payload["settles"])
            case "ended":
                self._lose_all(payload["run"])
            case "seed":
                self._total += Used(spent=Amount.of_json(payload["amount"]))
            case "warned":
                self._warned.add(payload["warned"])

    def _reserve(self, payload: LedgerRecord, record: Record) -> None:
        """Open a reservation. A run makes one call at a time, so an earlier one was lost, unless its answer waits."""
        call = _call(payload)
        self._lose_all(call.run, payload.get("keeps", ()))
        estimate = Amount.of_json(payload["amount"])
        self._open[payload["id"]] = Reservation(payload["id"], call, estimate, record.at_ms)

    def _lose_all(self, run: str, keeps: Sequence[str] = ()) -> None:
        for reservation in [item.id for item in self._open.values() if item.call.run == run]:
            if reservation not in keeps:
                self.lose(reservation)

    def lose(self, reservation: str) -> None:
        item = self._open.pop(reservation, None)
        if item is not None:
            self._use(item.call, Used(lost=item.estimate))

    def _use(self, call: CallFacts, used: Used) -> None:
        self._total += used
        self._days[call.day] = self._days.get(call.day, UNUSED) + used
        self.entries.append(UsageEntry(call, used))


def _call(payload: LedgerRecord) -> CallFacts:
    return CallFacts(
        payload["run"],
        payload["agent"],
        payload["model"],
        payload["conversation"],
        payload["root_run"],
        payload["day"],
    )


async def read_ledger(log: Log, topic: str, known: Ledger | None = None) -> Ledger:
    """Read the current state of a ledger. `known` is an earlier one, to read on from."""
    ledger, _ = await read_entries(log, topic, known)
    return ledger


async def read_entries(log: Log, topic: str, known: Ledger | None = None) -> tuple[Ledger, list[UsageEntry]]:
    """Read a ledger, and what its records behind the checkpoint, or behind `known`, add to the usage."""
    for _ in range(READ_TRIES_MAX):
        after = None if known is None else known.last
        if after is None:
            (info,) = await log.describe(topic)
            # The checkpoint itself is read too. After an erasure it does not exist any more.
            after = max(info.head.get(CHECKPOINT, 0) - 1, info.floor)
        try:
            return await _read_on(log, topic, known or Ledger(), after)
        except UnknownCursor:  # another checkpoint was written meanwhile, and the records before it were removed
            known = None
    raise ConditionFailed(f"the ledger {topic!r} keeps changing; try again")


async def _read_on(log: Log, topic: str, ledger: Ledger, after: int) -> tuple[Ledger, list[UsageEntry]]:
    entries: list[UsageEntry] = []
    while True:
        page = await log.read(topic, after, READ_PAGE)
        if page.deleted:
            return Ledger(), []
        ledger, added = ledger.followed_by(page.records)
        entries += added
        if not page.records or page.records[-1].seq >= page.last:
            # A topic that was erased has a last seq but no records. Writers compare `last` with it.
            return replace(ledger, last=page.last), entries
        after = page.records[-1].seq


# --- usage by day


class UsageRow(NamedTuple):
    """The usage of one day, agent, model and conversation of a user."""

    day: str
    agent: str
    model: str
    conversation: str
    used: Used


def rows_of(entries: Iterable[UsageEntry]) -> list[UsageRow]:
    """Add up entries."""
    sums: dict[tuple[str, str, str, str], Used] = {}
    for call, used in entries:
        key = (call.day, call.agent, call.model, call.conversation)
        sums[key] = sums.get(key, UNUSED) + used
    return [UsageRow(*key, used) for key, used in sums.items()]


class DaysRecord(TypedDict):
    """The payload of a record of `usage:days:`: the usage in the records between two checkpoints of the ledger."""

    checkpoint: int  # seq of the later one
    rows: list[list[object]]


def _days_record(user: str, checkpoint: int, rows: Sequence[UsageRow]) -> NewRecord:
    stored: DaysRecord = {
        "checkpoint": checkpoint,
        "rows": [
            [row.day, row.agent, row.model, row.conversation, row.used.spent.as_json(), row.used.lost.as_json()]
            for row in rows
        ],
    }
    return NewRecord(usage_days_topic(user), dict(stored))


def _stored_rows(payload: JsonMapping, since: str) -> tuple[int, list[UsageRow]]:
    """The rows of a record from a day on, and the checkpoint that they belong to."""
    return payload["checkpoint"], [
        UsageRow(day, agent, model, conversation, Used(Amount.of_json(spent), Amount.of_json(lost)))
        for day, agent, model, conversation, spent, lost in payload["rows"]
        if day >= since
    ]


@dataclass(frozen=True, slots=True)
class UserUsage:
    """The usage of a user by day, agent, model and conversation, and the estimates of the calls in progress."""

    rows: tuple[UsageRow, ...]
    reserved: Amount


async def read_user_usage(log: Log, user: str, since: str = "", now_ms: int | None = None) -> UserUsage:
    """Read the usage of a user from the day `since` on."""
    ledger, entries = await read_entries(log, usage_topic("user", user))
    if now_ms is not None:
        ledger, lost = ledger.without_old(now_ms)
        entries += lost
    rows = rows_of(entry for entry in entries if entry.call.day >= since)
    # The ledger was read first. What a later checkpoint has moved is in both, so it is left out here.
    rows += await _read_days(log, user, since, ledger.checkpoint)
    return UserUsage(tuple(rows), ledger.reserved())


async def read_conversation_usage(log: Log, user: str, conversation: str) -> Used:
    """What a conversation of this user has used, from the ledger of the user. It may have none of its own."""
    usage = await read_user_usage(log, user)
    return sum((row.used for row in usage.rows if row.conversation == conversation), UNUSED)


async def _read_days(log: Log, user: str, since: str, checkpoint: int) -> list[UsageRow]:
    """Read backwards until a record has no day from `since` on: calls are recorded about in the order of their days."""
    rows: list[UsageRow] = []
    before: int | None = None
    while True:
        page = await log.read(usage_days_topic(user), None, READ_PAGE, before)
        days = [_stored_rows(record.payload, since) for record in page.records if not record.erased]
        for through, recent in days:
            rows += recent if through <= checkpoint else ()
        if not any(recent for _, recent in days) or page.records[0].seq <= page.floor + 1:
            return rows
        before = page.records[0].seq


async def write_checkpoint(log: Log, user: str, now_ms: int) -> bool:
    """Write a checkpoint of a user's ledger, and remove the records before it. Return whether it was written.

    Any process may do this at any time. If another one appends meanwhile, it is tried again; after a few times it is
    left to the next one.
    """
    topic = usage_topic("user", user)

    async def attempt() -> int:
        ledger, entries = await read_entries(log, topic)
        ledger, lost = ledger.without_old(now_ms)
        if ledger.last <= ledger.checkpoint:
            return 0
        days = _days_record(user, ledger.last + 1, rows_of([*entries, *lost]))
        records, conditions, heads = checkpoint_parts(topic, ledger)
        await log.append(Append(records=(days, *records), conditions=conditions, heads=heads))
        return ledger.last

    try:
        through = await retry_on_conflict(attempt, topic)
    except ConditionFailed:
        return False
    await remove_settled(log, topic, through)
    return through > 0


def checkpoint_parts(
    topic: str, ledger: Ledger
) -> tuple[tuple[NewRecord, ...], tuple[Condition, ...], tuple[SetHead, ...]]:
    """Record, condition and head of a checkpoint, which must be the next record of the ledger."""
    head = SetHead(topic, {CHECKPOINT: ledger.last + 1})
    return (ledger.checkpoint_record(topic),), (LastSeqIs(topic, ledger.last),), (head,)


async def erase_usage(log: Log, user: str) -> None:
    """Remove the usage of a user. The topics stay, so that later usage of the same name is counted again."""
    for topic in (usage_topic("user", user), usage_days_topic(user)):
        page = await log.read(topic, OLDEST, 1)
        while page.records:
            first = page.records[0].seq
            await forget_records(log, topic, range(first, page.last + 1))
            await remove_settled(log, topic, page.last)
            page = await log.read(topic, OLDEST, 1)


async def remove_settled(log: Log, topic: str, through: int) -> None:
    """Remove the records of a ledger before its checkpoint."""
    async for _ in trim_steps(log, Trim(topic, through=through)):
        pass
