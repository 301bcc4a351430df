"""Maintenance of a log: retention, compaction, erasing, deleting, blobs."""

from __future__ import annotations

from collections.abc import Sequence

from magent2.bus.operations import IDS_KEPT, Compact, Delete, Erase, Expire, PutBlob, Scrub, SweepBlobs, Trim
from magent2.bus.records import CompactResult, TrimResult
from magent2.bus.scrub import ScrubState
from magent2.bus.sqlite_engine.connection import SEQ_BITS, SEQ_MASK, SqlRow, TopicRow, WriteConnection, rid_of
from magent2.bus.sqlite_engine.lane_intake import CHAT, CONTROL, intake_cursors
from magent2.models.address import checked_topic

_INBOXES = {"chat": CHAT, "control": CONTROL}
_ERASE = "UPDATE records SET payload = NULL, headers = '', blobs = '', copy = '' WHERE rid = ?"
# A digest confirms a guess of the text that it was made of, so forgetting a text means to remove its digest too.
_FORGET_DIGEST = "UPDATE records SET digest = '' WHERE rid = ?"
_UNREFERENCED = "NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.name = blobs.name)"


# --- retention ---


def trim(db: WriteConnection, operation: Trim) -> TrimResult:
    db.flush()
    topic = db.topic(operation.topic)
    if not topic.tid or topic.deleted:
        return TrimResult(topic.floor)
    low = rid_of(topic.tid, 0)
    page = db.all(
        "SELECT rid, at_ms FROM records WHERE rid > ? AND rid <= ? ORDER BY rid LIMIT ?",
        *(low, rid_of(topic.tid, topic.last), operation.limit + 1),
    )
    bound = rid_of(topic.tid, _before_unsettled(db, topic, _retention_bound(db, topic, operation, page)))
    dropped = [rid for rid, _ in page if rid <= bound]
    more = len(dropped) > operation.limit
    if more:
        dropped.pop()
    if not dropped:
        return TrimResult(topic.floor)
    _drop(db, topic, dropped[-1])
    topic.floor = dropped[-1] & SEQ_MASK
    db.mark_dirty(topic)
    return TrimResult(topic.floor, len(dropped), more)


def _retention_bound(db: WriteConnection, topic: TopicRow, operation: Trim, page: Sequence[SqlRow]) -> int:
    """Return the highest seq that the number, age or seq of the operation allows to drop.

    `page` has the oldest records with their times; an age is compared with these only, because one step drops no more.
    """
    if operation.through is not None:
        return min(operation.through, topic.last)
    if operation.max_age_s is None:
        sql = "SELECT rid FROM records WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1 OFFSET ?"
        row = db.one(sql, rid_of(topic.tid, 0), rid_of(topic.tid, topic.last), operation.keep)
        return row[0] & SEQ_MASK if row else 0
    oldest_kept_ms = db.now_ms - round(operation.max_age_s * 1000)
    young = next((rid for rid, at_ms in page if at_ms > oldest_kept_ms), None)
    return topic.last if young is None else (young & SEQ_MASK) - 1


def _before_unsettled(db: WriteConnection, topic: TopicRow, bound: int) -> int:
    """Lower the bound to below the first unsettled mail of an inbox: mail in a lane, or not yet sorted into one."""
    kind, agent = checked_topic(topic.name)
    if kind not in _INBOXES:
        return bound
    chat = _INBOXES[kind]
    sorted_until = intake_cursors(db, agent)[chat]
    rows = [
        # CROSS JOIN starts at the mail that waits. The lanes without mail are far more, and no index has them by agent.
        db.one("SELECT min(seq) FROM mail CROSS JOIN lanes USING (lid) WHERE chat = ? AND agent = ?", chat, agent),
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


def compact(db: WriteConnection, operation: Compact) -> CompactResult:
    db.flush()
    topic = db.topic(operation.topic)
    high = rid_of(topic.tid, topic.last)
    drafts = db.all(
        "SELECT rid, draft FROM records INDEXED BY records_draft WHERE rid > ? AND rid <= ? AND draft <> ''"
        " ORDER BY rid LIMIT ?",
        *(rid_of(topic.tid, operation.after), high, operation.limit),
    )
    closed_ms = db.now_ms - round(operation.min_age_s * 1000)
    closings = {name: _last_closing(db, topic, name, closed_ms) for name in {name for _, name in drafts}}
    rows = [(rid,) for rid, name in drafts if rid < closings[name]]
    db.executemany("DELETE FROM blob_refs WHERE rid = ?", rows)
    db.executemany("INSERT INTO old_ids SELECT rid, id, digest, answer FROM records WHERE rid = ? AND id <> ''", rows)
    db.executemany("DELETE FROM records WHERE rid = ?", rows)
    db.dropped_rows += len(rows)
    _forget_oldest_ids(db, topic)
    return CompactResult(len(rows), drafts[-1][0] & SEQ_MASK if len(drafts) == operation.limit else None)


def _last_closing(db: WriteConnection, topic: TopicRow, draft: str, closed_ms: int) -> int:
    """Return the rid of the last record that closed the draft until then, or 0."""
    sql = "SELECT max(rid) FROM records WHERE closes = ? AND closes <> '' AND rid > ? AND rid <= ? AND at_ms <= ?"
    row = db.one(sql, draft, rid_of(topic.tid, 0), rid_of(topic.tid, topic.last), closed_ms)
    return row[0] or 0 if row else 0


# --- erasing and deleting ---


def erase(db: WriteConnection, operation: Erase) -> int:
    db.flush()
    topic = db.topic(operation.topic)
    rids = [(rid_of(topic.tid, seq),) for seq in set(operation.seqs) if 0 < seq <= topic.last]
    db.ask_for_scrub()
    if operation.forget:
        db.executemany(_FORGET_DIGEST, rids)
        db.forget_group_ids(topic)
    return _erase_records(db, rids)


def _erase_records(db: WriteConnection, rids: list[tuple[int]]) -> int:
    db.executemany("DELETE FROM blob_refs WHERE rid = ?", rids)
    return db.executemany(_ERASE, rids).rowcount if rids else 0


def delete(db: WriteConnection, operation: Delete) -> None:
    db.flush()
    if operation.scrub:
        db.ask_for_scrub()
    unnamed: set[tuple[str]] = set()
    for name in dict.fromkeys(operation.topics):
        unnamed |= _delete_topic(db, db.topic(name))
    if operation.conversation is not None:
        unnamed |= _delete_conversation(db, operation.conversation)
        db.executemany(f"DELETE FROM blobs WHERE name = ? AND {_UNREFERENCED}", unnamed)  # noqa: S608


def expire(db: WriteConnection, operation: Expire) -> bool:
    db.flush()
    topics = [db.topic(name) for name in operation.topics]
    active_ms = db.now_ms - round(operation.idle_s * 1000)
    if not topics[0].tid or topics[0].deleted or any(_is_active(db, topic, active_ms) for topic in topics):
        return False
    if _has_mail(db, operation.conversation):
        return False
    if not operation.dry_run:
        delete(db, Delete(operation.topics, conversation=operation.conversation, scrub=False))
    return True


def _is_active(db: WriteConnection, topic: TopicRow, active_ms: int) -> bool:
    """Return whether the topic was created, or its head set or a record appended, after this time."""
    if not topic.tid or topic.deleted:
        return False
    sql = "SELECT at_ms FROM records WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1"
    last = db.one(sql, rid_of(topic.tid, 0), rid_of(topic.tid, topic.last))
    return topic.active_ms > active_ms or (last is not None and last[0] > active_ms)


def _has_mail(db: WriteConnection, conversation: str) -> bool:
    """Return whether mail of a conversation waits: in a lane, or in an inbox and not yet sorted into a lane."""
    in_lane = "SELECT 1 FROM lanes JOIN mail USING (lid) WHERE lanes.conversation = ? LIMIT 1"
    if db.one(in_lane, conversation) is not None:
        return True
    copies = db.all(
        f"SELECT topics.name, records.rid FROM records JOIN topics ON topics.tid = records.rid >> {SEQ_BITS}"  # noqa: S608
        " WHERE copy = ? AND copy <> '' AND lane <> '' AND payload IS NOT NULL",
        conversation,
    )
    for name, rid in copies:
        kind, agent = checked_topic(name)
        if kind in _INBOXES and rid & SEQ_MASK > intake_cursors(db, agent)[_INBOXES[kind]]:
            return True
    return False


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
        (db.log_ms(), agent),
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


def scrub(db: WriteConnection, _: Scrub) -> bool:
    """Scrub a database in memory, which has no file. For a file the writer thread does it, outside a transaction."""
    db.store_scrub(ScrubState())
    return True


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
    unnamed = f"FROM blobs WHERE at_ms <= ? AND {_UNREFERENCED}"
    if operation.dry_run:
        row = db.one(f"SELECT count(*) {unnamed}", oldest_kept_ms)
        return int(row[0]) if row else 0
    dropped = db.execute(
        f"DELETE FROM blobs WHERE name IN (SELECT name {unnamed} LIMIT ?)",  # noqa: S608
        (oldest_kept_ms, operation.limit),
    ).rowcount
    db.dropped_rows += dropped
    return dropped
