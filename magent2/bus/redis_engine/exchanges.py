"""Exchanges: which commands each operation sends to Redis, and what it makes of the replies.

An exchange is a generator that does no I/O: `execute.py` runs it on a blocking or on the pipelined connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from magent2.bus.operations import (
    CLAIM_MAIL_MAX,
    OLDEST,
    AnyOperation,
    Append,
    Claim,
    Compact,
    Delete,
    Describe,
    Erase,
    Find,
    GetBlob,
    Lanes,
    Later,
    Leave,
    OwnedAppend,
    Pending,
    PutBlob,
    Read,
    Renew,
    Settle,
    SweepBlobs,
    Topics,
    Trim,
    Workers,
)
from magent2.bus.records import (
    AppendResult,
    ClaimedLane,
    ClaimResult,
    LaneInfo,
    Owner,
    Page,
    Record,
    TopicInfo,
    TopicList,
    WorkerInfo,
    assigned_seq,
    canonical,
)
from magent2.bus.redis_engine.codec import (
    check_reply,
    check_size,
    decode_append_result,
    decode_erased,
    decode_mail,
    decode_record,
    decode_topic,
    entry_seq,
    is_plain,
    lane_field,
    mail_members,
    owner_arguments,
    write_arguments,
)
from magent2.bus.redis_engine.functions import (
    READ_ONLY,
    Argument,
    Command,
    Exchange,
    FunctionLibrary,
    Reply,
    current_library,
)
from magent2.errors import BlobMissing, MalformedRecord

SCRUB_PAGE = 500  # entries that one call of `scrub` copies
RETENTION_PAGE = 256  # records that one call of `trim` or `compact` looks at
SWEEP_PAGE = 64  # blobs that one call of `sweep_blobs` drops


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys of one log on a server, the functions that work on them, and the log's limits."""

    prefix: str
    payload_max_bytes: int
    library: FunctionLibrary = field(default_factory=current_library)

    def fcall(self, function: str, *arguments: Argument) -> Command:
        """The command that calls a function on this log; FCALL_RO also works on replicas and full servers."""
        verb = "FCALL_RO" if function in READ_ONLY else "FCALL"
        return (verb, f"{self.library.name}_{function}", 0, self.prefix, *arguments)


AnyExchange: TypeAlias = Callable[[Keyspace, Any], Exchange[Any]]


# --- writing -----------------------------------------------------------------------------------------------------


def append(keyspace: Keyspace, op: Append) -> Exchange[AppendResult]:
    """Append records. A single plain record, as v1 `publish` and most messages are, takes a shorter function."""
    first = op.records[0]
    if len(op.records) == 1 and not op.conditions and not op.heads and is_plain(first):
        check_size(first, keyspace.payload_max_bytes)
        key = first.id or ""
        reply = yield keyspace.fcall("publish", first.topic, key, first.digest, lane_field(first), first.body)
    else:
        reply = yield keyspace.fcall("append", *write_arguments(op, keyspace.payload_max_bytes))
    return decode_append_result(reply)


def owned_append(keyspace: Keyspace, op: OwnedAppend) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    return decode_append_result(
        (yield keyspace.fcall("owned_append", *owner_arguments(op.owner), op.n, *mail_members(op.mail), *written))
    )


def settle(keyspace: Keyspace, op: Settle) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    return decode_append_result(
        (yield keyspace.fcall("settle", *owner_arguments(op.owner), *mail_members(op.mail), *written))
    )


def later(keyspace: Keyspace, op: Later) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    delay: Argument = "parked" if op.delay_s is None else _ms(op.delay_s)
    return decode_append_result(
        (yield keyspace.fcall("later", *owner_arguments(op.owner), delay, int(op.refund), *written))
    )


def _ms(seconds: float) -> int:
    """Milliseconds, rounded up: a short time must not become zero."""
    return -int(-seconds * 1000 // 1)


# --- lanes -------------------------------------------------------------------------------------------------------


def claim(keyspace: Keyspace, op: Claim) -> Exchange[ClaimResult]:
    agents = list(dict.fromkeys(op.agents))
    more, wait_ms, lanes = yield keyspace.fcall(
        "claim", op.worker, op.nonce, _ms(op.lease_s), op.limit, CLAIM_MAIL_MAX, len(agents), *agents
    )
    claimed: list[ClaimedLane] = []
    for agent, conversation, token, attempt, pending, mail in lanes:
        owner = Owner(op.worker, agent.decode(), conversation.decode(), token.decode())
        claimed.append(ClaimedLane(owner, attempt, decode_mail(mail), pending))
    return ClaimResult(tuple(claimed), bool(more), None if wait_ms < 0 else wait_ms / 1000)


def renew(keyspace: Keyspace, op: Renew) -> Exchange[bool]:
    return bool((yield keyspace.fcall("renew", op.worker, _ms(op.lease_s))))


def leave(keyspace: Keyspace, op: Leave) -> Exchange[int]:
    return int((yield keyspace.fcall("leave", op.worker)))


def pending(keyspace: Keyspace, op: Pending) -> Exchange[tuple[Record, ...]]:
    reply = yield keyspace.fcall("pending", *owner_arguments(op.owner), op.limit)
    return decode_mail(check_reply(reply)[1])


def lanes(keyspace: Keyspace, op: Lanes) -> Exchange[tuple[LaneInfo, ...]]:
    now, found = yield keyspace.fcall("lanes", op.agent, op.limit)
    return tuple(_lane_info(op.agent, int(now), *lane) for lane in found)


def _lane_info(
    agent: str, now_ms: int, conversation: bytes, count: int, attempt: bytes, state: bytes, worker: bytes, due: bytes
) -> LaneInfo:
    return LaneInfo(
        agent,
        conversation.decode(),
        count,
        int(attempt),
        state.decode(),
        worker.decode() or None,
        max(0.0, (float(due) - now_ms) / 1000) if due else None,
    )


def workers(keyspace: Keyspace, _: Workers) -> Exchange[tuple[WorkerInfo, ...]]:
    now, found = yield keyspace.fcall("workers")
    return tuple(
        WorkerInfo(worker.decode(), tuple(agents.decode().split("\n")), (float(deadline) - int(now)) / 1000, held)
        for worker, deadline, agents, held in found
    )


# --- reading -----------------------------------------------------------------------------------------------------


def read(keyspace: Keyspace, op: Read) -> Exchange[Page]:
    how, cursor = _cursor(op)
    reply = yield keyspace.fcall("read", op.topic, how, cursor, op.limit)
    _, last, floor, deleted, entries, erased = check_reply(reply)
    backwards = how in ("last", "before")
    return Page(_records(op.topic, op.limit, entries, erased, backwards), int(last), int(floor), bool(deleted))


def _cursor(op: Read) -> tuple[str, Argument]:
    if op.before is not None:
        return "before", op.before
    if op.after is None:
        return "last", 0
    if isinstance(op.after, str):
        seq = assigned_seq(op.after)
        return ("id", op.after) if seq is None else ("after", seq)
    return ("oldest", 0) if op.after == OLDEST else ("after", op.after)


def _records(topic: str, limit: int, entries: Reply, erased: Reply, backwards: bool) -> tuple[Record, ...]:
    """Merge entries and erased records into one page, in order of seq.

    The page ends before a malformed record; if that is the first one, `MalformedRecord` names it. A reader thus gets
    all records before it, and can skip or erase it.
    """
    found: list[tuple[int, list[bytes] | bytes]] = [
        (entry_seq(topic, entry_id), fields) for entry_id, fields in entries
    ]
    if erased:
        found += [(int(kept.partition(b"\n")[0]), kept) for kept in erased]
        found.sort(key=lambda item: item[0], reverse=backwards)
        del found[limit:]
    if backwards:
        found.reverse()
    records: list[Record] = []
    for seq, content in found:
        try:
            records.append(_record(topic, seq, content))
        except ValueError as error:
            if not records:
                raise MalformedRecord(topic, seq, str(error)) from error
            break
    return tuple(records)


def _record(topic: str, seq: int, content: list[bytes] | bytes) -> Record:
    return decode_erased(topic, content) if isinstance(content, bytes) else decode_record(topic, seq, content)


def find(keyspace: Keyspace, op: Find) -> Exchange[Record | None]:
    seq = assigned_seq(op.id)
    by, name = ("id", op.id) if seq is None else ("seq", str(seq))
    reply = yield keyspace.fcall("find", op.topic, by, name)
    if reply is None:
        return None
    found_seq, content = reply
    try:
        return _record(op.topic, int(found_seq), content)
    except ValueError as error:
        raise MalformedRecord(op.topic, int(found_seq), str(error)) from error


def describe(keyspace: Keyspace, op: Describe) -> Exchange[tuple[TopicInfo, ...]]:
    return tuple(map(decode_topic, (yield keyspace.fcall("describe", *op.topics))))


def topics(keyspace: Keyspace, op: Topics) -> Exchange[TopicList]:
    owner = "" if op.owner is None else canonical(op.owner)
    before: tuple[Argument, str] = ("", "") if op.before is None else op.before
    found: list[TopicInfo] = []
    while True:
        wanted = op.limit - len(found)
        page, edge_ms, edge_topic = yield keyspace.fcall("topics", op.prefix, owner, *before, wanted)
        found += map(decode_topic, page)
        if len(found) > op.limit:
            last = found[op.limit - 1]
            return TopicList(tuple(found[: op.limit]), (last.active_ms, last.topic))
        if not edge_ms:
            return TopicList(tuple(found), None)
        before = int(edge_ms), edge_topic.decode()


# --- retention ---------------------------------------------------------------------------------------------------


def trim(keyspace: Keyspace, op: Trim) -> Exchange[int]:
    if op.through is not None:
        by, amount = "through", op.through
    else:
        by, amount = ("keep", op.keep) if op.keep is not None else ("age", _ms(op.max_age_s or 0))
    more = True
    floor = 0
    while more:
        floor, more = yield keyspace.fcall("trim", op.topic, by, int(amount), RETENTION_PAGE)
    return int(floor)


def compact(keyspace: Keyspace, op: Compact) -> Exchange[int]:
    dropped, more = 0, True
    while more:
        count, more = yield keyspace.fcall("compact", op.topic, _ms(op.min_age_s), RETENTION_PAGE)
        dropped += count
    return dropped


def erase(keyspace: Keyspace, op: Erase) -> Exchange[int]:
    found = int((yield keyspace.fcall("erase", op.topic, int(op.forget), *dict.fromkeys(op.seqs))))
    yield from scrub(keyspace)
    return found


def delete(keyspace: Keyspace, op: Delete) -> Exchange[None]:
    yield keyspace.fcall("delete", len(op.topics), *op.topics, op.conversation or "")
    if op.conversation is not None:
        yield from scrub(keyspace)


def scrub(keyspace: Keyspace) -> Exchange[None]:
    """Remove erased content from the server's memory, topic by topic. A later call completes an interrupted one."""
    for topic in (yield ("SMEMBERS", f"{keyspace.prefix}:stale")):
        token = uuid.uuid4().hex
        cursor: bytes | None = b"0"
        while cursor is not None:
            cursor = yield keyspace.fcall("scrub", topic, token, cursor, SCRUB_PAGE)


def put_blob(keyspace: Keyspace, op: PutBlob) -> Exchange[str]:
    yield keyspace.fcall("put_blob", op.name, op.data)
    return op.name


def get_blob(keyspace: Keyspace, op: GetBlob) -> Exchange[bytes]:
    data: bytes | None = yield ("HGET", f"{keyspace.prefix}:b:{op.name}", "d")
    if data is None:
        raise BlobMissing(f"unknown blob {op.name}; put it first")
    return data


def sweep_blobs(keyspace: Keyspace, op: SweepBlobs) -> Exchange[int]:
    dropped, page = 0, SWEEP_PAGE
    while page == SWEEP_PAGE:
        page = yield keyspace.fcall("sweep_blobs", _ms(op.min_age_s), SWEEP_PAGE)
        dropped += page
    return dropped


EXCHANGES: dict[type[AnyOperation], AnyExchange] = {
    Append: append,
    OwnedAppend: owned_append,
    Settle: settle,
    Later: later,
    Claim: claim,
    Renew: renew,
    Leave: leave,
    Pending: pending,
    Lanes: lanes,
    Workers: workers,
    Read: read,
    Find: find,
    Describe: describe,
    Topics: topics,
    Trim: trim,
    Compact: compact,
    Erase: erase,
    Delete: delete,
    PutBlob: put_blob,
    GetBlob: get_blob,
    SweepBlobs: sweep_blobs,
}
