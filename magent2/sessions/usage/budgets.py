"""Budgets: the limits that were set at run time, the runs that wait for more, and the decision before a model call.

Limits of the configuration hold for every run, conversation and user. One that is set at run time replaces them for
one of these. All of those are records of one topic, so that a worker which follows it knows without asking whether any
limit holds for a call. A run that pauses says so in the same topic, on the condition that no limit was set meanwhile;
one that sets a limit writes the mail that wakes these runs into the same append. So no run misses its wake-up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, LastSeqIs, Trim
from magent2.bus.records import NewRecord, Record
from magent2.bus.retention import trim_steps
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, LimitError, UnknownCursor
from magent2.mail.addressing import mail_records
from magent2.mail.headers import RESUME
from magent2.models.address import budgets_topic, usage_topic
from magent2.models.budgets import DAILY, KINDS, NOTHING, BudgetKind, Budgets, Limit
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonMapping
from magent2.sessions.usage.ledger import READ_PAGE, Ledger

LIMITS_MAX = 10_000  # limits that are set at run time
WAKES_PER_APPEND_MAX = 200  # runs that one append wakes
LIMITS_SNAPSHOT_EVERY = 256  # records of the topic
WARN_SHARE = 0.8  # of a budget; then an event says so
IN_PROGRESS_MAX_S = 300.0  # a reservation that is older counts as used; models that send nothing for as long are down


class BudgetName(NamedTuple):
    """What a limit is for: a `run`, `conversation` or `user` of that name, or the `day` of the deployment."""

    kind: BudgetKind
    name: str = ""

    @property
    def topic(self) -> str:
        """The ledger that says how much is used."""
        kind = {"user_day": "user", "day": "all"}.get(self.kind, self.kind)
        return usage_topic(kind, self.name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class CallRoot:
    """Whose budgets a model call uses: the user, and the conversation and the run at the root of its tree."""

    user: str
    conversation: str
    run: str

    def names(self) -> tuple[BudgetName, ...]:
        names = {"run": self.run, "conversation": self.conversation, "user": self.user, "user_day": self.user}
        return tuple(BudgetName(kind, names.get(kind, "")) for kind in KINDS)


NO_ROOT = CallRoot("", "", "")


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit that holds for a call."""

    name: BudgetName
    limit: Limit

    def day(self, today: str) -> str | None:
        return today if self.name.kind in DAILY else None


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that waits for more budget."""

    run: str
    agent: str
    conversation: str
    budgets: tuple[BudgetName, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The fold of the limits that were set at run time, and of the runs that wait, up to the seq `last`. Immutable."""

    last: int = 0
    set: Mapping[BudgetName, Limit] = field(default_factory=dict)
    waiting: Mapping[str, WaitingRun] = field(default_factory=dict)
    snapshot: int = 0

    def budgets(self, root: CallRoot, configured: Budgets) -> tuple[Budget, ...]:
        """The limits that hold for a call."""
        return tuple(
            Budget(name, limit) for name in root.names() if (limit := self.set.get(name, configured.limit(name.kind)))
        )

    def waiting_for(self, name: BudgetName) -> list[WaitingRun]:
        return [run for run in self.waiting.values() if name in run.budgets]

    def followed_by(self, records: Iterable[Record]) -> Limits:
        last, limits, waiting, snapshot = self.last, dict(self.set), dict(self.waiting), self.snapshot
        for record in records:
            last = record.seq
            match {} if record.erased else record.payload:
                case {"kind": "snapshot", "limits": stored, "waiting": runs}:
                    limits = {_name(item["budget"]): Limit.of_json(item["limit"]) for item in stored}
                    waiting = {item["run"]: _waiting(item) for item in runs}
                    snapshot = record.seq
                case {"kind": "limit", "limit": None, "budget": name}:
                    limits.pop(_name(name), None)
                case {"kind": "limit", "limit": limit, "budget": name}:
                    limits[_name(name)] = Limit.of_json(limit)
                case {"kind": "wait", "run": run}:
                    waiting[run] = _waiting(record.payload)
                case {"kind": "left", "run": run}:
                    waiting.pop(run, None)
        return Limits(last, limits, waiting, snapshot)


def _name(stored: Sequence[str]) -> BudgetName:
    kind, name = stored
    return BudgetName(kind, name)  # type: ignore[arg-type]  # as `limit_record` has written it


def _waiting(payload: JsonMapping) -> WaitingRun:
    names = tuple(map(_name, payload["budgets"]))
    return WaitingRun(payload["run"], payload["agent"], payload["conversation"], names)


def limit_record(name: BudgetName, limit: Limit | None, by: str) -> NewRecord:
    """A limit holds from here on. `None`: that of the configuration does."""
    stored = None if limit is None else limit.as_json()
    return NewRecord(budgets_topic(), {"kind": "limit", "budget": list(name), "limit": stored, "by": by})


def wait_record(waiting: WaitingRun) -> NewRecord:
    """A run waits until one of these limits is raised, or the day ends."""
    return NewRecord(budgets_topic(), {"kind": "wait", **_waiting_json(waiting)})


def left_record(run: str) -> NewRecord:
    """A run does not wait any more."""
    return NewRecord(budgets_topic(), {"kind": "left", "run": run})


def _waiting_json(run: WaitingRun) -> dict[str, object]:
    names = [list(name) for name in run.budgets]
    return {"run": run.run, "agent": run.agent, "conversation": run.conversation, "budgets": names}


async def read_limits(log: Log, known: Limits | None = None) -> Limits:
    """Read the limits that were set. `known` are those read earlier, to read on from."""
    topic = budgets_topic()
    limits, after = known or Limits(), OLDEST
    if known is not None and known.last:
        after = known.last
    while True:
        try:
            page = await log.read(topic, after, READ_PAGE)
        except UnknownCursor:  # the records were removed after a snapshot
            limits, after = Limits(), OLDEST
            continue
        limits = limits.followed_by(page.records)
        if not page.records or page.records[-1].seq >= page.last:
            return replace(limits, last=page.last)
        after = page.records[-1].seq


async def set_limit(log: Log, name: BudgetName, limit: Limit | None, by: str) -> Limits:
    """Set a limit and wake the runs that wait for it, in one append. `None` restores the limit of the configuration.

    If very many runs wait, the others are woken by further appends.
    """

    async def attempt() -> tuple[Limits, bool]:
        limits = await read_limits(log)
        if limit is not None and name not in limits.set and len(limits.set) >= LIMITS_MAX:
            raise LimitError(f"at most {LIMITS_MAX} limits can be set; remove one that is not needed")
        waiting = limits.waiting_for(name)
        woken = waiting[:WAKES_PER_APPEND_MAX]
        records = (limit_record(name, limit, by), *_wake_records(woken))
        await log.append(Append(records=records, conditions=(LastSeqIs(budgets_topic(), limits.last),)))
        return limits, len(waiting) > len(woken)

    limits, more = await retry_on_conflict(attempt, "the list of budgets")
    while more:
        limits, more = await retry_on_conflict(attempt, "the list of budgets")
    if limits.last - limits.snapshot >= LIMITS_SNAPSHOT_EVERY:
        await write_snapshot(log)
    return await read_limits(log)


def _wake_records(runs: Iterable[WaitingRun]) -> list[NewRecord]:
    """For each run, that it does not wait any more, and the mail that makes its lane due."""
    records: list[NewRecord] = []
    for run in runs:
        mail = MessageEnvelope(
            id=f"resume-{uuid.uuid4().hex}",
            conversation_id=run.conversation,
            sender="system",
            recipient=f"agent:{run.agent}",
            type="control",
            content=RESUME,
        )
        records += [left_record(run.run), *mail_records(mail, (run.agent,), {})]
    return records


async def write_snapshot(log: Log) -> None:
    """Write what the records amount to, and remove them. If another one writes meanwhile, the next one does it."""
    limits = await read_limits(log)
    payload = {
        "kind": "snapshot",
        "limits": [{"budget": list(name), "limit": limit.as_json()} for name, limit in limits.set.items()],
        "waiting": [_waiting_json(run) for run in limits.waiting.values()],
    }
    topic = budgets_topic()
    snapshot = Append(records=(NewRecord(topic, payload),), conditions=(LastSeqIs(topic, limits.last),))
    try:
        await log.append(snapshot)
    except ConditionFailed:
        return
    async for _ in trim_steps(log, Trim(topic, through=limits.last)):
        pass


async def erase_limits(log: Log, user: str) -> None:
    """Remove the limits that were set for a user."""
    limits = await read_limits(log)
    own = [name for name in limits.set if name.name == user and name.kind in ("user", "user_day")]
    for name in own:
        await set_limit(log, name, None, "system")
    if own:
        await write_snapshot(log)


# --- the decision before a model call


@dataclass(frozen=True, slots=True)
class Reached:
    """These budgets are used up. `resumes_at`: when the day ends, if all of them are daily."""

    budgets: tuple[Budget, ...]
    resumes_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """Nothing is used up, but the calls in progress may use the rest."""

    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call may be made. Of the budgets in `warn` most is used, which was not reported yet."""

    warn: tuple[Budget, ...] = ()


BudgetDecision: TypeAlias = Reached | Busy | Allowed


def decide(budgets: Sequence[Budget], ledgers: Mapping[str, Ledger], now: datetime, run: str = "") -> BudgetDecision:
    """Decide whether a model call may be made. `now` is in the time zone of the budgets. Pure.

    A call is made while anything is left: how much it will use is not known before. So one call may exceed the budget,
    but no further one begins. An open reservation of the same `run` belongs to an earlier attempt, and is lost. One
    that is old counts as used: the conversation of its run may have been deleted, and then it is never settled.
    """
    today = day_of(now)
    oldest_ms = (now.timestamp() - IN_PROGRESS_MAX_S) * 1000
    shares = {budget: _shares(budget, ledgers[budget.name.topic], today, run, oldest_ms) for budget in budgets}
    reached = tuple(budget for budget, (used, _) in shares.items() if used >= 1)
    if reached:
        daily = all(budget.name.kind in DAILY for budget in reached)
        return Reached(reached, next_day(now) if daily else None)
    busy = tuple(budget for budget, (_, with_reserved) in shares.items() if with_reserved >= 1)
    if busy:
        return Busy(busy)
    most = [budget for budget, (used, _) in shares.items() if used >= WARN_SHARE]
    return Allowed(tuple(one for one in most if warned_key(one, today) not in ledgers[one.name.topic].warned))


def _shares(budget: Budget, ledger: Ledger, today: str, run: str, oldest_ms: float) -> tuple[float, float]:
    """The share of a budget that is used, with reservations that count as used, and the same with all reservations."""
    day = budget.day(today)
    counted = [item for item in ledger.open.values() if item.call.run == run or item.at_ms < oldest_ms]
    as_used = sum((item.estimate for item in counted if day in (None, item.call.day)), NOTHING)
    used, reserved = ledger.used(day).total, ledger.reserved(day)
    return budget.limit.share(used + as_used), budget.limit.share(used + reserved)


def warned_key(budget: Budget, today: str) -> str:
    """What a warning is about, so that it is given once: the budget, its limit, and its day."""
    limit = budget.limit
    return f"{budget.name.kind}/{limit.tokens}/{limit.calls}/{limit.cost_usd}/{budget.day(today) or ''}"


def local_time(now_ms: int, timezone: str) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(timezone))


def day_of(now: datetime) -> str:
    return now.date().isoformat()


def next_day(now: datetime) -> datetime:
    """When the next day begins: midnight, or the first moment after it where a change of the clock skips midnight."""
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
    return midnight.astimezone(UTC)
