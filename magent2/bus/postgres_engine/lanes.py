"""Claims, leases, and what operators see of lanes and workers."""

from __future__ import annotations

import time
from typing import Any

from magent2.bus.operations import Claim, Lanes, Leave, Pending, Renew, Workers
from magent2.bus.postgres_engine.clock import LogClock, rounded_up_ms
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import decode, rows
from magent2.bus.postgres_engine.writes import fenced
from magent2.bus.records import ClaimedLane, ClaimResult, LaneInfo, Owner, Record, WorkerInfo
from magent2.models.address import chat_topic, control_topic

_CLAIM = render(
    "SELECT * FROM claim$v(%s, %s::text[], %s::bigint, %s::bigint, %s, %s::bigint, %s::double precision, %s::text[],"
    " %s::bigint[])"
)
_RENEW = render("SELECT renew$v(%s, %s::bigint, %s::bigint)")
_LEAVE = render("SELECT * FROM leave$v(%s)")
_PENDING = render(
    "SELECT m.* FROM lanes l LEFT JOIN LATERAL lane_mail$v(ARRAY[l.lid], %s::bigint) AS m ON true"
    " WHERE l.conversation = %s AND l.agent = %s AND l.owner = %s"
)
# Lanes of an agent that can have mail, each state by its index: idle lanes are far more and have none.
_LANES = render(
    "SELECT l.conversation, (SELECT count(*) FROM mail m WHERE m.lid = l.lid), l.attempt, l.worker, l.due_ms, l.parked,"
    " peek_log_ms$v() FROM lanes l WHERE l.lid IN ("
    "SELECT lid FROM lanes WHERE agent = %(agent)s AND ready IS NOT NULL"
    " UNION ALL SELECT lid FROM lanes WHERE agent = %(agent)s AND due_ms IS NOT NULL"
    " UNION ALL SELECT lid FROM lanes WHERE agent = %(agent)s AND parked"
    " UNION ALL SELECT lid FROM lanes WHERE agent = %(agent)s AND worker IS NOT NULL"
    ") AND EXISTS (SELECT 1 FROM mail m WHERE m.lid = l.lid) ORDER BY l.since_ms, l.lid LIMIT %(limit)s"
)
_WORKERS = render(
    "SELECT w.worker, w.agents, w.deadline_ms - peek_log_ms$v(),"
    " (SELECT count(*) FROM lanes l WHERE l.worker = w.worker) FROM workers w ORDER BY w.worker"
)


def claim(connection: Connection, operation: Claim, clock: LogClock) -> tuple[ClaimResult, list[str]]:
    """Run a claim; return its result and the agents whose lanes became ready."""
    values = (
        operation.worker,
        list(dict.fromkeys(operation.agents)),
        operation.limit,
        rounded_up_ms(operation.lease_s),
        operation.nonce,
        clock.expected_ms(),
        float(operation.share),
        list(operation.slots),
        list(operation.slots.values()),
    )
    asked_s = time.monotonic()
    ((more, wait_ms, now_ms, over_share, woken, lanes, mail),) = rows(connection, _CLAIM, values)
    clock.note(now_ms, asked_s)
    records: list[list[Record]] = [[] for _ in lanes or ()]
    for place, *row in mail or ():
        records[place - 1].append(_mail_record(lanes[place - 1][0], row))
    claimed = tuple(
        ClaimedLane(
            Owner(operation.worker, agent, conversation, token),
            attempt,
            tuple(records[index]),
            pending_count,
            now_ms,
            principal,
            history_last,
        )
        for index, (agent, conversation, token, attempt, principal, pending_count, history_last) in enumerate(
            lanes or ()
        )
    )
    wait_s = None if wait_ms is None else max(0, wait_ms) / 1000
    return ClaimResult(claimed, more, wait_s, over_share), woken or []


def _mail_record(agent: str, row: list[Any]) -> Record:
    """Decode mail. Malformed mail is returned too: a worker has to move it to the dead letters."""
    chat, mail_seq, seq, record_id, at_ms, *_ = row
    topic = chat_topic(agent) if chat else control_topic(agent)
    if seq is None:
        return Record(topic, {}, seq=mail_seq, malformed="the record is not in the log")
    try:
        return decode(topic, row[2:])
    except (ValueError, TypeError, AttributeError) as error:
        return Record(topic, {}, record_id or "", seq, at_ms, malformed=str(error))


def renew(connection: Connection, operation: Renew, clock: LogClock) -> bool:
    ((renewed,),) = rows(connection, _RENEW, (operation.worker, rounded_up_ms(operation.lease_s), clock.expected_ms()))
    return bool(renewed)


def leave(connection: Connection, operation: Leave) -> tuple[int, list[str]]:
    ((held, woken),) = rows(connection, _LEAVE, (operation.worker,))
    return int(held), woken


def pending(connection: Connection, operation: Pending) -> tuple[Record, ...]:
    owner = operation.owner
    found = rows(connection, _PENDING, (operation.limit, owner.conversation, owner.agent, owner.token))
    if not found:
        raise fenced(owner)
    return tuple(_mail_record(owner.agent, row) for place, *row in found if place is not None)


def lanes(connection: Connection, operation: Lanes) -> tuple[LaneInfo, ...]:
    found = rows(connection, _LANES, {"agent": operation.agent, "limit": operation.limit})
    return tuple(_lane_info(operation.agent, *row) for row in found)


def _lane_info(
    agent: str,
    conversation: str,
    count: int,
    attempt: int,
    worker: str | None,
    due_ms: int | None,
    parked: bool,
    log_ms: int,
) -> LaneInfo:
    if worker is not None:
        return LaneInfo(agent, conversation, count, attempt, "held", worker)
    if parked:
        return LaneInfo(agent, conversation, count, attempt, "parked")
    if due_ms is not None:
        return LaneInfo(agent, conversation, count, attempt, "later", None, max(0.0, (due_ms - log_ms) / 1000))
    return LaneInfo(agent, conversation, count, attempt, "ready")


def workers(connection: Connection, _operation: Workers) -> tuple[WorkerInfo, ...]:
    return tuple(
        WorkerInfo(worker, tuple(agents), left_ms / 1000, held)
        for worker, agents, left_ms, held in rows(connection, _WORKERS)
    )
