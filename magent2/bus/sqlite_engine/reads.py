"""Read operations. Each runs in a read transaction of its own, or inside the write transaction of a claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from magent2.bus.operations import (
    OLDEST,
    Describe,
    Find,
    GetBlob,
    Info,
    Lanes,
    Pending,
    Read,
    Topics,
    Workers,
)
from magent2.bus.records import (
    LaneInfo,
    LogInfo,
    Owner,
    Page,
    Record,
    TopicInfo,
    TopicList,
    WorkerInfo,
    assigned_seq,
    decode_object,
)
from magent2.bus.sqlite_engine.connection import SEQ_BITS, SEQ_MASK, ReadConnection, SqlRow, rid_of
from magent2.errors import BlobMissing, Fenced, MalformedRecord, UnknownCursor
from magent2.models.address import chat_topic, control_topic, kind_prefix

COLUMNS = "rid, id, at_ms, headers, draft, closes, blobs, payload"
_AFTER = f"SELECT {COLUMNS} FROM records WHERE rid > ? AND rid <= ? ORDER BY rid LIMIT ?"  # noqa: S608
_BEFORE = f"SELECT {COLUMNS} FROM records WHERE rid > ? AND rid < ? ORDER BY rid DESC LIMIT ?"  # noqa: S608
_BY_RID = f"SELECT {COLUMNS} FROM records WHERE rid = ?"  # noqa: S608
# The first mail of a lane with its records. Each inbox is looked up once, and only if the lane has mail of it.
_MAIL = (
    f"SELECT chat, seq, {COLUMNS} FROM mail LEFT JOIN records ON rid = iif(chat,"  # noqa: S608
    f" (SELECT tid FROM topics WHERE name = ?1), (SELECT tid FROM topics WHERE name = ?2)) << {SEQ_BITS} | seq"
    " WHERE lid = ?3 ORDER BY chat, seq LIMIT ?4"
)

# The kinds of all listed topics. Each step looks up the next kind in the index; DISTINCT would read the whole index.
_KINDS = (
    "WITH RECURSIVE kinds (kind) AS (SELECT min(kind) FROM topics WHERE deleted = 0 UNION ALL"
    " SELECT (SELECT min(kind) FROM topics WHERE deleted = 0 AND kind > kinds.kind) FROM kinds"
    " WHERE kinds.kind IS NOT NULL) SELECT kind FROM kinds WHERE kind IS NOT NULL"
)
_AFTER_ALL_NAMES = "\U0010ffff"  # sorts after every character of a name: names are printable, and this one is not

# Lanes of an agent that can have mail, each state by its index: idle lanes are far more and have none.
_LANES = (
    "SELECT conversation, (SELECT count(*) FROM mail WHERE mail.lid = lanes.lid), attempt, worker, due_ms, parked"
    " FROM lanes WHERE lid IN ("
    "SELECT lid FROM lanes WHERE agent = ?1 AND ready IS NOT NULL"
    " UNION ALL SELECT lid FROM lanes WHERE agent = ?1 AND due_ms IS NOT NULL"
    " UNION ALL SELECT lid FROM lanes WHERE agent = ?1 AND parked = 1"
    " UNION ALL SELECT lid FROM lanes WHERE +agent = ?1 AND worker IS NOT NULL"
    ") AND EXISTS (SELECT 1 FROM mail WHERE mail.lid = lanes.lid) ORDER BY since_ms, lid LIMIT ?2"
)


def decode(topic: str, row: Sequence[Any]) -> Record:
    """Decode a stored row; raises `ValueError` for a row that was not written by this engine."""
    rid, record_id, at_ms, headers, draft, closes, blobs, payload = row
    seq = rid & SEQ_MASK
    return Record(
        topic,
        {} if payload is None else decode_object(payload),
        record_id,
        seq,
        at_ms,
        decode_object(headers) if headers else None,
        draft or None,
        closes or None,
        tuple(blobs.split(",")) if blobs else (),
        payload is None,
        size_bytes=0 if payload is None else len(payload),
    )


def read(db: ReadConnection, operation: Read) -> Page:
    row = db.one("SELECT tid, last, floor, deleted FROM topics WHERE name = ?", operation.topic)
    tid, last, floor, deleted = row or (0, 0, 0, 0)
    if deleted:  # before the cursor is checked: a follower with an old cursor has to learn that the topic is gone
        return Page((), last, floor, True)
    rows = _rows(db, operation, tid, last, floor)
    return Page(_decode_until_malformed(operation.topic, rows), last, floor, False)


def _rows(db: ReadConnection, operation: Read, tid: int, last: int, floor: int) -> list[SqlRow]:
    base = rid_of(tid, 0)
    if operation.after is None:
        before = last + 1 if operation.before is None else min(operation.before, last + 1)
        rows = db.all(_BEFORE, base, base + before, operation.limit)
        rows.reverse()
        return rows
    cursor = _cursor(db, operation, tid, floor)
    if not floor <= cursor <= last:
        raise UnknownCursor(
            f"{operation.topic!r} has records {floor + 1} to {last}, nothing at cursor {operation.after!r};"
            f" start over with after=OLDEST"
        )
    return db.all(_AFTER, base + cursor, base + last, operation.limit)


def _cursor(db: ReadConnection, operation: Read, tid: int, floor: int) -> int:
    after = operation.after
    if isinstance(after, int):
        return floor if after == OLDEST else after
    seq = assigned_seq(after or "")
    if seq is not None:
        return seq
    known = db.resolve_id(tid, after or "")
    if known is None or db.one("SELECT 1 FROM records WHERE rid = ?", rid_of(tid, known.seq)) is None:
        raise UnknownCursor(f"{operation.topic!r} has no record with id {after!r}; start over with after=OLDEST")
    return known.seq


def _decode_until_malformed(topic: str, rows: Iterable[SqlRow]) -> tuple[Record, ...]:
    records: list[Record] = []
    for row in rows:
        try:
            records.append(decode(topic, row))
        except (ValueError, TypeError, AttributeError) as error:
            if records:
                break
            raise MalformedRecord(topic, row[0] & SEQ_MASK, str(error)) from error
    return tuple(records)


def find(db: ReadConnection, operation: Find) -> Record | None:
    row = db.one("SELECT tid, last FROM topics WHERE name = ?", operation.topic)
    if row is None:
        return None
    tid, last = row
    seq = assigned_seq(operation.id)
    if seq is None:
        known = db.resolve_id(tid, operation.id)
        seq = known.seq if known else 0
    found = db.one(_BY_RID, rid_of(tid, seq)) if 0 < seq <= last else None
    return None if found is None else _decode_until_malformed(operation.topic, [found])[0]


def describe(db: ReadConnection, operation: Describe) -> tuple[TopicInfo, ...]:
    sql = "SELECT last, floor, deleted, head, active_ms FROM topics WHERE name = ?"
    found = []
    for topic in operation.topics:
        row = db.one(sql, topic)
        found.append(_topic_info(topic, *row) if row else TopicInfo(topic))
    return tuple(found)


def _topic_info(topic: str, last: int, floor: int, deleted: int, head: str, active_ms: int) -> TopicInfo:
    return TopicInfo(topic, last, floor, bool(deleted), decode_object(head), active_ms)


def topics(db: ReadConnection, operation: Topics) -> TopicList:
    """List topics at a cost that depends on the page, not on the number of topics.

    A kind is read from its index, which has the order of the list. Topics below a longer prefix are found by name and
    sorted: the cost is the number of topics with that prefix. A prefix without a colon takes a page of every kind.
    """
    prefix = operation.prefix
    if ":" in prefix:
        whole_kind = kind_prefix(prefix) == prefix
        rows = _topic_rows(db, operation, "kind = ?", prefix) if whole_kind else _rows_by_name(db, operation)
    else:
        rows = _topic_rows(db, operation, "kind = '' AND substr(name, 1, length(?)) = ?", prefix, prefix)
        for (kind,) in db.all(_KINDS):
            if kind and kind.startswith(prefix):
                rows += _topic_rows(db, operation, "kind = ?", kind)
        rows.sort(key=lambda row: (row[5], row[0]), reverse=True)
    found = tuple(_topic_info(*row) for row in rows[: operation.limit])
    more = len(rows) > operation.limit
    return TopicList(found, (found[-1].active_ms, found[-1].topic) if more else None)


def _rows_by_name(db: ReadConnection, operation: Topics) -> list[SqlRow]:
    return _topic_rows(db, operation, "name >= ? AND name < ?", operation.prefix, operation.prefix + _AFTER_ALL_NAMES)


def _topic_rows(db: ReadConnection, operation: Topics, wanted: str, *values: object) -> list[SqlRow]:
    """Return the rows of one page and one more, which tells whether there is a next page."""
    if operation.owner is not None:
        wanted += " AND owner = ?"
        values += (operation.owner,)
    if operation.before is not None:
        wanted += " AND (active_ms, name) < (?, ?)"
        values += operation.before
    sql = (
        "SELECT name, last, floor, deleted, head, active_ms FROM topics"  # noqa: S608 - only constants of this module
        f" WHERE deleted = 0 AND {wanted} ORDER BY active_ms DESC, name DESC LIMIT ?"
    )
    return db.all(sql, *values, operation.limit + 1)


# --- lanes ---


def mail_of(db: ReadConnection, agent: str, lid: int, limit: int) -> tuple[Record, ...]:
    """Return the first mail of a lane, malformed records included: a worker has to move them to the dead letters."""
    chat_inbox, control_inbox = chat_topic(agent), control_topic(agent)
    rows = db.all(_MAIL, chat_inbox, control_inbox, lid, limit)
    return tuple(_mail_record(chat_inbox if chat else control_inbox, seq, row) for chat, seq, *row in rows)


def _mail_record(topic: str, seq: int, row: Sequence[Any]) -> Record:
    rid, record_id, at_ms, *_ = row
    if rid is None:
        return Record(topic, {}, seq=seq, malformed="the record is not in the log")
    try:
        return decode(topic, row)
    except (ValueError, TypeError, AttributeError) as error:
        return Record(topic, {}, record_id, seq, at_ms, malformed=str(error))


def fenced(owner: Owner) -> Fenced:
    return Fenced(
        f"the lane of {owner.agent!r} in {owner.conversation!r} is not held under {owner.token!r} any more;"
        " stop this run"
    )


def pending(db: ReadConnection, operation: Pending) -> tuple[Record, ...]:
    owner = operation.owner
    row = db.one("SELECT lid, owner FROM lanes WHERE conversation = ? AND agent = ?", owner.conversation, owner.agent)
    if row is None or row[1] != owner.token:
        raise fenced(owner)
    return mail_of(db, owner.agent, row[0], operation.limit)


def lanes(db: ReadConnection, operation: Lanes) -> tuple[LaneInfo, ...]:
    rows = db.all(_LANES, operation.agent, operation.limit)
    log_ms = db.log_ms()
    return tuple(_lane_info(operation.agent, row, log_ms) for row in rows)


def _lane_info(agent: str, row: SqlRow, log_ms: int) -> LaneInfo:
    conversation, count, attempt, worker, due_ms, parked = row
    if worker is not None:
        return LaneInfo(agent, conversation, count, attempt, "held", worker)
    if parked:
        return LaneInfo(agent, conversation, count, attempt, "parked")
    if due_ms is not None:
        return LaneInfo(agent, conversation, count, attempt, "later", None, max(0.0, (due_ms - log_ms) / 1000))
    return LaneInfo(agent, conversation, count, attempt, "ready")


def workers(db: ReadConnection, _operation: Workers) -> tuple[WorkerInfo, ...]:
    rows = db.all(
        "SELECT worker, agents, deadline, boot, (SELECT count(*) FROM lanes WHERE lanes.worker = workers.worker)"
        " FROM workers ORDER BY worker"
    )
    now_ms = db.clock.monotonic_ms()
    return tuple(
        WorkerInfo(
            worker, tuple(orjson.loads(agents)), (deadline - now_ms) / 1000 if boot == db.boot_id else -1.0, held
        )
        for worker, agents, deadline, boot, held in rows
    )


# --- blobs and the log ---


def get_blob(db: ReadConnection, operation: GetBlob) -> bytes:
    row = db.one("SELECT data FROM blobs WHERE name = ?", operation.name)
    if row is None:
        raise BlobMissing(
            f"there is no blob {operation.name}; it was never put, or it was swept because no record named it"
        )
    data: bytes = row[0]
    return data


def info(db: ReadConnection, _operation: Info) -> LogInfo:
    facts: dict[str, str] = dict(db.all("SELECT key, value FROM meta"))
    return LogInfo("", int(facts["schema"]), facts["log_id"], facts["release"])
