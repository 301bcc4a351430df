"""Appends: what is checked, in the order that `operations` promises, and what is then written."""

from __future__ import annotations

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
from magent2.bus.sqlite_engine.state import Known, State, Topic
from magent2.errors import BlobMissing, ConditionFailed, HeadTooLarge, IdConflict, PayloadTooLarge, TopicDeleted


def append(state: State, operation: Append) -> AppendResult:
    check_sizes(state, operation)
    key = operation.records[0]
    topic = state.topic(key.topic)
    known = _repeat(state, topic, key)
    if known is not None:
        return AppendResult(known.answer or (known.seq,), repeat=True)
    if len(operation.records) > 1 or operation.conditions or operation.heads or key.blobs:
        return AppendResult(put(state, operation, keyed=True))
    _check_not_deleted(topic)  # one record and no more is what most appends are
    seq = state.next_seq(topic)
    state.add(key, topic.tid, seq)
    return AppendResult((seq,))


def check_sizes(state: State, operation: Write) -> None:
    limit = state.payload_max_bytes
    for record in operation.records:
        if len(record.body) > limit:
            raise PayloadTooLarge(
                f"payload for {record.topic!r} takes {len(record.body)} bytes, the limit is {limit};"
                " put the content into a blob, or raise payload_max_bytes"
            )


def put(state: State, operation: Write, *, keyed: bool = False) -> tuple[int, ...]:
    """Check all, then append all. The seq of each record."""
    repeats = check(state, operation, first=1 if keyed else 0)
    topics = [state.topic(record.topic) for record in operation.records]
    seqs = tuple(repeats.get(index) or state.next_seq(topic) for index, topic in enumerate(topics))
    for index, record in enumerate(operation.records):
        if index not in repeats:
            answer = seqs if keyed and index == 0 and len(seqs) > 1 else ()
            state.add(record, topics[index].tid, seqs[index], answer)
    for head in operation.heads:
        set_head(state, head)
    return seqs


def check(state: State, operation: Write, *, first: int) -> dict[int, int]:
    """Refuse the append, or say which of its records exist already, and as what."""
    touched = [*(record.topic for record in operation.records), *(head.topic for head in operation.heads)]
    for name in dict.fromkeys(touched):
        _check_not_deleted(state.topic(name))
    repeats = {}
    for index, record in enumerate(operation.records[first:], first):
        if record.id is None:  # tokens are many, and have none
            continue
        known = _repeat(state, state.topic(record.topic), record)
        if known is not None:
            repeats[index] = known.seq
    for condition in operation.conditions:
        _check_condition(state, condition)
    for record in operation.records:
        for blob in record.blobs:
            _check_blob(state, blob)
    for head in operation.heads:
        _merge_head(state, head)
    return repeats


def _repeat(state: State, topic: Topic, record: NewRecord) -> Known | None:
    if record.id is None:
        return None
    known = state.known(topic, record.id)
    if known is not None and known.digest != record.digest:
        raise IdConflict(f"id {record.id!r} of {record.topic!r} was used with another body; take a new id")
    return known


def _check_not_deleted(topic: Topic) -> None:
    if topic.deleted:
        raise TopicDeleted(f"{topic.name!r} was deleted; write to a topic with another name")


def _check_condition(state: State, condition: Condition) -> None:
    topic = state.topic(condition.topic)
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


def _check_blob(state: State, name: str) -> None:
    if state.one("SELECT 1 FROM blobs WHERE name = ?", name) is None:
        raise BlobMissing(f"there is no blob {name}; put it before the append that names it")


def _merge_head(state: State, head: SetHead) -> dict[str, str]:
    merged = {**state.topic(head.topic).head, **head.texts}
    merged = {name: text for name, text in merged.items() if text}
    size = head_size(merged)
    if size > HEAD_MAX_BYTES:
        raise HeadTooLarge(head_too_large(head.topic, size))
    return merged


def set_head(state: State, head: SetHead) -> None:
    topic = state.topic(head.topic)
    topic.head = _merge_head(state, head)
    state.reshape(topic)
    topic.active_ms = state.now_ms
