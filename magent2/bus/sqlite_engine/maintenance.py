"""Maintenance of a log: retention, compaction, erasing, deleting, blobs."""

from __future__ import annotations

from magent2.bus.operations import Compact, Delete, Erase, PutBlob, SweepBlobs, Trim
from magent2.bus.sqlite_engine.connection import SEQ_MASK, TopicRow, WriteConnection, rid_of
from magent2.bus.sqlite_engine.lane_intake import CHAT, CONTROL, intake_cursors
from magent2.models.address import checked_topic

IDS_KEPT = 10_000  # ids per topic that are remembered after their records were dropped

_INBOXES = {"chat": CHAT, "control": CONTROL}
_ERASE = "UPDATE records SET payload = NULL, headers = '', blobs = '', copy = '' WHERE rid = ?"
# A digest confirms a guess of the text that it was made of, so forgetting a text means to remove its digest too.
_FORGET_DIGEST = "UPDATE records SET digest = '' WHERE rid = ?"
_UNREFERENCED = "NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.name = blobs.name)"


# --- retention ---


def trim(db: WriteConnection, operation: Trim) -> int:
    db.flush()
    topic = db.topic(operation.topic)
    if not topic.tid or topic.deleted:
        return topic.floor
    bound = _before_unsettled(db, topic, _retention_bound(db, topic, operation))
    row = db.one(
        "SELECT max(rid) FROM records WHERE rid > ? AND rid <= ?", rid_of(topic.tid, 0), rid_of(topic.tid, bound)
    )
    if row is None or row[0] is None:
        return topic.floor
    _drop(db, topic, row[0])
    topic.floor = row[0] & SEQ_MASK
    db.mark_dirty(topic)
    return topic.floor


def _retention_bound(db: WriteConnection, topic: TopicRow, operation: Trim) -> int:
    """Return the highest seq that the number, age or seq of the operation allows to drop."""
    if operation.through is not None:
        return min(operation.through, topic.last)
    low, high = rid_of(topic.tid, 0), rid_of(topic.tid, topic.last)
    if operation.max_age_s is None:
        sql = "SELECT rid FROM records WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1 OFFSET ?"
        row = db.one(sql, low, high, operation.keep)
        return row[0] & SEQ_MASK if row else 0
    oldest_kept_ms = db.now_ms - round(operation.max_age_s * 1000)
    sql = "SELECT rid FROM records WHERE rid > ? AND rid <= ? AND at_ms > ? ORDER BY rid LIMIT 1"
    row = db.one(sql, low, high, oldest_kept_ms)
    return (row[0] & SEQ_MASK) - 1 if row else topic.last


def _before_unsettled(db: WriteConnection, topic: TopicRow, bound: int) -> int:
    """Lower the bound to below the first unsettled mail of an inbox: mail in a lane, or not yet sorted into one."""
    kind, agent = checked_topic(topic.name)
    if kind not in _INBOXES:
        return bound
    chat = _INBOXES[kind]
    sorted_until = intake_cursors(db, agent)[chat]
    rows = [
        db.one(
            "SELECT min(seq) FROM mail WHERE chat = ? AND lid IN (SELECT lid FROM lanes WHERE agent = ?)", chat, agent
        ),
        db.one(
            "SELECT rid FROM records WHERE rid > ? AND rid <= ? AND lane <> '' AND payload IS NOT NULL"
            " ORDER BY rid LIMIT 1",
            rid_of(topic.tid, sorted_until),
            rid_of(topic.tid, bound),
        ),
    ]
    unsettled = [row[0] & SEQ_MASK for row in rows if row is not None and row[0] is not None]
    return min(bound, *(seq - 1 for seq in unsettled)) if unsettled else bound


def _drop(db: WriteConnection, topic: TopicRow, high: int) -> None:
    """Drop a topic's records up to a rid and remember their ids, so that a late repeat is still recognized."""
    span = (rid_of(topic.tid, 0), high)
    db.execute("DELETE FROM blob_refs WHERE rid > ? AND rid <= ?", span)
    db.execute(
        "INSERT INTO old_ids SELECT rid, id, digest, answer FROM records WHERE rid > ? AND rid <= ? AND id <> ''",
        span,
    )
    db.dropped_rows += db.execute("DELETE FROM records WHERE rid > ? AND rid <= ?", span).rowcount
    _forget_oldest_ids(db, topic)


def _forget_oldest_ids(db: WriteConnection, topic: TopicRow) -> None:
    """Forget the ids of dropped records beyond the newest `IDS_KEPT`, so that their memory is bounded."""
    span = (rid_of(topic.tid, 0), rid_of(topic.tid, topic.last))
    sql = "SELECT rid FROM old_ids WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1 OFFSET ?"
    newest = db.one(sql, *span, IDS_KEPT)
    if newest is None:
        return
    forgotten = db.all("SELECT rid, id FROM old_ids WHERE rid > ? AND rid <= ?", span[0], newest[0])
    keys = [(db.id_key(topic.tid, record_id), rid & SEQ_MASK) for rid, record_id in forgotten]
    db.executemany("DELETE FROM ids WHERE key = ? AND seq = ?", keys)
    db.executemany("DELETE FROM fresh WHERE key = ? AND seq = ?", keys)
    db.execute("DELETE FROM old_ids WHERE rid > ? AND rid <= ?", (span[0], newest[0]))


def compact(db: WriteConnection, operation: Compact) -> int:
    db.flush()
    topic = db.topic(operation.topic)
    low, high = rid_of(topic.tid, 0), rid_of(topic.tid, topic.last)
    rows = db.all(
        "SELECT piece.rid FROM records AS piece WHERE piece.rid > ? AND piece.rid <= ? AND piece.draft <> ''"
        " AND EXISTS (SELECT 1 FROM records AS whole WHERE whole.closes = piece.draft AND whole.closes <> ''"
        " AND whole.rid > piece.rid AND whole.rid <= ? AND whole.at_ms <= ?)",
        *(low, high, high, db.now_ms - round(operation.min_age_s * 1000)),
    )
    db.executemany("DELETE FROM blob_refs WHERE rid = ?", rows)
    db.executemany("INSERT INTO old_ids SELECT rid, id, digest, answer FROM records WHERE rid = ? AND id <> ''", rows)
    db.executemany("DELETE FROM records WHERE rid = ?", rows)
    db.dropped_rows += len(rows)
    _forget_oldest_ids(db, topic)
    return len(rows)


# --- erasing and deleting ---


def erase(db: WriteConnection, operation: Erase) -> int:
    db.flush()
    topic = db.topic(operation.topic)
    rids = [(rid_of(topic.tid, seq),) for seq in set(operation.seqs) if 0 < seq <= topic.last]
    db.scrub_needed = True
    if operation.forget:
        db.executemany(_FORGET_DIGEST, rids)
        db.forget_group_ids(topic)
    return _erase_records(db, rids)


def _erase_records(db: WriteConnection, rids: list[tuple[int]]) -> int:
    db.executemany("DELETE FROM blob_refs WHERE rid = ?", rids)
    return db.executemany(_ERASE, rids).rowcount if rids else 0


def delete(db: WriteConnection, operation: Delete) -> None:
    db.flush()
    db.scrub_needed = True
    unnamed: set[tuple[str]] = set()
    for name in dict.fromkeys(operation.topics):
        unnamed |= _delete_topic(db, db.topic(name))
    if operation.conversation is not None:
        unnamed |= _delete_conversation(db, operation.conversation)
        db.executemany(f"DELETE FROM blobs WHERE name = ? AND {_UNREFERENCED}", unnamed)  # noqa: S608


def _delete_topic(db: WriteConnection, topic: TopicRow) -> set[tuple[str]]:
    """Delete a topic and leave a tombstone; return the blobs that its records named."""
    if topic.deleted:
        return set()
    db.mark_dirty(topic)
    topic.deleted, topic.floor, topic.head = True, topic.last, {}
    span = (rid_of(topic.tid, 0), rid_of(topic.tid, SEQ_MASK))
    named = {(name,) for (name,) in db.all("SELECT DISTINCT name FROM blob_refs WHERE rid BETWEEN ? AND ?", *span)}
    db.execute("DELETE FROM blob_refs WHERE rid BETWEEN ? AND ?", span)
    db.dropped_rows += db.execute("DELETE FROM records WHERE rid BETWEEN ? AND ?", span).rowcount
    for table in ("fresh", "ids"):
        db.execute(f"DELETE FROM {table} WHERE key BETWEEN ? AND ?", span)  # noqa: S608 - two constants
    db.execute("DELETE FROM old_ids WHERE rid BETWEEN ? AND ?", span)
    db.forget_group_ids(topic)
    _empty_inbox(db, topic)
    return named


def _empty_inbox(db: WriteConnection, topic: TopicRow) -> None:
    """Remove the mail of a deleted inbox from the agent's lanes; lanes without mail become idle."""
    kind, agent = checked_topic(topic.name)
    if kind not in _INBOXES:
        return
    db.execute(
        "DELETE FROM mail WHERE chat = ? AND lid IN (SELECT lid FROM lanes WHERE agent = ?)", (_INBOXES[kind], agent)
    )
    db.execute(
        "UPDATE lanes SET attempt = 0, ready = NULL, due_ms = NULL, parked = 0, idle_ms = ? WHERE agent = ?"
        " AND owner IS NULL AND NOT EXISTS (SELECT 1 FROM mail WHERE lid = lanes.lid)",
        (db.now_ms, agent),
    )


def _delete_conversation(db: WriteConnection, conversation: str) -> set[tuple[str]]:
    """Erase a conversation's copies in other topics, drop its lanes; return the blobs that the copies named.

    Deleting the lane's row fences its owner: its token matches no row any more.
    """
    copies = [(rid,) for (rid,) in db.all("SELECT rid FROM records WHERE copy = ? AND copy <> ''", conversation)]
    named = {(name,) for copy in copies for (name,) in db.all("SELECT name FROM blob_refs WHERE rid = ?", *copy)}
    _erase_records(db, copies)
    db.executemany(_FORGET_DIGEST, copies)
    lanes = db.all("SELECT lid FROM lanes WHERE conversation = ?", conversation)
    db.executemany("DELETE FROM mail WHERE lid = ?", lanes)
    db.executemany("DELETE FROM lanes WHERE lid = ?", lanes)
    return named


# --- blobs ---


def put_blob(db: WriteConnection, operation: PutBlob) -> str:
    db.execute(
        "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms",
        (operation.name, db.now_ms, operation.data),
    )
    return operation.name


def sweep_blobs(db: WriteConnection, operation: SweepBlobs) -> int:
    db.flush()
    oldest_kept_ms = db.now_ms - round(operation.min_age_s * 1000)
    dropped = db.execute(
        f"DELETE FROM blobs WHERE at_ms <= ? AND {_UNREFERENCED}",  # noqa: S608
        (oldest_kept_ms,),
    ).rowcount
    db.dropped_rows += dropped
    return dropped
