"""Lanes and leases: claiming a lane, writing as its owner, giving it back.

A lane is the mail of one agent in one conversation; one worker owns it at a time. A lane without owner is ready (it has
an order number in `ready`), waits until `due_ms` of the log clock, is parked until control mail comes, or is idle (it
has no mail).
Order numbers grow at the back of the queue and shrink at the front, so that taking lanes is one indexed query.
The principals that have ready lanes of an agent take turns (the table `turns`). So a claim costs as much whether a
principal has one ready lane or thousands.

A lease belongs to a worker, not to a lane: renewing it is one row however many lanes the worker holds. An expired lease
changes nothing by itself. The next claim of any worker takes the lanes away; until then the owner may still write,
because nothing else can own the lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import orjson

from magent2.bus.operations import (
    CLAIM_MAIL_MAX,
    IDLE_LANES_DROPPED_MAX,
    LANE_MEMORY_S,
    LEASE_MAX_S,
    Claim,
    Later,
    Leave,
    Operation,
    OwnedAppend,
    Renew,
    Settle,
    Write,
)
from magent2.bus.records import AppendResult, ClaimedLane, ClaimResult, MailRef, Owner
from magent2.bus.sqlite_engine.append import check_and_write, check_sizes
from magent2.bus.sqlite_engine.connection import WriteConnection, pack_seqs, unpack_seqs
from magent2.bus.sqlite_engine.lane_intake import CONTROL, sort_inboxes
from magent2.bus.sqlite_engine.reads import fenced, mail_of
from magent2.errors import CounterGap
from magent2.models.address import history_topic

LEASE_MAX_MS = int(LEASE_MAX_S * 1000)

_HAS_MAIL = "SELECT 1 FROM mail WHERE lid = ? LIMIT 1"
_HAS_CONTROL = f"SELECT 1 FROM mail WHERE lid = ? AND chat = {CONTROL} LIMIT 1"  # noqa: S608  a constant
_RELEASE = (
    "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = ?, ready = ?, due_ms = ?,"
    " parked = ?, done = ?, done_answer = ?, idle_ms = ?, principal = coalesce(?, principal) WHERE lid = ?"
)
_MAKE_READY = (
    "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, due_ms = NULL, ready = ?, principal = ?"
    " WHERE lid = ?"
)
_MAKE_IDLE = (
    "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = 0, due_ms = NULL, idle_ms = ?"
    " WHERE lid = ?"
)
_TAKE = (
    "UPDATE lanes SET owner = ?, worker = ?, nonce = ?, attempt = attempt + 1, n = 0, answer = NULL,"
    " ready = NULL WHERE lid = ? RETURNING conversation, attempt"
)
_FIRST_LANES = "SELECT lid FROM lanes WHERE agent = ? AND principal = ? AND ready IS NOT NULL ORDER BY ready LIMIT ?"
_NEXT_TURNS = "SELECT turn, agent, principal FROM turns WHERE agent = ? ORDER BY turn LIMIT ?"


class LaneRow(NamedTuple):
    """Row of a lane, as far as its owner's operations need it.

    `n` and `answer` belong to the last owned append, `done` and `done_answer` to the last owner that gave the lane up.
    """

    lid: int
    conversation: str
    owner: str | None
    n: int
    answer: str | None
    attempt: int
    done: str | None
    done_answer: str | None


def _select_lane(db: WriteConnection, owner: Owner) -> LaneRow | None:
    row = db.one(
        "SELECT lid, conversation, owner, n, answer, attempt, done, done_answer FROM lanes"
        " WHERE conversation = ? AND agent = ?",
        owner.conversation,
        owner.agent,
    )
    return None if row is None else LaneRow._make(row)


# --- operations of an owner ---


def owned_append(db: WriteConnection, operation: OwnedAppend) -> AppendResult:
    check_sizes(db, operation)
    lane = _select_lane(db, operation.owner)
    if lane is None or lane.owner != operation.owner.token:
        raise fenced(operation.owner)
    if operation.n <= lane.n:
        return AppendResult(unpack_seqs(lane.answer) if operation.n == lane.n else (), repeat=True)
    if operation.n > lane.n + 1:
        raise CounterGap(f"append {operation.n} comes after {lane.n}; run the appends in between first")
    seqs = check_and_write(db, operation)
    _remove_mail(db, lane, operation.mail)
    sql = "UPDATE lanes SET n = ?, answer = ? WHERE lid = ?"
    db.execute(sql, (operation.n, pack_seqs(seqs), lane.lid))
    return AppendResult(seqs)


def settle(db: WriteConnection, operation: Settle) -> AppendResult:
    lane, repeat = _check_release(db, operation, operation.owner)
    if repeat is not None:
        return repeat
    seqs = check_and_write(db, operation)
    _remove_mail(db, lane, operation.mail)
    if db.one(_HAS_MAIL, lane.lid) is None:
        _release(db, lane, seqs, idle_ms=db.log_ms())
    else:
        _release(db, lane, seqs, ready=db.next_back())
        db.wake(operation.owner.agent)
    return AppendResult(seqs)


def later(db: WriteConnection, operation: Later) -> AppendResult:
    lane, repeat = _check_release(db, operation, operation.owner)
    if repeat is not None:
        return repeat
    seqs = check_and_write(db, operation)
    attempt = max(0, lane.attempt - 1) if operation.refund else lane.attempt
    if db.one(_HAS_CONTROL, lane.lid) is not None:
        # The command came while the lane was held, and intake leaves held lanes alone. So nothing else would make the
        # lane ready: it would wait, or stay parked, with the command in it.
        _release(db, lane, seqs, attempt=attempt, ready=db.next_front())
        db.wake(operation.owner.agent)
    elif operation.delay_s is None:
        _release(db, lane, seqs, attempt=attempt, parked=True)
    elif operation.delay_s > 0:
        db.store_clock()  # no later than at the start of any delay, so that none is prolonged by a reboot
        due_ms = db.log_ms() + max(1, round(operation.delay_s * 1000))
        _release(db, lane, seqs, attempt=attempt, due_ms=due_ms)
    elif db.one(_HAS_MAIL, lane.lid) is None:
        _release(db, lane, seqs, idle_ms=db.log_ms())
    else:
        _release(db, lane, seqs, attempt=attempt, ready=db.next_front())
        db.wake(operation.owner.agent)
    return AppendResult(seqs)


def _check_release(db: WriteConnection, operation: Write, owner: Owner) -> tuple[LaneRow, AppendResult | None]:
    """Return the lane that its owner gives up, and the first answer if this operation is a repeat.

    The lane keeps the token of the last owner that gave it up, so that a repeat after a lost reply is told from a
    worker that has lost the lane. Only a later settle or later of another owner overwrites that token.
    """
    check_sizes(db, operation)
    lane = _select_lane(db, owner)
    if lane is not None and lane.owner == owner.token:
        return lane, None
    if lane is not None and lane.done == owner.token:
        return lane, AppendResult(unpack_seqs(lane.done_answer), repeat=True)
    raise fenced(owner)


def _release(
    db: WriteConnection,
    lane: LaneRow,
    seqs: tuple[int, ...],
    *,
    attempt: int = 0,
    ready: int | None = None,
    due_ms: int | None = None,
    parked: bool = False,
    idle_ms: int | None = None,
) -> None:
    principal = None if ready is None else db.principal_of(lane.conversation)
    values = (attempt, ready, due_ms, parked, lane.owner, pack_seqs(seqs), idle_ms, principal, lane.lid)
    db.execute(_RELEASE, values)


def _remove_mail(db: WriteConnection, lane: LaneRow, mail: Iterable[MailRef]) -> None:
    rows = [(lane.lid, ref.topic.startswith("chat:"), ref.seq) for ref in mail]
    if rows:
        db.executemany("DELETE FROM mail WHERE lid = ? AND chat = ? AND seq = ?", rows)


# --- operations of a worker ---


def claim(db: WriteConnection, operation: Claim) -> ClaimResult:
    db.flush()
    monotonic_ms = db.clock.monotonic_ms()
    anchor = db.anchor()
    if anchor is None or not anchor.carries(db.boot_id, monotonic_ms):
        db.store_clock()
    log_ms = db.log_ms()
    # The own lease comes first: a worker whose lease has expired must not lose its lanes to its own claim.
    repeat = _take_lease(db, operation, monotonic_ms)
    _return_expired(db, monotonic_ms)
    _drop_idle_lanes(db, log_ms)
    _make_due_lanes_ready(db, operation.agents, log_ms)
    more = sort_inboxes(db, operation.agents)
    over_share = False
    if repeat:
        lanes = _lanes_of_nonce(db, operation, log_ms)
    else:
        lanes, over_share = _take_lanes(db, operation, log_ms)
    return ClaimResult(lanes, more, _wait_s(db, operation, monotonic_ms, log_ms), over_share)


def _take_lease(db: WriteConnection, operation: Claim, monotonic_ms: int) -> bool:
    """Renew the worker's lease, and note the process that it ends with; return whether this claim is a repeat.

    The nonce of the last claim is stored with the lease. A worker whose reply was lost claims again with the same nonce
    and gets the same lanes. Without the nonce those lanes would stay held, without a run, until the lease expires.
    """
    sql = "SELECT nonce, process FROM workers LEFT JOIN worker_processes USING (worker) WHERE worker = ?"
    row, process = db.one(sql, operation.worker), db.process_name()
    deadline = monotonic_ms + round(operation.lease_s * 1000)
    agents = orjson.dumps(operation.agents).decode()
    db.execute(
        "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)",
        (operation.worker, agents, deadline, db.boot_id, operation.nonce),
    )
    if row is None or row[1] != process:
        db.execute("INSERT OR REPLACE INTO worker_processes VALUES (?, ?)", (operation.worker, process))
    return row is not None and row[0] == operation.nonce


def _return_expired(db: WriteConnection, monotonic_ms: int) -> None:
    """End the leases that have run out.

    Deadlines are monotonic times, so that setting the system clock ends no lease. They count from the boot of the
    machine: a lease of another boot has expired, and so has one whose deadline is further off than any lease can be,
    which is how a reboot shows where the system has no boot id.
    """
    expired = db.all(
        "SELECT worker FROM workers WHERE deadline <= ? OR deadline > ? OR boot <> ?",
        monotonic_ms,
        monotonic_ms + LEASE_MAX_MS,
        db.boot_id,
    )
    for (worker,) in expired:
        _end_lease(db, worker)


def _end_lease(db: WriteConnection, worker: str) -> int:
    """End a worker's lease and return the number of its lanes, which go to the front in the order of their creation."""
    held = db.all("SELECT lid, agent, conversation FROM lanes WHERE worker = ? ORDER BY lid DESC", worker)
    for lid, agent, conversation in held:
        if db.one(_HAS_MAIL, lid) is None:
            db.execute(_MAKE_IDLE, (db.log_ms(), lid))
        else:
            db.execute(_MAKE_READY, (db.next_front(), db.principal_of(conversation), lid))
            db.wake(agent)
    db.execute("DELETE FROM workers WHERE worker = ?", (worker,))
    db.execute("DELETE FROM worker_processes WHERE worker = ?", (worker,))
    return len(held)


def _drop_idle_lanes(db: WriteConnection, log_ms: int) -> None:
    sql = "SELECT lid FROM lanes WHERE idle_ms < ? LIMIT ?"
    old = db.all(sql, log_ms - LANE_MEMORY_S * 1000, IDLE_LANES_DROPPED_MAX)
    if old:
        db.executemany("DELETE FROM lanes WHERE lid = ?", old)


def _make_due_lanes_ready(db: WriteConnection, agents: Iterable[str], log_ms: int) -> None:
    for agent in agents:
        due = db.all(
            "SELECT lid, conversation FROM lanes WHERE agent = ? AND due_ms <= ? ORDER BY due_ms", agent, log_ms
        )
        for lid, conversation in due:
            if db.one(_HAS_MAIL, lid) is None:
                db.execute(_MAKE_IDLE, (log_ms, lid))
            else:
                db.execute(_MAKE_READY, (db.next_back(), db.principal_of(conversation), lid))


def _take_lanes(db: WriteConnection, operation: Claim, log_ms: int) -> tuple[tuple[ClaimedLane, ...], bool]:
    """Take up to `limit` ready lanes, and say whether some were left because of their principals' share.

    Every agent and principal has one turn at a time, so neither starves another. Who has taken a lane goes to the end.
    """
    turns: list[tuple[int, str, str]] = []
    for agent in dict.fromkeys(operation.agents) if operation.limit else ():
        # Principals that are over their share are passed over. They use slots, so this many turns are enough.
        turns += db.all(_NEXT_TURNS, agent, operation.limit + len(operation.slots) + 1)
    heapify(turns)
    alone = len(turns) == 1  # then the order does not matter: who comes later goes to the end
    last_turn = 0 if alone else _last_turn(db, turns)
    slots, over_share = dict(operation.slots), False
    ready = _ReadyLanes(db)
    served: dict[tuple[str, str], int] = {}
    taken: list[ClaimedLane] = []
    while turns and len(taken) < operation.limit:
        free = operation.limit - len(taken)
        _, agent, principal = heappop(turns)
        if not operation.has_room(principal, slots.get(principal, 0), free):
            over_share = True
            continue
        page = -(-free // (len(turns) + 1))  # about as many as come to this principal's turn
        lid = ready.pop_first(agent, principal, page)
        if lid is None:
            continue
        taken.append(_take(db, operation, agent, principal, lid, log_ms))
        slots[principal] = slots.get(principal, 0) + 1
        last_turn += 1
        served[agent, principal] = last_turn
        heappush(turns, (last_turn, agent, principal))
    if not alone:
        moved = [(turn, *who) for who, turn in served.items()]
        db.executemany("UPDATE turns SET turn = ? WHERE agent = ? AND principal = ?", moved)
    return tuple(taken), over_share


class _ReadyLanes:
    """The ready lanes of each agent and principal, read in pages while a claim takes them."""

    def __init__(self, db: WriteConnection) -> None:
        self._db = db
        self._read: dict[tuple[str, str], list[int]] = {}  # and not taken yet, first one last
        self._all_read: set[tuple[str, str]] = set()  # who has no other lanes than these

    def pop_first(self, agent: str, principal: str, page: int) -> int | None:
        """Return the first lane that was not returned yet; `None` if there is none."""
        who = (agent, principal)
        lids = self._read.get(who)
        if not lids:
            rows = [] if who in self._all_read else self._db.all(_FIRST_LANES, agent, principal, page)
            if len(rows) < page:
                self._all_read.add(who)
            lids = self._read[who] = [lid for (lid,) in reversed(rows)]
        return lids.pop() if lids else None


def _last_turn(db: WriteConnection, turns: Iterable[tuple[int, str, str]]) -> int:
    """Return the highest number in use for the agents that have these turns."""
    agents = {agent for _, agent, _ in turns}
    return max((db.all("SELECT max(turn) FROM turns WHERE agent = ?", agent)[0][0] for agent in agents), default=0)


def _take(db: WriteConnection, operation: Claim, agent: str, principal: str, lid: int, log_ms: int) -> ClaimedLane:
    token = f"{operation.worker}/{operation.nonce}/{db.next_epoch()}"
    conversation, attempt = db.all(_TAKE, token, operation.worker, operation.nonce, lid)[0]
    return _claimed(db, Owner(operation.worker, agent, conversation, token), lid, attempt, log_ms, principal)


def _lanes_of_nonce(db: WriteConnection, operation: Claim, log_ms: int) -> tuple[ClaimedLane, ...]:
    rows = db.all(
        "SELECT lid, agent, conversation, owner, attempt, principal FROM lanes WHERE worker = ? AND nonce = ?"
        " ORDER BY lid",
        operation.worker,
        operation.nonce,
    )
    return tuple(
        _claimed(db, Owner(operation.worker, agent, conversation, token), lid, attempt, log_ms, principal)
        for lid, agent, conversation, token, attempt, principal in rows
    )


def _claimed(db: WriteConnection, owner: Owner, lid: int, attempt: int, log_ms: int, principal: str) -> ClaimedLane:
    mail = mail_of(db, owner.agent, lid, CLAIM_MAIL_MAX)
    count = len(mail)
    if count == CLAIM_MAIL_MAX:
        count = db.all("SELECT count(*) FROM mail WHERE lid = ?", lid)[0][0]
    history_last = db.topic(history_topic(owner.conversation)).last
    return ClaimedLane(owner, attempt, mail, count, log_ms, principal, history_last)


def _wait_s(db: WriteConnection, operation: Claim, monotonic_ms: int, log_ms: int) -> float | None:
    """Return the time until a delayed lane is due or the lease of another worker that holds lanes expires."""
    waits = []
    for agent in operation.agents:
        row = db.one("SELECT min(due_ms) FROM lanes WHERE agent = ? AND due_ms IS NOT NULL", agent)
        if row is not None and row[0] is not None:
            waits.append(row[0] - log_ms)
    row = db.one(
        "SELECT min(deadline) FROM workers WHERE worker <> ?"
        " AND EXISTS (SELECT 1 FROM lanes WHERE worker = workers.worker)",
        operation.worker,
    )
    if row is not None and row[0] is not None:
        waits.append(row[0] - monotonic_ms)
    return max(0, min(waits)) / 1000 if waits else None


def renew(db: WriteConnection, operation: Renew) -> bool:
    deadline = db.clock.monotonic_ms() + round(operation.lease_s * 1000)
    sql = "UPDATE workers SET deadline = ?, boot = ? WHERE worker = ?"
    return db.execute(sql, (deadline, db.boot_id, operation.worker)).rowcount > 0


def leave(db: WriteConnection, operation: Leave) -> int:
    return _end_lease(db, operation.worker)


@dataclass(frozen=True, slots=True)
class EndProcess(Operation[int]):
    """End the leases of the workers of a process that has ended. Returns the number of lanes that they held."""

    name: str


def end_process(db: WriteConnection, operation: EndProcess) -> int:
    ended = db.all("SELECT worker FROM worker_processes WHERE process = ?", operation.name)
    return sum(_end_lease(db, worker) for (worker,) in ended)
