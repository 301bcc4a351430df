"""Read operations. Each is one statement, so it sees one moment of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from magent2.bus.operations import OLDEST, Describe, Find, GetBlob, Read, Topics
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.records import Page, Record, TopicInfo, TopicList, assigned_seq, decode_object
from magent2.errors import BlobMissing, MalformedRecord, UnknownCursor
from magent2.models.address import kind_prefix

COLUMNS = "seq, id, at_ms, headers, draft, closes, blobs, payload"
_STATE = (
    "SELECT t.last, t.floor, t.deleted, {cursor} AS cursor, r.* FROM topics t"
    " LEFT JOIN LATERAL ({records}) AS r ON true WHERE t.name = %(topic)s"
)
_RECORDS = f"SELECT {COLUMNS} FROM records WHERE tid = t.tid AND "  # noqa: S608
_SEQ_OF_ID = "(SELECT k.seq FROM records k WHERE k.tid = t.tid AND k.id = %(after)s)"
_NEWEST = _STATE.format(cursor="t.floor", records=_RECORDS + "seq < %(before)s ORDER BY seq DESC LIMIT %(limit)s")
_AFTER = _STATE.format(cursor="%(after)s::bigint", records=_RECORDS + "seq > %(after)s ORDER BY seq LIMIT %(limit)s")
_OLDEST = _STATE.format(cursor="t.floor", records=_RECORDS + "seq > t.floor ORDER BY seq LIMIT %(limit)s")
_AFTER_ID = _STATE.format(
    cursor=_SEQ_OF_ID,
    records=_RECORDS + f"seq > {_SEQ_OF_ID} ORDER BY seq LIMIT %(limit)s",
)
_FIND = f"SELECT {COLUMNS} FROM records WHERE tid = (SELECT tid FROM topics WHERE name = %s) AND "  # noqa: S608
_TOPIC_COLUMNS = "name, last, floor, deleted, head, active_ms"
_DESCRIBE = f"SELECT {_TOPIC_COLUMNS} FROM topics WHERE name = ANY (%s::text[]) AND active_ms > 0"  # noqa: S608
_LIST = (
    f"SELECT {_TOPIC_COLUMNS} FROM topics WHERE NOT deleted AND active_ms > 0 AND {{wanted}}"  # noqa: S608
    " ORDER BY active_ms DESC, name DESC LIMIT %(limit)s"
)
# The kinds of all listed topics. Each step looks up the next kind in the index; DISTINCT would read the whole index.
_KINDS = (
    "WITH RECURSIVE kinds (kind) AS ("
    "SELECT min(kind) FROM topics WHERE NOT deleted AND active_ms > 0 UNION ALL"
    " SELECT (SELECT min(t.kind) FROM topics t WHERE NOT t.deleted AND t.active_ms > 0 AND t.kind > kinds.kind)"
    " FROM kinds"
    " WHERE kinds.kind IS NOT NULL) SELECT kind FROM kinds WHERE kind IS NOT NULL"
)
_OF_KIND = "kind = %(wanted)s"
_OF_PREFIX = "name >= %(wanted)s AND name < %(wanted)s || %(after_all)s"
_SEQ_MAX = 2**62
_AFTER_ALL_NAMES = "\U0010ffff"  # sorts after every character of a name: names are printable, and this one is not

SqlRow = tuple[Any, ...]


def rows(connection: Connection, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[SqlRow]:
    """Run a statement that is prepared on the server, and return its rows."""
    return connection.execute(statement, values or None, prepare=True).fetchall()


def decode(topic: str, row: Sequence[Any]) -> Record:
    """Decode a stored row; raises `ValueError` for a row that was not written by this engine."""
    seq, record_id, at_ms, headers, draft, closes, blobs, payload = row
    return Record(
        topic,
        {} if payload is None else decode_object(payload),
        record_id or "",
        seq,
        at_ms,
        decode_object(headers) if headers else None,
        draft,
        closes,
        tuple(blobs.split(",")) if blobs else (),
        payload is None,
        size_bytes=0 if payload is None else len(payload.encode()),
    )


def decode_until_malformed(topic: str, found: Iterable[Sequence[Any]]) -> tuple[Record, ...]:
    records: list[Record] = []
    for row in found:
        try:
            records.append(decode(topic, row))
        except (ValueError, TypeError, AttributeError) as error:
            if records:
                break
            raise MalformedRecord(topic, row[0], str(error)) from error
    return tuple(records)


def read(connection: Connection, operation: Read) -> Page:
    after = operation.after
    if isinstance(after, str) and (seq := assigned_seq(after)) is not None:
        after = seq
    before = _SEQ_MAX if operation.before is None else operation.before
    values = {"topic": operation.topic, "after": after, "before": before, "limit": operation.limit}
    found = rows(connection, _page_statement(after), values)
    last, floor, deleted, cursor = found[0][:4] if found else (0, 0, False, None if isinstance(after, str) else after)
    if deleted:  # before the cursor is checked: a follower with an old cursor has to learn that the topic is gone
        return Page((), last, floor, True)
    if after not in (None, OLDEST):
        _check_cursor(operation, cursor, floor, last)
    listed = [row[4:] for row in found if row[4] is not None]
    if after is None:
        listed.reverse()
    return Page(decode_until_malformed(operation.topic, listed), last, floor, False)


def _page_statement(after: int | str | None) -> str:
    if after is None:
        return _NEWEST
    if isinstance(after, str):
        return _AFTER_ID
    return _OLDEST if after == OLDEST else _AFTER


def _check_cursor(operation: Read, cursor: int | None, floor: int, last: int) -> None:
    if cursor is None:
        raise UnknownCursor(
            f"{operation.topic!r} has no record with id {operation.after!r}; start over with after=OLDEST"
        )
    if not floor <= cursor <= last:
        raise UnknownCursor(
            f"{operation.topic!r} has records {floor + 1} to {last}, nothing at cursor {operation.after!r};"
            " start over with after=OLDEST"
        )


def find(connection: Connection, operation: Find) -> Record | None:
    seq = assigned_seq(operation.id)
    if seq is None:
        found = rows(connection, _FIND + "id = %s", (operation.topic, operation.id))
    else:
        found = rows(connection, _FIND + "seq = %s", (operation.topic, seq))
    return decode_until_malformed(operation.topic, found)[0] if found else None


def describe(connection: Connection, operation: Describe) -> tuple[TopicInfo, ...]:
    found = {row[0]: _topic_info(*row) for row in rows(connection, _DESCRIBE, (list(operation.topics),))}
    return tuple(found.get(topic) or TopicInfo(topic) for topic in operation.topics)


def _topic_info(name: str, last: int, floor: int, deleted: bool, head: Mapping[str, str], active_ms: int) -> TopicInfo:
    fields = decode_object("{" + ",".join(f'"{field}":{text}' for field, text in head.items()) + "}")
    return TopicInfo(name, last, floor, deleted, fields, active_ms)


def topics(connection: Connection, operation: Topics) -> TopicList:
    """List topics at a cost that depends on the page, not on the number of topics.

    A kind is read from its index, which has the order of the list. Topics below a longer prefix are found by name and
    sorted: the cost is the number of topics with that prefix. A prefix without a colon takes a page of every kind.
    """
    prefix = operation.prefix
    if ":" in prefix:
        found = _topic_rows(connection, operation, _OF_KIND if kind_prefix(prefix) == prefix else _OF_PREFIX, prefix)
    else:
        found = _topic_rows(connection, operation, f"kind = '' AND {_OF_PREFIX}", prefix)
        for (kind,) in rows(connection, _KINDS):
            if kind and kind.startswith(prefix):
                found += _topic_rows(connection, operation, _OF_KIND, kind)
        found.sort(key=lambda row: (row[5], row[0]), reverse=True)
    listed = tuple(_topic_info(*row) for row in found[: operation.limit])
    more = len(found) > operation.limit
    return TopicList(listed, (listed[-1].active_ms, listed[-1].topic) if more else None)


def _topic_rows(connection: Connection, operation: Topics, wanted: str, value: str) -> list[SqlRow]:
    """Return the rows of one page and one more, which tells whether there is a next page."""
    values: dict[str, object] = {"wanted": value, "after_all": _AFTER_ALL_NAMES, "limit": operation.limit + 1}
    if operation.owner is not None:
        wanted += " AND owner = %(owner)s"
        values["owner"] = operation.owner
    if operation.before is not None:
        wanted += " AND (active_ms, name) < (%(before_ms)s, %(before_name)s)"
        values["before_ms"], values["before_name"] = operation.before
    return rows(connection, _LIST.format(wanted=wanted), values)


def get_blob(connection: Connection, operation: GetBlob) -> bytes:
    found = rows(connection, "SELECT data FROM blobs WHERE name = %s", (operation.name,))
    if not found:
        raise BlobMissing(
            f"there is no blob {operation.name}; it was never put, or it was swept because no record named it"
        )
    return bytes(found[0][0])
