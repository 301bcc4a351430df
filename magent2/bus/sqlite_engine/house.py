"""Keeping house: retention, compaction, erasing, deleting, blobs."""

from __future__ import annotations

from magent2.bus.operations import Compact, Delete, Erase, PutBlob, SweepBlobs, Trim
from magent2.bus.sqlite_engine.sort import CHAT, CONTROL, inbox
from magent2.bus.sqlite_engine.state import SEQ_MASK, State, Topic, rid_of
from magent2.models.address import checked_topic

IDS_KEPT = 10_000  # ids that a topic still knows after their records were dropped

_INBOXES = {"chat": CHAT, "control": CONTROL}
_ERASE = "UPDATE records SET payload = NULL, headers = '', blobs = '', copy = '' WHERE rid = ?"
_FORGET_BODY = "UPDATE records SET digest = '' WHERE rid = ?"  # who has the digest of a text can try texts on it
_UNNAMED = "NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.name = blobs.name)"


# --- retention ---


def trim(state: State, operation: Trim) -> int:
    state.flush()
    topic = state.topic(operation.topic)
    if not topic.tid or topic.deleted:
        return topic.floor
    bound = _before_unsettled(state, topic, _retention_bound(state, topic, operation))
    row = state.one(
        "SELECT max(rid) FROM records WHERE rid > ? AND rid <= ?", rid_of(topic.tid, 0), rid_of(topic.tid, bound)
    )
    if row is None or row[0] is None:
        return topic.floor
    _drop(state, topic, row[0])
    topic.floor = row[0] & SEQ_MASK
    state.reshape(topic)
    return topic.floor


def _retention_bound(state: State, topic: Topic, operation: Trim) -> int:
    """The highest seq that may go, as far as number, age or seq are concerned."""
    if operation.through is not None:
        return min(operation.through, topic.last)
    low, high = rid_of(topic.tid, 0), rid_of(topic.tid, topic.last)
    if operation.max_age_s is None:
        sql = "SELECT rid FROM records WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1 OFFSET ?"
        row = state.one(sql, low, high, operation.keep)
        return row[0] & SEQ_MASK if row else 0
    oldest_kept_ms = state.now_ms - round(operation.max_age_s * 1000)
    sql = "SELECT rid FROM records WHERE rid > ? AND rid <= ? AND at_ms > ? ORDER BY rid LIMIT 1"
    row = state.one(sql, low, high, oldest_kept_ms)
    return (row[0] & SEQ_MASK) - 1 if row else topic.last


def _before_unsettled(state: State, topic: Topic, bound: int) -> int:
    """At most the seq below the first mail that nobody has settled yet."""
    kind, agent = checked_topic(topic.name)
    if kind not in _INBOXES:
        return bound
    chat = _INBOXES[kind]
    sorted_seq = inbox(state, agent)[chat]
    rows = [
        state.one(
            "SELECT min(seq) FROM mail WHERE chat = ? AND lid IN (SELECT lid FROM lanes WHERE agent = ?)", chat, agent
        ),
        state.one(
            "SELECT rid FROM records WHERE rid > ? AND rid <= ? AND lane <> '' AND payload IS NOT NULL"
            " ORDER BY rid LIMIT 1",
            rid_of(topic.tid, sorted_seq),
            rid_of(topic.tid, bound),
        ),
    ]
    unsettled = [row[0] & SEQ_MASK for row in rows if row is not None and row[0] is not None]
    return min(bound, *(seq - 1 for seq in unsettled)) if unsettled else bound


def _drop(state: State, topic: Topic, high: int) -> None:
    """Drop a topic's records up to a rid, and remember their ids."""
    span = (rid_of(topic.tid, 0), high)
    state.connection.execute("DELETE FROM blob_refs WHERE rid > ? AND rid <= ?", span)
    state.connection.execute(
        "INSERT INTO old_ids SELECT rid, id, digest, answer FROM records WHERE rid > ? AND rid <= ? AND id <> ''",
        span,
    )
    state.freed += state.connection.execute("DELETE FROM records WHERE rid > ? AND rid <= ?", span).rowcount
    _forget_oldest_ids(state, topic)


def _forget_oldest_ids(state: State, topic: Topic) -> None:
    span = (rid_of(topic.tid, 0), rid_of(topic.tid, topic.last))
    sql = "SELECT rid FROM old_ids WHERE rid > ? AND rid <= ? ORDER BY rid DESC LIMIT 1 OFFSET ?"
    newest = state.one(sql, *span, IDS_KEPT)
    if newest is None:
        return
    forgotten = state.all("SELECT rid, id FROM old_ids WHERE rid > ? AND rid <= ?", span[0], newest[0])
    keys = [(state.id_key(topic.tid, record_id), rid & SEQ_MASK) for rid, record_id in forgotten]
    state.connection.executemany("DELETE FROM ids WHERE key = ? AND seq = ?", keys)
    state.connection.executemany("DELETE FROM fresh WHERE key = ? AND seq = ?", keys)
    state.connection.execute("DELETE FROM old_ids WHERE rid > ? AND rid <= ?", (span[0], newest[0]))


def compact(state: State, operation: Compact) -> int:
    state.flush()
    topic = state.topic(operation.topic)
    low, high = rid_of(topic.tid, 0), rid_of(topic.tid, topic.last)
    rows = state.all(
        "SELECT piece.rid FROM records AS piece WHERE piece.rid > ? AND piece.rid <= ? AND piece.draft <> ''"
        " AND EXISTS (SELECT 1 FROM records AS whole WHERE whole.closes = piece.draft AND whole.closes <> ''"
        " AND whole.rid > piece.rid AND whole.rid <= ? AND whole.at_ms <= ?)",
        *(low, high, high, state.now_ms - round(operation.min_age_s * 1000)),
    )
    state.connection.executemany("DELETE FROM blob_refs WHERE rid = ?", rows)
    state.connection.executemany(
        "INSERT INTO old_ids SELECT rid, id, digest, answer FROM records WHERE rid = ? AND id <> ''", rows
    )
    state.connection.executemany("DELETE FROM records WHERE rid = ?", rows)
    state.freed += len(rows)
    _forget_oldest_ids(state, topic)
    return len(rows)


# --- erasing and deleting ---


def erase(state: State, operation: Erase) -> int:
    state.flush()
    topic = state.topic(operation.topic)
    rids = [(rid_of(topic.tid, seq),) for seq in set(operation.seqs) if 0 < seq <= topic.last]
    state.stale = True
    if operation.forget:
        state.connection.executemany(_FORGET_BODY, rids)
        state.forget_ids_of(topic)
    return _empty(state, rids)


def _empty(state: State, rids: list[tuple[int]]) -> int:
    state.connection.executemany("DELETE FROM blob_refs WHERE rid = ?", rids)
    return state.connection.executemany(_ERASE, rids).rowcount if rids else 0


def delete(state: State, operation: Delete) -> None:
    state.flush()
    state.stale = True
    freed: set[tuple[str]] = set()
    for name in dict.fromkeys(operation.topics):
        freed |= _delete_topic(state, state.topic(name))
    if operation.conversation is not None:
        freed |= _delete_conversation(state, operation.conversation)
        state.connection.executemany(f"DELETE FROM blobs WHERE name = ? AND {_UNNAMED}", freed)  # noqa: S608


def _delete_topic(state: State, topic: Topic) -> set[tuple[str]]:
    """The blobs that its records named."""
    if topic.deleted:
        return set()
    state.reshape(topic)
    topic.deleted, topic.floor, topic.head = True, topic.last, {}
    span = (rid_of(topic.tid, 0), rid_of(topic.tid, SEQ_MASK))
    named = {(name,) for (name,) in state.all("SELECT DISTINCT name FROM blob_refs WHERE rid BETWEEN ? AND ?", *span)}
    state.connection.execute("DELETE FROM blob_refs WHERE rid BETWEEN ? AND ?", span)
    state.freed += state.connection.execute("DELETE FROM records WHERE rid BETWEEN ? AND ?", span).rowcount
    for table in ("fresh", "ids"):
        state.connection.execute(f"DELETE FROM {table} WHERE key BETWEEN ? AND ?", span)  # noqa: S608 - two constants
    state.connection.execute("DELETE FROM old_ids WHERE rid BETWEEN ? AND ?", span)
    state.forget_ids_of(topic)
    _empty_inbox(state, topic)
    return named


def _empty_inbox(state: State, topic: Topic) -> None:
    """Mail whose records are gone waits for nobody."""
    kind, agent = checked_topic(topic.name)
    if kind not in _INBOXES:
        return
    state.connection.execute(
        "DELETE FROM mail WHERE chat = ? AND lid IN (SELECT lid FROM lanes WHERE agent = ?)", (_INBOXES[kind], agent)
    )
    state.connection.execute(
        "UPDATE lanes SET attempt = 0, ready = NULL, due_ms = NULL, parked = 0, idle_ms = ? WHERE agent = ?"
        " AND owner IS NULL AND NOT EXISTS (SELECT 1 FROM mail WHERE lid = lanes.lid)",
        (state.now_ms, agent),
    )


def _delete_conversation(state: State, conversation: str) -> set[tuple[str]]:
    """The blobs that its copies elsewhere named."""
    copies = [(rid,) for (rid,) in state.all("SELECT rid FROM records WHERE copy = ? AND copy <> ''", conversation)]
    named = {(name,) for copy in copies for (name,) in state.all("SELECT name FROM blob_refs WHERE rid = ?", *copy)}
    _empty(state, copies)
    state.connection.executemany(_FORGET_BODY, copies)
    lanes = state.all("SELECT lid FROM lanes WHERE conversation = ?", conversation)
    state.connection.executemany("DELETE FROM mail WHERE lid = ?", lanes)
    state.connection.executemany("DELETE FROM lanes WHERE lid = ?", lanes)
    return named


# --- blobs ---


def put_blob(state: State, operation: PutBlob) -> str:
    state.connection.execute(
        "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms",
        (operation.name, state.now_ms, operation.data),
    )
    return operation.name


def sweep_blobs(state: State, operation: SweepBlobs) -> int:
    state.flush()
    oldest_kept_ms = state.now_ms - round(operation.min_age_s * 1000)
    dropped = state.connection.execute(
        f"DELETE FROM blobs WHERE at_ms <= ? AND {_UNNAMED}",  # noqa: S608
        (oldest_kept_ms,),
    ).rowcount
    state.freed += dropped
    return dropped
