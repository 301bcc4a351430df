"""Appends: makes the checks in the order that `operations` documents, then writes."""

from __future__ import annotations

from collections.abc import Sequence

from magent2.bus.operations import (
    HEAD_MAX_BYTES,
    Append,
    Condition,
    LastSeqIs,
    SetHead,
    Write,
    head_size,
    head_too_large,
)
from magent2.bus.records import AppendResult, NewRecord
from magent2.bus.sqlite_engine.connection import KnownId, TopicRow, WriteConnection
from magent2.errors import BlobMissing, ConditionFailed, HeadTooLarge, IdConflict, PayloadTooLarge, TopicDeleted


def append(db: WriteConnection, operation: Append) -> AppendResult:
    check_sizes(db, operation)
    key = operation.records[0]
    topic = db.topic(key.topic)
    known = _repeated_id(db, topic, key)
    if known is not None:
        return AppendResult(known.answer or (known.seq,), repeat=True)
    if len(operation.records) > 1 or operation.conditions or operation.heads or key.blobs:
        return AppendResult(check_and_write(db, operation, keyed=True))
    _check_not_deleted(topic)  # most appends have a single record and nothing else: only this check is left
    seq = db.next_seq(topic)
    db.add_record(key, topic.tid, seq)
    return AppendResult((seq,))


def check_sizes(db: WriteConnection, operation: Write) -> None:
    limit = db.payload_max_bytes
    for record in operation.records:
        if len(record.body) > limit:
            raise PayloadTooLarge(
                f"payload for {record.topic!r} takes {len(record.body)} bytes, the limit is {limit};"
                " put the content into a blob, or raise payload_max_bytes"
            )


def check_and_write(db: WriteConnection, operation: Write, *, keyed: bool = False) -> tuple[int, ...]:
    """Make all checks, then append all records and set all heads; return the seq of each record.

    `keyed`: the first record is the key, whose id the caller has checked already. Its row keeps the seqs of the whole
    append, which answer a repeat.
    """
    topics = [db.topic(record.topic) for record in operation.records]
    repeats = _check(db, operation, topics, first=1 if keyed else 0)
    seqs = tuple([repeats.get(index) or db.next_seq(topic) for index, topic in enumerate(topics)])
    for index, record in enumerate(operation.records):
        if index not in repeats:
            answer = seqs if keyed and index == 0 and len(seqs) > 1 else ()
            db.add_record(record, topics[index].tid, seqs[index], answer)
    for head in operation.heads:
        topic = db.topic(head.topic)
        topic.head = _merged_head(db, head)
        db.mark_dirty(topic)
        topic.active_ms = db.now_ms
    return seqs


def _check(db: WriteConnection, operation: Write, topics: Sequence[TopicRow], *, first: int) -> dict[int, int]:
    """Refuse the append, or return the records that the log has already: their index in the append → their seq.

    `topics` are those of the records.
    """
    for topic in (*topics, *(db.topic(head.topic) for head in operation.heads)):
        _check_not_deleted(topic)
    repeats = {}
    for index, record in enumerate(operation.records):
        if index < first or record.id is None:  # true of tokens, which are the most frequent records
            continue
        known = _repeated_id(db, topics[index], record)
        if known is not None:
            repeats[index] = known.seq
    for condition in operation.conditions:
        _check_condition(db, condition)
    for record in operation.records:
        for blob in record.blobs:
            if db.one("SELECT 1 FROM blobs WHERE name = ?", blob) is None:
                raise BlobMissing(f"there is no blob {blob}; put it before the append that names it")
    for head in operation.heads:
        _merged_head(db, head)
    return repeats


def _repeated_id(db: WriteConnection, topic: TopicRow, record: NewRecord) -> KnownId | None:
    """Return what the log knows of the record's id, or refuse the id if it was used with another body."""
    if record.id is None:
        return None
    known = db.known_id(topic, record.id)
    if known is not None and known.digest != record.digest:
        raise IdConflict(f"id {record.id!r} of {record.topic!r} was used with another body; take a new id")
    return known


def _check_not_deleted(topic: TopicRow) -> None:
    if topic.deleted:
        raise TopicDeleted(f"{topic.name!r} was deleted; write to a topic with another name")


def _check_condition(db: WriteConnection, condition: Condition) -> None:
    topic = db.topic(condition.topic)
    if isinstance(condition, LastSeqIs):
        if topic.last != condition.seq:
            raise ConditionFailed(
                f"{topic.name!r} is at {topic.last}, not at {condition.seq}; read again, decide again"
            )
        return
    found = topic.head.get(condition.name, "")
    if found != condition.text:
        raise ConditionFailed(
            f"{condition.name!r} in the head of {topic.name!r} is {found or 'not set'}, not"
            f" {condition.text or 'unset'}; read again, decide again"
        )


def _merged_head(db: WriteConnection, head: SetHead) -> dict[str, str]:
    """Return the head of the topic with these fields set or removed, or refuse it if it is too large."""
    merged = {**db.topic(head.topic).head, **head.texts}
    merged = {name: text for name, text in merged.items() if text}
    size = head_size(merged)
    if size > HEAD_MAX_BYTES:
        raise HeadTooLarge(head_too_large(head.topic, size))
    return merged
