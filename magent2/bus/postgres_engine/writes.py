"""Appends, as one call of a function on the server for a whole group of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson

from magent2.bus.operations import (
    Append,
    Condition,
    HeadIs,
    Later,
    OwnedAppend,
    SetHead,
    Settle,
    Write,
    head_too_large,
)
from magent2.bus.postgres_engine.clock import LogClock, rounded_up_ms
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import rows
from magent2.bus.record_watch import Changes
from magent2.bus.records import AppendResult, NewRecord, Owner
from magent2.errors import (
    BlobMissing,
    ConditionFailed,
    CounterGap,
    Fenced,
    HeadTooLarge,
    IdConflict,
    Magent2Error,
    PayloadTooLarge,
    TopicDeleted,
)
from magent2.models.address import chat_topic

_COLUMNS = 9  # of `_cells`
_KINDS = {Append: "append", OwnedAppend: "owned", Settle: "settle", Later: "later"}
_WRITE = render(
    "SELECT * FROM write$v(%b::text[], %b::int[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[],"
    " %b::text[], %b::text[], %b::text[], %b::text[],"
    " %b::text[], %b::int[], %b::int[], %b::int[], %b::text[], %b::bigint[], %b::bigint[], %b::boolean[],"
    " %b::text[]::jsonb[], %b::text[], %b::text[], %b::int[], %b::boolean[], %b::bigint[], %b::bigint)"
)


@dataclass(slots=True)
class WriteGroup:
    """Write operations that share one transaction, as the arrays that the function takes."""

    payload_max_bytes: int
    operations: list[Write] = field(default_factory=list)
    _ids: set[tuple[str, str]] = field(default_factory=set)

    def add(self, operation: Write) -> bool:
        """Add an operation. `False`: it has the id of another one, so it belongs into the next group."""
        for record in operation.records:
            if len(record.body) > self.payload_max_bytes:
                raise PayloadTooLarge(
                    f"payload for {record.topic!r} takes {len(record.body)} bytes, the limit is"
                    f" {self.payload_max_bytes}; put the content into a blob, or raise payload_max_bytes"
                )
        ids = {(record.topic, record.id) for record in operation.records if record.id is not None}
        if ids & self._ids:
            return False
        self._ids |= ids
        self.operations.append(operation)
        return True

    def run(self, connection: Connection, clock: LogClock) -> tuple[list[object], Changes, dict[str, int]]:
        """Run the group; return the outcome of each operation, what has changed, and the versions of changed topics."""
        (row,) = rows(connection, _WRITE, self._arguments(clock))
        codes, details, seqs, answers, at_ms, changed, versions, listed, woken = row
        outcomes: list[object] = []
        appended: list[tuple[int, NewRecord]] = []
        first = 0
        for index, operation in enumerate(self.operations):
            count = len(operation.records)
            if codes[index] is not None:
                outcomes.append(_refusal(operation, codes[index], details[index], first))
            elif answers[index] is not None:
                outcomes.append(AppendResult(tuple(answers[index]), repeat=True))
            else:
                found = seqs[first : first + count] if count else ()
                outcomes.append(AppendResult(tuple(map(abs, found))))
                appended += [(seq, record) for seq, record in zip(found, operation.records, strict=True) if seq > 0]
            first += count
        topics = {*changed, *map(chat_topic, woken)}
        changes = Changes(topics, set(listed), 0, appended, at_ms, erased=False)
        return outcomes, changes, dict(zip(changed, versions, strict=True))

    def _arguments(self, clock: LogClock) -> tuple[Any, ...]:
        operations = self.operations
        names = sorted({topic for operation in operations for topic in _topics(operation)})
        places = {name: index for index, name in enumerate(names, 1)}
        counts = [len(operation.records) for operation in operations]
        records = [record for operation in operations for record in operation.records]
        return (
            names,
            [places[record.topic] for record in records],
            *_columns(records),
            [_KINDS[type(operation)] for operation in operations],
            [end - count + 1 for end, count in zip(accumulate(counts), counts, strict=True)],
            counts,
            *_lane_columns(operations),
            [_rest(operation, places) for operation in operations],
            *_lanes_and_mail(operations),
            clock.expected_ms(),
        )


def _topics(operation: Write) -> list[str]:
    return [
        *(record.topic for record in operation.records),
        *(condition.topic for condition in operation.conditions),
        *(head.topic for head in operation.heads),
    ]


def _cells(record: NewRecord) -> tuple[str | None, ...]:
    return (
        record.id,
        record.digest or None,
        record.header_text.decode() or None,
        record.lane,
        record.copy or None,
        record.draft,
        record.closes,
        ",".join(record.blobs) or None,
        record.body.decode(),
    )


def _columns(records: Sequence[NewRecord]) -> list[list[str | None] | None]:
    """Return one list per column; `None` for one that is empty, as most are."""
    columns = zip(*map(_cells, records), strict=True) if records else [()] * _COLUMNS
    return [list(column) if any(cell is not None for cell in column) else None for column in columns]


def _rest(operation: Write, places: Mapping[str, int]) -> str | None:
    """Return the conditions and heads as JSON; `None` for most appends."""
    rest: dict[str, Any] = {}
    if operation.conditions:
        rest["conditions"] = [_condition(condition, places) for condition in operation.conditions]
    if operation.heads:
        rest["heads"] = [_head(head, places) for head in operation.heads]
    return orjson.dumps(rest).decode() if rest else None


def _lane_columns(operations: Sequence[Write]) -> list[list[Any] | None]:
    """Return the position of the lane, the token, the counter, the delay and the refund of each operation."""
    lanes = _lanes(operations)
    return _split([_lane_cells(operation, lanes) for operation in operations] if lanes else [], 5)


def _lane_cells(operation: Write, lanes: Mapping[tuple[str, str], int]) -> tuple[Any, ...]:
    if not isinstance(operation, OwnedAppend | Settle | Later):
        return None, None, None, None, None
    owner = operation.owner
    place, counter = lanes[owner.conversation, owner.agent], getattr(operation, "n", None)
    if isinstance(operation, Later):
        delay_ms = None if operation.delay_s is None else rounded_up_ms(operation.delay_s)
        return place, owner.token, counter, delay_ms, operation.refund
    return place, owner.token, counter, None, None


def _lanes(operations: Sequence[Write]) -> dict[tuple[str, str], int]:
    """Return the lanes of the operations with their positions, from 1."""
    owners = [operation.owner for operation in operations if isinstance(operation, OwnedAppend | Settle | Later)]
    names = dict.fromkeys((owner.conversation, owner.agent) for owner in owners)
    return {name: place for place, name in enumerate(names, 1)}


def _lanes_and_mail(operations: Sequence[Write]) -> list[list[Any] | None]:
    """Return conversations and agents of the lanes, and operations, kinds and seqs of the mail that leaves them."""
    mail = [
        (place, ref.topic.startswith("chat:"), ref.seq)
        for place, operation in enumerate(operations, 1)
        if isinstance(operation, OwnedAppend | Settle)
        for ref in operation.mail
    ]
    return [*_split(list(_lanes(operations)), 2), *_split(mail, 3)]


def _split(rows: Sequence[tuple[Any, ...]], columns: int) -> list[list[Any] | None]:
    """Return one list per column; `None` for each if there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [None] * columns


def _condition(condition: Condition, places: Mapping[str, int]) -> list[object]:
    if isinstance(condition, HeadIs):
        return [places[condition.topic], condition.name, condition.text]
    return [places[condition.topic], condition.seq]


def _head(head: SetHead, places: Mapping[str, int]) -> list[object]:
    kept = {name: text for name, text in head.texts.items() if text}
    return [places[head.topic], kept, [name for name in head.texts if name not in kept]]


# --- refusals ---


def fenced(owner: Owner) -> Fenced:
    return Fenced(
        f"the lane of {owner.agent!r} in {owner.conversation!r} is not held under {owner.token!r} any more;"
        " stop this run"
    )


def _refusal(operation: Write, code: str, detail: str | None, first: int) -> Magent2Error:
    """Return the error for an operation whose records begin after `first` others of the group."""
    return _REFUSALS[code](operation, detail or "", first)


def _fenced(operation: Any, _detail: str, _first: int) -> Magent2Error:
    return fenced(operation.owner)


def _counter_gap(operation: Any, last: str, _first: int) -> Magent2Error:
    return CounterGap(f"append {operation.n} comes after {last}; run the appends in between first")


def _id_conflict(operation: Any, place: str, first: int) -> Magent2Error:
    record = operation.records[int(place) - first - 1]
    return IdConflict(f"id {record.id!r} of {record.topic!r} was used with another body; take a new id")


def _deleted(_operation: Any, topic: str, _first: int) -> Magent2Error:
    return TopicDeleted(f"{topic!r} was deleted; write to a topic with another name")


def _blob_missing(_operation: Any, name: str, _first: int) -> Magent2Error:
    return BlobMissing(f"there is no blob {name}; put it before the append that names it")


def _other_last(_operation: Any, detail: str, _first: int) -> Magent2Error:
    topic, last, wanted = orjson.loads(detail)
    return ConditionFailed(f"{topic!r} is at {last}, not at {wanted}; read again, decide again")


def _other_head(_operation: Any, detail: str, _first: int) -> Magent2Error:
    topic, name, found, wanted = orjson.loads(detail)
    return ConditionFailed(
        f"{name!r} in the head of {topic!r} is {found or 'not set'}, not {wanted or 'unset'}; read again, decide again"
    )


def _head_too_large(_operation: Any, detail: str, _first: int) -> Magent2Error:
    topic, size = orjson.loads(detail)
    return HeadTooLarge(head_too_large(topic, size))


_REFUSALS: dict[str, Callable[[Any, str, int], Magent2Error]] = {
    "fenced": _fenced,
    "counter": _counter_gap,
    "conflict": _id_conflict,
    "deleted": _deleted,
    "last": _other_last,
    "head": _other_head,
    "blob": _blob_missing,
    "size": _head_too_large,
}
