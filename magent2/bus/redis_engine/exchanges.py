"""Exchanges: which commands each operation sends to Redis, and what it makes of the replies.

An exchange is a generator that does no I/O: `execute.py` runs it on a blocking or on the pipelined connection.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

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
    Expire,
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
    Scrub,
    Settle,
    SweepBlobs,
    Topics,
    Trim,
    Workers,
    Write,
)
from magent2.bus.records import (
    AppendResult,
    ClaimedLane,
    ClaimResult,
    CompactResult,
    LaneInfo,
    Owner,
    Page,
    Record,
    TopicInfo,
    TopicList,
    TrimResult,
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
from magent2.bus.scrub import ScrubState
from magent2.errors import BlobMissing, MalformedRecord, StorageFull

ERASE_PAGE = 100  # records that one call of `erase` or `erase_copies` empties
SCRUB_PAGE = 100  # entries that one call of `scrub` copies
RETENTION_PAGE = 256  # records that one call of `trim` or `compact` looks at


class ObservedClock:
    """The log clock as this process last saw it, carried forward by the monotonic clock of this machine.

    The server has no clock that setting the time does not change. Its callers have one, and tell it what they expect.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._ahead_ms: int | None = None  # log clock minus monotonic clock

    def expected_ms(self) -> int | str:
        """The log clock now; empty before the first claim."""
        return "" if self._ahead_ms is None else self._ahead_ms + round(self._monotonic_s() * 1000)

    def note(self, log_ms: int) -> None:
        self._ahead_ms = log_ms - round(self._monotonic_s() * 1000)


@dataclass(slots=True)
class ObservedEpoch:
    """The epoch of the log as this process last saw it (decision 54).

    `text` travels with every function call, and a function that writes refuses any other epoch than that of the log.
    It is empty while a new connection could not check the epoch, so that the next write does.
    """

    text: str = ""
    known: str = ""  # the last one that was not empty
    seen: tuple[str, int] = ("", 0)  # topic and seq of an acknowledged record in it, the latest one

    def note(self, text: str) -> None:
        self.text = self.known = text

    def forget(self) -> None:
        self.text = ""


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys of one log on a server, the functions that work on them, and the log's limits, clock and epoch."""

    prefix: str
    payload_max_bytes: int
    library: FunctionLibrary = field(default_factory=current_library)
    clock: ObservedClock = field(default_factory=ObservedClock)
    epoch: ObservedEpoch = field(default_factory=ObservedEpoch)
    by_sentinel: bool = False  # the server was found by Sentinels

    def fcall(self, function: str, *arguments: Argument) -> Command:
        """The command that calls a function on this log; FCALL_RO also works on replicas and full servers."""
        verb = "FCALL_RO" if function in READ_ONLY else "FCALL"
        return (verb, f"{self.library.name}_{function}", 0, self.prefix, self.epoch.text, *arguments)

    def with_current_epoch(self, command: Command) -> Command:
        """The same command with the epoch that is known now."""
        if command[0] not in ("FCALL", "FCALL_RO"):
            return command
        return (*command[:4], self.epoch.text, *command[5:])


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
    return _appended(keyspace, op, reply)


def _appended(keyspace: Keyspace, op: Write, reply: Reply) -> AppendResult:
    result = decode_append_result(reply)
    if result.seqs and op.records:
        keyspace.epoch.seen = op.records[0].topic, result.seqs[0]
    return result


def owned_append(keyspace: Keyspace, op: OwnedAppend) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    reply = yield keyspace.fcall("owned_append", *owner_arguments(op.owner), op.n, *mail_members(op.mail), *written)
    return _appended(keyspace, op, reply)


def settle(keyspace: Keyspace, op: Settle) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    reply = yield keyspace.fcall("settle", *owner_arguments(op.owner), *mail_members(op.mail), *written)
    return _appended(keyspace, op, reply)


def later(keyspace: Keyspace, op: Later) -> Exchange[AppendResult]:
    written = write_arguments(op, keyspace.payload_max_bytes)
    delay: Argument = "parked" if op.delay_s is None else _ms(op.delay_s)
    return decode_append_result(
        (
            yield keyspace.fcall(
                "later", *owner_arguments(op.owner), delay, int(op.refund), keyspace.clock.expected_ms(), *written
            )
        )
    )


def _ms(seconds: float) -> int:
    """Milliseconds, rounded up: a short time must not become zero."""
    return -int(-seconds * 1000 // 1)


# --- lanes -------------------------------------------------------------------------------------------------------


def claim(keyspace: Keyspace, op: Claim) -> Exchange[ClaimResult]:
    agents = list(dict.fromkeys(op.agents))
    request = op.worker, op.nonce, _ms(op.lease_s), op.limit, CLAIM_MAIL_MAX, keyspace.clock.expected_ms()
    # Principals are JSON texts there, as in heads.
    slots = [part for name, count in op.slots.items() for part in (canonical(name) if name else "", count)]
    arguments = *request, repr(op.share), len(op.slots), *slots, len(agents), *agents
    more, wait_ms, lanes, now, over_share = yield keyspace.fcall("claim", *arguments)
    clock_ms = int(now)
    keyspace.clock.note(clock_ms)
    claimed: list[ClaimedLane] = []
    for agent, conversation, token, attempt, pending, mail, principal, history_last in lanes:
        owner = Owner(op.worker, agent.decode(), conversation.decode(), token.decode())
        name = str(orjson.loads(principal)) if principal else ""
        claimed.append(ClaimedLane(owner, attempt, decode_mail(mail), pending, clock_ms, name, history_last))
    return ClaimResult(tuple(claimed), bool(more), None if wait_ms < 0 else wait_ms / 1000, bool(over_share))


def renew(keyspace: Keyspace, op: Renew) -> Exchange[bool]:
    return bool((yield keyspace.fcall("renew", op.worker, _ms(op.lease_s), keyspace.clock.expected_ms())))


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


def trim(keyspace: Keyspace, op: Trim) -> Exchange[TrimResult]:
    if op.through is not None:
        by, amount = "through", op.through
    else:
        by, amount = ("keep", op.keep) if op.keep is not None else ("age", _ms(op.max_age_s or 0))
    floor, dropped, more = 0, 0, True
    while more and dropped < op.limit:
        page = min(RETENTION_PAGE, op.limit - dropped)
        floor, count, more = yield keyspace.fcall("trim", op.topic, by, int(amount), page)
        dropped += count
    return TrimResult(int(floor), dropped, bool(more))


def compact(keyspace: Keyspace, op: Compact) -> Exchange[CompactResult]:
    """Drop closed drafts. The server has an index of these, so a step looks at no others and needs no position."""
    dropped, calls, more = 0, 0, True
    while more and dropped + calls < op.limit:  # a call may find nothing to drop: its records can be erased or trimmed
        page = min(RETENTION_PAGE, op.limit - dropped)
        count, more = yield keyspace.fcall("compact", op.topic, _ms(op.min_age_s), page)
        dropped, calls = dropped + count, calls + 1
    if not more and (yield ("SISMEMBER", f"{keyspace.prefix}:stale", op.topic)):
        with suppress(StorageFull):  # the topic stays marked; a later compaction copies it
            yield from _scrub_topic(keyspace, op.topic, uuid.uuid4().hex, leased=False)
    return CompactResult(dropped, op.after if more else None)


def erase(keyspace: Keyspace, op: Erase) -> Exchange[int]:
    found, seqs = 0, tuple(dict.fromkeys(op.seqs))
    for start in range(0, len(seqs), ERASE_PAGE):
        found += yield keyspace.fcall("erase", op.topic, int(op.forget), *seqs[start : start + ERASE_PAGE])
    return found


def delete(keyspace: Keyspace, op: Delete) -> Exchange[None]:
    """Delete topics and lanes in one call, then erase the copies of the conversation page by page."""
    yield keyspace.fcall("delete", len(op.topics), *op.topics, op.conversation or "")
    if op.conversation is not None:
        yield from _erase_copies(keyspace, op.conversation)


def _erase_copies(keyspace: Keyspace, conversation: str | bytes) -> Exchange[None]:
    more = True
    while more:
        more = yield keyspace.fcall("erase_copies", conversation, ERASE_PAGE)


def scrub(keyspace: Keyspace, _: Scrub) -> Exchange[bool]:
    """Remove erased content from the server's memory, topic by topic. A later call completes an interrupted one."""
    token = uuid.uuid4().hex
    requests = yield keyspace.fcall("scrub_begin", token)
    if requests < 1:
        return bool(requests == 0)
    for conversation in (yield ("SMEMBERS", f"{keyspace.prefix}:erasing")):
        yield from _erase_copies(keyspace, conversation)
    for topic in (yield ("SMEMBERS", f"{keyspace.prefix}:stale")):
        if not (yield from _scrub_topic(keyspace, topic, token, leased=True)):
            return False  # another process has taken over
    return bool((yield keyspace.fcall("scrub_end", token, requests)))


def _scrub_topic(keyspace: Keyspace, topic: Argument, token: str, *, leased: bool) -> Exchange[bool]:
    """Copy the entries of a topic that are left into a new stream, page by page, and replace the old stream with it.

    `leased`: this is part of a scrub of the whole log. Returns False if another process has taken that over.
    """
    cursor: bytes | None = b"0"
    while cursor:
        cursor = yield keyspace.fcall("scrub", topic, token, cursor, SCRUB_PAGE, int(leased))
    return cursor is not None


def scrub_wait(keyspace: Keyspace) -> Exchange[float | None]:
    """Return the seconds until a scrub is due; `None` if none is needed."""
    now_ms, *state = yield keyspace.fcall("scrub_state")
    return ScrubState(*state).wait_s(now_ms)


def expire(keyspace: Keyspace, op: Expire) -> Exchange[bool]:
    topics = op.topics
    idle = yield keyspace.fcall("expire", _ms(op.idle_s), int(op.dry_run), len(topics), *topics, op.conversation)
    if idle and not op.dry_run:
        yield from _erase_copies(keyspace, op.conversation)
    return bool(idle)


def put_blob(keyspace: Keyspace, op: PutBlob) -> Exchange[str]:
    yield keyspace.fcall("put_blob", op.name, op.data)
    return op.name


def get_blob(keyspace: Keyspace, op: GetBlob) -> Exchange[bytes]:
    data: bytes | None = yield ("HGET", f"{keyspace.prefix}:b:{op.name}", "d")
    if data is None:
        raise BlobMissing(f"unknown blob {op.name}; put it first")
    return data


def sweep_blobs(keyspace: Keyspace, op: SweepBlobs) -> Exchange[int]:
    return int((yield keyspace.fcall("sweep_blobs", _ms(op.min_age_s), op.limit, int(op.dry_run))))


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
    Expire: expire,
    Scrub: scrub,
    PutBlob: put_blob,
    GetBlob: get_blob,
    SweepBlobs: sweep_blobs,
}
