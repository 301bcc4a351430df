"""Lanes: the mail of one agent in one conversation, worked by one worker at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from magent2.bus.operations import CLAIM_MAIL_MAX, LEASE_MAX_S, Claim, Later, Leave, OwnedAppend, Renew, Settle, Write
from magent2.bus.records import AppendResult, ClaimedLane, ClaimResult, MailRef, Owner
from magent2.bus.sqlite_engine.append import check_sizes, put
from magent2.bus.sqlite_engine.reads import fenced, mail_of
from magent2.bus.sqlite_engine.sort import CONTROL, sort_inboxes
from magent2.bus.sqlite_engine.state import State, pack_seqs, unpack_seqs
from magent2.errors import CounterGap

LANE_MEMORY_S = 86_400  # how long a finished lane still knows its last owner
LANES_FORGOTTEN_MAX = 256  # per claim
LEASE_MAX_MS = int(LEASE_MAX_S * 1000)

_HAS_MAIL = "SELECT 1 FROM mail WHERE lid = ? LIMIT 1"
_HAS_CONTROL = f"SELECT 1 FROM mail WHERE lid = ? AND chat = {CONTROL} LIMIT 1"  # noqa: S608  a constant
_GIVE_UP = (
    "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = ?, ready = ?, due_ms = ?,"
    " parked = ?, done = ?, done_answer = ?, idle_ms = ? WHERE lid = ?"
)
_RETURN = "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, ready = ? WHERE lid = ?"
_REST = (
    "UPDATE lanes SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = 0, due_ms = NULL, idle_ms = ?"
    " WHERE lid = ?"
)
_TAKE = (
    "UPDATE lanes SET owner = ?, worker = ?, nonce = ?, attempt = attempt + 1, n = 0, answer = NULL,"
    " ready = NULL WHERE lid = ? RETURNING conversation, attempt"
)


@dataclass(frozen=True, slots=True)
class Lane:
    lid: int
    owner: str | None
    n: int
    answer: str | None
    attempt: int
    done: str | None
    done_answer: str | None


def _lane(state: State, owner: Owner) -> Lane | None:
    row = state.one(
        "SELECT lid, owner, n, answer, attempt, done, done_answer FROM lanes WHERE conversation = ? AND agent = ?",
        owner.conversation,
        owner.agent,
    )
    return None if row is None else Lane(*row)


# --- what an owner does ---


def owned_append(state: State, operation: OwnedAppend) -> AppendResult:
    check_sizes(state, operation)
    lane = _lane(state, operation.owner)
    if lane is None or lane.owner != operation.owner.token:
        raise fenced(operation.owner)
    if operation.n <= lane.n:
        return AppendResult(unpack_seqs(lane.answer) if operation.n == lane.n else (), repeat=True)
    if operation.n > lane.n + 1:
        raise CounterGap(f"append {operation.n} comes after {lane.n}; run the appends in between first")
    seqs = put(state, operation)
    _remove_mail(state, lane, operation.mail)
    sql = "UPDATE lanes SET n = ?, answer = ? WHERE lid = ?"
    state.connection.execute(sql, (operation.n, pack_seqs(seqs), lane.lid))
    return AppendResult(seqs)


def settle(state: State, operation: Settle) -> AppendResult:
    lane, repeat = _finishing(state, operation, operation.owner)
    if repeat is not None:
        return repeat
    seqs = put(state, operation)
    _remove_mail(state, lane, operation.mail)
    if state.one(_HAS_MAIL, lane.lid) is None:
        _give_up(state, lane, seqs, idle_ms=state.now_ms)
    else:
        _give_up(state, lane, seqs, ready=state.back())
        state.wake(operation.owner.agent)
    return AppendResult(seqs)


def later(state: State, operation: Later) -> AppendResult:
    lane, repeat = _finishing(state, operation, operation.owner)
    if repeat is not None:
        return repeat
    seqs = put(state, operation)
    attempt = max(0, lane.attempt - 1) if operation.refund else lane.attempt
    if state.one(_HAS_CONTROL, lane.lid) is not None:  # it may have come while the lane was held: no sleep now
        _give_up(state, lane, seqs, attempt=attempt, ready=state.front())
        state.wake(operation.owner.agent)
    elif operation.delay_s is None:
        _give_up(state, lane, seqs, attempt=attempt, parked=True)
    elif operation.delay_s > 0:
        due_ms = state.now_ms + max(1, round(operation.delay_s * 1000))
        _give_up(state, lane, seqs, attempt=attempt, due_ms=due_ms)
    elif state.one(_HAS_MAIL, lane.lid) is None:
        _give_up(state, lane, seqs, idle_ms=state.now_ms)
    else:
        _give_up(state, lane, seqs, attempt=attempt, ready=state.front())
        state.wake(operation.owner.agent)
    return AppendResult(seqs)


def _finishing(state: State, operation: Write, owner: Owner) -> tuple[Lane, AppendResult | None]:
    """The lane that its owner gives up, or the answer if it has done so before."""
    check_sizes(state, operation)
    lane = _lane(state, owner)
    if lane is not None and lane.owner == owner.token:
        return lane, None
    if lane is not None and lane.done == owner.token:
        return lane, AppendResult(unpack_seqs(lane.done_answer), repeat=True)
    raise fenced(owner)


def _give_up(
    state: State,
    lane: Lane,
    seqs: tuple[int, ...],
    *,
    attempt: int = 0,
    ready: int | None = None,
    due_ms: int | None = None,
    parked: bool = False,
    idle_ms: int | None = None,
) -> None:
    values = (attempt, ready, due_ms, parked, lane.owner, pack_seqs(seqs), idle_ms, lane.lid)
    state.connection.execute(_GIVE_UP, values)


def _remove_mail(state: State, lane: Lane, mail: Iterable[MailRef]) -> None:
    rows = [(lane.lid, ref.topic.startswith("chat:"), ref.seq) for ref in mail]
    if rows:
        state.connection.executemany("DELETE FROM mail WHERE lid = ? AND chat = ? AND seq = ?", rows)


# --- what a worker does ---


def claim(state: State, operation: Claim) -> ClaimResult:
    state.flush()
    steady_ms = state.clock.monotonic_ms()
    repeat = _take_lease(state, operation, steady_ms)
    _return_expired(state, steady_ms)
    _forget_idle(state)
    _ready_due(state, operation.agents)
    more = sort_inboxes(state, operation.agents)
    lanes = _held(state, operation) if repeat else _take(state, operation)
    return ClaimResult(lanes, more, _wait_s(state, operation, steady_ms))


def _take_lease(state: State, operation: Claim, steady_ms: int) -> bool:
    """Renew the lease; whether this very claim was run before."""
    row = state.one("SELECT nonce FROM workers WHERE worker = ?", operation.worker)
    deadline = steady_ms + round(operation.lease_s * 1000)
    agents = orjson.dumps(operation.agents).decode()
    state.connection.execute(
        "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)",
        (operation.worker, agents, deadline, state.boot, operation.nonce),
    )
    return row is not None and row[0] == operation.nonce


def _return_expired(state: State, steady_ms: int) -> None:
    """A deadline further off than any lease was written before the machine started anew."""
    expired = state.all(
        "SELECT worker FROM workers WHERE deadline <= ? OR deadline > ? OR boot <> ?",
        steady_ms,
        steady_ms + LEASE_MAX_MS,
        state.boot,
    )
    for (worker,) in expired:
        _dismiss(state, worker)


def _dismiss(state: State, worker: str) -> int:
    """End a worker's lease: its lanes go to the front, in the order they were opened."""
    held = state.all("SELECT lid, agent FROM lanes WHERE worker = ? ORDER BY lid DESC", worker)
    for lid, agent in held:
        if state.one(_HAS_MAIL, lid) is None:
            state.connection.execute(_REST, (state.now_ms, lid))
        else:
            state.connection.execute(_RETURN, (state.front(), lid))
            state.wake(agent)
    state.connection.execute("DELETE FROM workers WHERE worker = ?", (worker,))
    return len(held)


def _forget_idle(state: State) -> None:
    state.connection.execute(
        "DELETE FROM lanes WHERE lid IN (SELECT lid FROM lanes WHERE idle_ms < ? LIMIT ?)",
        (state.now_ms - LANE_MEMORY_S * 1000, LANES_FORGOTTEN_MAX),
    )


def _ready_due(state: State, agents: Iterable[str]) -> None:
    for agent in agents:
        due = state.all("SELECT lid FROM lanes WHERE agent = ? AND due_ms <= ? ORDER BY due_ms", agent, state.now_ms)
        for (lid,) in due:
            if state.one(_HAS_MAIL, lid) is None:
                state.connection.execute(_REST, (state.now_ms, lid))
            else:
                sql = "UPDATE lanes SET due_ms = NULL, ready = ? WHERE lid = ?"
                state.connection.execute(sql, (state.back(), lid))


def _take(state: State, operation: Claim) -> tuple[ClaimedLane, ...]:
    ready: list[tuple[int, int, str]] = []
    for agent in dict.fromkeys(operation.agents) if operation.limit else ():
        rows = state.all(
            "SELECT ready, lid FROM lanes WHERE agent = ? AND ready IS NOT NULL ORDER BY ready LIMIT ?",
            agent,
            operation.limit,
        )
        ready += [(order, lid, agent) for order, lid in rows]
    ready.sort()
    return tuple(_hand_out(state, operation, lid, agent) for _, lid, agent in ready[: operation.limit])


def _hand_out(state: State, operation: Claim, lid: int, agent: str) -> ClaimedLane:
    token = f"{operation.worker}/{operation.nonce}/{state.epoch()}"
    conversation, attempt = state.all(_TAKE, token, operation.worker, operation.nonce, lid)[0]
    return _claimed(state, Owner(operation.worker, agent, conversation, token), lid, attempt)


def _held(state: State, operation: Claim) -> tuple[ClaimedLane, ...]:
    rows = state.all(
        "SELECT lid, agent, conversation, owner, attempt FROM lanes WHERE worker = ? AND nonce = ? ORDER BY lid",
        operation.worker,
        operation.nonce,
    )
    return tuple(
        _claimed(state, Owner(operation.worker, agent, conversation, token), lid, attempt)
        for lid, agent, conversation, token, attempt in rows
    )


def _claimed(state: State, owner: Owner, lid: int, attempt: int) -> ClaimedLane:
    mail = mail_of(state, owner.agent, lid, CLAIM_MAIL_MAX)
    count = len(mail)
    if count == CLAIM_MAIL_MAX:
        count = state.all("SELECT count(*) FROM mail WHERE lid = ?", lid)[0][0]
    return ClaimedLane(owner, attempt, mail, count)


def _wait_s(state: State, operation: Claim, steady_ms: int) -> float | None:
    """Until a delayed lane is due, or another worker's lease runs out under lanes that it holds."""
    waits = []
    for agent in operation.agents:
        row = state.one("SELECT min(due_ms) FROM lanes WHERE agent = ? AND due_ms IS NOT NULL", agent)
        if row is not None and row[0] is not None:
            waits.append(row[0] - state.now_ms)
    row = state.one(
        "SELECT min(deadline) FROM workers WHERE worker <> ?"
        " AND EXISTS (SELECT 1 FROM lanes WHERE worker = workers.worker)",
        operation.worker,
    )
    if row is not None and row[0] is not None:
        waits.append(row[0] - steady_ms)
    return max(0, min(waits)) / 1000 if waits else None


def renew(state: State, operation: Renew) -> bool:
    deadline = state.clock.monotonic_ms() + round(operation.lease_s * 1000)
    sql = "UPDATE workers SET deadline = ?, boot = ? WHERE worker = ?"
    return state.connection.execute(sql, (deadline, state.boot, operation.worker)).rowcount > 0


def leave(state: State, operation: Leave) -> int:
    return _dismiss(state, operation.worker)
