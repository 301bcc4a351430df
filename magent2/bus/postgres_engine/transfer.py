"""Export and import: the whole log as rows that no engine is specific to, and back.

A dump goes through the tables in a fixed order, each by its key, so a cursor is the name of a section and the last key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from magent2.bus.dump_rows import log_id_of, parse_row, record_of
from magent2.bus.operations import DUMP_CHUNK_BYTES, DUMP_SCHEMA, Dump, DumpRow, Load
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import COLUMNS, decode, rows
from magent2.bus.records import canonical
from magent2.errors import InvalidInput, MalformedRecord, NotEmpty
from magent2.models.address import chat_topic, control_topic

BLOBS_PER_PAGE = 4  # a blob may be as large as several chunks


# --- export ---


def dump(connection: Connection, operation: Dump) -> tuple[tuple[DumpRow, ...], str | None]:
    section, _, position = operation.cursor.partition(":")
    names = list(_SECTIONS)
    if section and section not in names:
        raise InvalidInput(f"{operation.cursor!r} is not a cursor of a dump; start without a cursor")
    chunk = _Chunk(operation.limit)
    for name in names[names.index(section) if section else 0 :]:
        key = _dump_section(connection, name, position, chunk)
        if key is not None:
            return tuple(chunk.rows), f"{name}:{key}"
        position = ""
    return tuple(chunk.rows), None


@dataclass(slots=True)
class _Chunk:
    """Rows of a dump, up to a number and a size."""

    limit: int
    rows: list[DumpRow] = field(default_factory=list)
    room: int = DUMP_CHUNK_BYTES

    def is_full(self) -> bool:
        return len(self.rows) >= self.limit or self.room <= 0


def _dump_section(connection: Connection, name: str, position: str, chunk: _Chunk) -> str | None:
    """Add the rows of a section after a position; return the position to go on from, or `None` at the end."""
    statement, start, row_of = _SECTIONS[name]
    keys = orjson.loads(position) if position else start
    limit = BLOBS_PER_PAGE if name == "blob" else chunk.limit
    while not chunk.is_full():
        page = rows(connection, statement, [*keys, limit])
        for cells in page:
            chunk.rows.append(row_of(*cells))
            chunk.room -= sum(len(cell) for cell in cells if isinstance(cell, bytes | str))
            keys = list(cells[: len(start)])
            if chunk.is_full():
                return orjson.dumps(keys).decode()
        if len(page) < limit:
            return None
    return orjson.dumps(keys).decode()


def _log_row(_key: int, log_id: str, release: str) -> DumpRow:
    return {"kind": "log", "log_id": log_id, "schema": DUMP_SCHEMA, "release": release}


def _blob_row(name: str, at_ms: int, data: bytes) -> DumpRow:
    return {"kind": "blob", "name": name, "at_ms": at_ms, "data": base64.b64encode(data).decode()}


def _topic_row(
    _tid: int, name: str, last: int, floor: int, deleted: bool, head: dict[str, str], active_ms: int
) -> DumpRow:
    fields = {field: orjson.loads(text) for field, text in head.items()}
    return {
        "kind": "topic", "topic": name, "last": last, "floor": floor, "deleted": deleted, "head": fields,
        "active_ms": active_ms,
    }  # fmt: skip


def _record_row(_tid: int, _seq: int, topic: str, *cells: Any) -> DumpRow:
    try:
        record = decode(topic, cells)
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedRecord(topic, cells[0], str(error)) from error
    return {
        "kind": "record", "topic": topic, "seq": record.seq, "id": cells[1], "at_ms": record.at_ms,
        "payload": None if record.erased else record.payload, "headers": dict(record.headers), "draft": record.draft,
        "closes": record.closes, "blobs": list(record.blobs),
    }  # fmt: skip


def _id_row(_tid: int, seq: int, topic: str, record_id: str, digest: str, answer: list[int] | None) -> DumpRow:
    return {"kind": "id", "topic": topic, "id": record_id, "seq": seq, "digest": digest, "answer": answer or [seq]}


def _inbox_row(agent: str, chat: int, control: int) -> DumpRow:
    return {"kind": "inbox", "agent": agent, "chat": chat, "control": control}


def _lane_row(
    _lid: int, agent: str, conversation: str, attempt: int, due_ms: int | None, parked: bool, mail: list[list[Any]]
) -> DumpRow:
    return {
        "kind": "lane", "agent": agent, "conversation": conversation,
        "mail": [[chat_topic(agent) if chat else control_topic(agent), seq] for chat, seq in mail], "attempt": attempt,
        "due_ms": due_ms, "parked": parked,
    }  # fmt: skip


# Section → (query for the rows after a key, the key to start from, the function that makes a row). The first columns of
# each query are the key of its row.
_SECTIONS: dict[str, tuple[str, list[Any], Callable[..., DumpRow]]] = {
    "log": (
        "SELECT 1, (SELECT value FROM meta WHERE key = 'log_id'), (SELECT value FROM meta WHERE key = 'release')"
        " WHERE 1 > %s::bigint LIMIT %s",
        [0],
        _log_row,
    ),
    "blob": ("SELECT name, at_ms, data FROM blobs WHERE name > %s ORDER BY name LIMIT %s", [""], _blob_row),
    "topic": (
        "SELECT tid, name, last, floor, deleted, head, active_ms FROM topics WHERE tid > %s ORDER BY tid LIMIT %s",
        [0],
        _topic_row,
    ),
    "record": (
        f"SELECT r.tid, r.seq, t.name, {', '.join(f'r.{column}' for column in COLUMNS.split(', '))} FROM records r"  # noqa: S608
        " JOIN topics t ON t.tid = r.tid WHERE (r.tid, r.seq) > (%s, %s) ORDER BY r.tid, r.seq LIMIT %s",
        [0, 0],
        _record_row,
    ),
    "id": (
        "SELECT r.tid, r.seq, t.name, r.id, r.digest, r.answer FROM records r JOIN topics t ON t.tid = r.tid"
        " WHERE (r.tid, r.seq) > (%s, %s) AND r.id IS NOT NULL ORDER BY r.tid, r.seq LIMIT %s",
        [0, 0],
        _id_row,
    ),
    "old": (
        "SELECT o.tid, o.seq, t.name, o.id, o.digest, o.answer FROM old_ids o JOIN topics t ON t.tid = o.tid"
        " WHERE (o.tid, o.seq) > (%s, %s) ORDER BY o.tid, o.seq LIMIT %s",
        [0, 0],
        _id_row,
    ),
    "inbox": ("SELECT agent, chat, control FROM inboxes WHERE agent > %s ORDER BY agent LIMIT %s", [""], _inbox_row),
    "lane": (
        "SELECT l.lid, l.agent, l.conversation, l.attempt, l.due_ms - c.ahead_ms, l.parked,"
        " (SELECT json_agg(json_build_array(m.chat, m.seq) ORDER BY m.chat, m.seq) FROM mail m WHERE m.lid = l.lid)"
        " FROM lanes l CROSS JOIN clock c WHERE l.lid > %s"
        " AND EXISTS (SELECT 1 FROM mail m WHERE m.lid = l.lid) ORDER BY l.lid LIMIT %s",
        [0],
        _lane_row,
    ),
}


# --- import ---


def load(connection: Connection, operation: Load) -> None:
    writes = [parse_row(row, _PARSERS) for row in operation.rows]  # all before the first write
    with connection.transaction():
        # Another process must not append between the check and the first rows.
        connection.execute("LOCK TABLE topics IN SHARE ROW EXCLUSIVE MODE")
        if operation.first:
            for table in ("topics", "blobs", "lanes"):
                if rows(connection, f"SELECT 1 FROM {table} LIMIT 1"):  # noqa: S608 - three constants
                    raise NotEmpty("the log has content already; load into an empty one")
        for write in writes:
            write(connection)


Writer = Callable[[Connection], object]


def _execute(statement: str, *values: object) -> Writer:
    return lambda connection: connection.execute(statement, values, prepare=True)


def _parse_log(row: DumpRow) -> Writer:
    return _execute("UPDATE meta SET value = %s WHERE key = 'log_id'", log_id_of(row))


def _parse_blob(row: DumpRow) -> Writer:
    data = base64.b64decode(row["data"], validate=True)
    return _execute(
        "INSERT INTO blobs VALUES (%s, %s, %s) ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms",
        str(row["name"]),
        int(row["at_ms"]),
        data,
    )


def _parse_topic(row: DumpRow) -> Writer:
    head = {str(field): canonical(value) for field, value in row["head"].items()}
    owner = row["head"].get("owner")
    return _execute(
        "INSERT INTO topics AS o (name, last, floor, deleted, head, owner, active_ms, version)"
        " VALUES (%s, %s, %s, %s, %s::jsonb, %s, greatest(1, %s), 1) ON CONFLICT (name) DO UPDATE"
        " SET last = greatest(o.last, excluded.last), floor = greatest(o.floor, excluded.floor),"
        " deleted = excluded.deleted, head = excluded.head, owner = excluded.owner, active_ms = excluded.active_ms,"
        " version = o.version + 1",
        str(row["topic"]),
        int(row["last"]),
        int(row["floor"]),
        bool(row["deleted"]),
        orjson.dumps(head).decode(),
        None if owner is None else str(owner),
        int(row["active_ms"]),
    )


_TOPIC_FOR_ROW = (
    "INSERT INTO topics AS o (name, last, active_ms, version) VALUES (%s, %s, 1, 1) ON CONFLICT (name) DO UPDATE"
    " SET last = greatest(o.last, excluded.last) RETURNING tid"
)
_INSERT_RECORD = (
    "INSERT INTO records (tid, seq, at_ms, id, digest, headers, lane, copy, draft, closes, blobs, payload)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (tid, seq) DO NOTHING"
)


def _parse_record(row: DumpRow) -> Writer:
    erased = row["payload"] is None
    record = record_of(row)
    seq, at_ms = int(row["seq"]), int(row["at_ms"])

    def write(connection: Connection) -> None:
        ((tid,),) = rows(connection, _TOPIC_FOR_ROW, (record.topic, seq))
        cells = (
            tid,
            seq,
            at_ms,
            record.id,
            record.digest or None,
            record.header_text.decode() or None,
            None if erased else record.lane,
            record.copy or None,
            record.draft,
            record.closes,
            ",".join(record.blobs) or None,
            None if erased else record.body.decode(),
        )
        connection.execute(_INSERT_RECORD, cells, prepare=True)
        for name in set(record.blobs):
            connection.execute("INSERT INTO blob_refs VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (tid, seq, name))

    return write


def _parse_id(row: DumpRow) -> Writer:
    name, record_id, seq, digest = str(row["topic"]), str(row["id"]), int(row["seq"]), str(row["digest"])
    seqs = [int(value) for value in row["answer"]]
    answer = orjson.dumps(seqs).decode() if len(seqs) > 1 else None

    def write(connection: Connection) -> None:
        ((tid,),) = rows(connection, _TOPIC_FOR_ROW, (name, 0))
        statement = "UPDATE records SET digest = %s, answer = %s::jsonb WHERE tid = %s AND seq = %s AND id = %s"
        if not connection.execute(statement, (digest, answer, tid, seq, record_id), prepare=True).rowcount:
            connection.execute(
                "INSERT INTO old_ids (tid, seq, id, digest, answer) VALUES (%s, %s, %s, %s, %s::jsonb)"
                " ON CONFLICT DO NOTHING",
                (tid, seq, record_id, digest, answer),
                prepare=True,
            )

    return write


def _parse_inbox(row: DumpRow) -> Writer:
    return _execute(
        "INSERT INTO inboxes (agent, chat, control) VALUES (%s, %s, %s)"
        " ON CONFLICT (agent) DO UPDATE SET chat = excluded.chat, control = excluded.control",
        str(row["agent"]),
        int(row["chat"]),
        int(row["control"]),
    )


def _parse_lane(row: DumpRow) -> Writer:
    agent, conversation, attempt = str(row["agent"]), str(row["conversation"]), int(row["attempt"])
    parked, due_ms = bool(row["parked"]), None if row["due_ms"] is None else int(row["due_ms"])
    mail: Iterable[tuple[bool, int]] = [(str(topic).startswith("chat:"), int(seq)) for topic, seq in row["mail"]]

    def write(connection: Connection) -> None:
        ((lid,),) = rows(
            connection,
            render(
                "INSERT INTO lanes (conversation, agent, attempt, since_ms, due_ms, parked)"
                " VALUES (%s, %s, %s, now_ms$v(), %s::bigint + (SELECT ahead_ms FROM clock), %s)"
                " ON CONFLICT (conversation, agent) DO UPDATE SET attempt = excluded.attempt, ready = NULL,"
                " due_ms = excluded.due_ms, parked = excluded.parked RETURNING lid"
            ),
            (conversation, agent, attempt, due_ms, parked),
        )
        for chat, seq in mail:
            connection.execute("INSERT INTO mail VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (lid, chat, seq))
        if mail and not parked and due_ms is None:
            rows(connection, render("SELECT make_ready$v(ARRAY[%s::bigint], ARRAY[nextval('ready_back')])"), (lid,))

    return write


_PARSERS: dict[str, Callable[[DumpRow], Writer]] = {
    "log": _parse_log,
    "blob": _parse_blob,
    "topic": _parse_topic,
    "record": _parse_record,
    "id": _parse_id,
    "inbox": _parse_inbox,
    "lane": _parse_lane,
}
