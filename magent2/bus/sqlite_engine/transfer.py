"""Export and import: the whole log as rows that no engine is specific to, and back.

A dump goes through the tables in a fixed order, each by its key, so a cursor is the name of a section and the last key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

from magent2.bus.dump_rows import log_id_of, parse_row, record_of
from magent2.bus.operations import DUMP_CHUNK_BYTES, DUMP_SCHEMA, Dump, DumpRow, Info, Load
from magent2.bus.records import MailRef, canonical, decode_object
from magent2.bus.sqlite_engine.connection import (
    SEQ_BITS,
    SEQ_MASK,
    ReadConnection,
    SqlRow,
    WriteConnection,
    pack_seqs,
    record_row,
    rid_of,
    unpack_seqs,
)
from magent2.bus.sqlite_engine.lane_intake import CHAT, CONTROL, intake_cursors, save_intake_cursors
from magent2.bus.sqlite_engine.reads import COLUMNS, decode, info
from magent2.errors import InvalidInput, MalformedRecord, NotEmpty
from magent2.models.address import chat_topic, control_topic

# --- export ---


def dump(db: ReadConnection, operation: Dump) -> tuple[tuple[DumpRow, ...], str | None]:
    section, _, position = operation.cursor.partition(":")
    names = list(_SECTIONS)
    if section and section not in names:
        raise InvalidInput(f"{operation.cursor!r} is not a cursor of a dump; start without a cursor")
    rows: list[DumpRow] = []
    room = DUMP_CHUNK_BYTES
    for name in names[names.index(section) if section else 0 :]:
        sql, start, shape = _SECTIONS[name]
        for cells in db.execute(sql, (type(start)(position) if position else start,)):
            if len(rows) >= operation.limit or room <= 0:
                return tuple(rows), f"{name}:{position}"
            rows.append(shape(db, cells))
            position = str(cells[0])
            room -= sum(len(cell) for cell in cells if isinstance(cell, bytes | str))
        position = ""
    return tuple(rows), None


def _log_row(db: ReadConnection, _cells: SqlRow) -> DumpRow:
    facts = info(db, Info())
    return {"kind": "log", "log_id": facts.log_id, "schema": DUMP_SCHEMA, "release": facts.release}


def _blob_row(_db: ReadConnection, cells: SqlRow) -> DumpRow:
    name, at_ms, data = cells
    return {"kind": "blob", "name": name, "at_ms": at_ms, "data": base64.b64encode(data).decode()}


def _topic_row(_db: ReadConnection, cells: SqlRow) -> DumpRow:
    _, name, last, floor, deleted, head, active_ms = cells
    return {
        "kind": "topic", "topic": name, "last": last, "floor": floor, "deleted": bool(deleted),
        "head": decode_object(head), "active_ms": active_ms,
    }  # fmt: skip


def _record_row(db: ReadConnection, cells: SqlRow) -> DumpRow:
    topic = _topic_name(db, cells[0])
    try:
        record = decode(topic, cells)
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedRecord(topic, cells[0] & SEQ_MASK, str(error)) from error
    return {
        "kind": "record", "topic": topic, "seq": record.seq, "id": cells[1] or None, "at_ms": record.at_ms,
        "payload": None if record.erased else record.payload, "headers": dict(record.headers), "draft": record.draft,
        "closes": record.closes, "blobs": list(record.blobs),
    }  # fmt: skip


def _id_row(db: ReadConnection, cells: SqlRow) -> DumpRow:
    rid, record_id, digest, answer = cells
    seq = rid & SEQ_MASK
    return {
        "kind": "id", "topic": _topic_name(db, rid), "id": record_id, "seq": seq, "digest": digest,
        "answer": list(unpack_seqs(answer)) or [seq],
    }  # fmt: skip


def _topic_name(db: ReadConnection, rid: int) -> str:
    return str(db.all("SELECT name FROM topics WHERE tid = ?", rid >> SEQ_BITS)[0][0])


def _inbox_row(_db: ReadConnection, cells: SqlRow) -> DumpRow:
    agent, chat, control = cells
    return {"kind": "inbox", "agent": agent, "chat": chat, "control": control}


def _lane_row(db: ReadConnection, cells: SqlRow) -> DumpRow:
    lid, agent, conversation, attempt, due_ms, parked = cells
    mail = db.all("SELECT chat, seq FROM mail WHERE lid = ? ORDER BY chat, seq", lid)
    return {
        "kind": "lane", "agent": agent, "conversation": conversation,
        "mail": [[chat_topic(agent) if chat else control_topic(agent), seq] for chat, seq in mail], "attempt": attempt,
        "due_ms": None if due_ms is None else due_ms + db.wall_offset_ms(),
        "parked": bool(parked),
    }  # fmt: skip


# Section → (query for the rows after a position, the position to start from, the function that makes a row).
# The first column of each query is the position of its row.
_SECTIONS: dict[str, tuple[str, int | str, Callable[[ReadConnection, SqlRow], DumpRow]]] = {
    "log": ("SELECT 1 WHERE 1 > ?", 0, _log_row),
    "blob": ("SELECT name, at_ms, data FROM blobs WHERE name > ? ORDER BY name", "", _blob_row),
    "topic": (
        "SELECT tid, name, last, floor, deleted, head, active_ms FROM topics WHERE tid > ? ORDER BY tid",
        0,
        _topic_row,
    ),
    "record": (f"SELECT {COLUMNS} FROM records WHERE rid > ? ORDER BY rid", 0, _record_row),  # noqa: S608
    "id": ("SELECT rid, id, digest, answer FROM records WHERE rid > ? AND id <> '' ORDER BY rid", 0, _id_row),
    "old": ("SELECT rid, id, digest, answer FROM old_ids WHERE rid > ? ORDER BY rid", 0, _id_row),
    "inbox": ("SELECT agent, chat, control FROM inboxes WHERE agent > ? ORDER BY agent", "", _inbox_row),
    "lane": (
        "SELECT lid, agent, conversation, attempt, due_ms, parked FROM lanes WHERE lid > ?"
        " AND EXISTS (SELECT 1 FROM mail WHERE mail.lid = lanes.lid) ORDER BY lid",
        0,
        _lane_row,
    ),
}


# --- import ---


def load(db: WriteConnection, operation: Load) -> None:
    if operation.first:
        db.flush()
        for table in ("topics", "blobs", "lanes"):
            if db.one(f"SELECT 1 FROM {table} LIMIT 1") is not None:  # noqa: S608 - three constants
                raise NotEmpty("the log has content already; load into an empty one")
    for write in [parse_row(row, _PARSERS) for row in operation.rows]:  # all before the first write
        write(db)


def _parse_log(row: DumpRow) -> Callable[[WriteConnection], None]:
    log_id = log_id_of(row)

    def write(db: WriteConnection) -> None:
        db.execute("UPDATE meta SET value = ? WHERE key = 'log_id'", (log_id,))

    return write


def _parse_blob(row: DumpRow) -> Callable[[WriteConnection], None]:
    values = (str(row["name"]), int(row["at_ms"]), base64.b64decode(row["data"], validate=True))

    def write(db: WriteConnection) -> None:
        db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", values)

    return write


def _parse_topic(row: DumpRow) -> Callable[[WriteConnection], None]:
    name, last, floor = str(row["topic"]), int(row["last"]), int(row["floor"])
    deleted, active_ms = bool(row["deleted"]), int(row["active_ms"])
    head = {str(field): canonical(value) for field, value in row["head"].items()}

    def write(db: WriteConnection) -> None:
        topic = db.topic(name)
        db.mark_dirty(topic)
        topic.last, topic.floor, topic.deleted = max(topic.last, last), max(topic.floor, floor), deleted
        topic.head, topic.active_ms = head, active_ms

    return write


def _parse_record(row: DumpRow) -> Callable[[WriteConnection], None]:
    erased = row["payload"] is None
    record = record_of(row)
    seq, at_ms = int(row["seq"]), int(row["at_ms"])

    def write(db: WriteConnection) -> None:
        topic = db.topic(record.topic)
        db.mark_dirty(topic)
        topic.last = max(topic.last, seq)
        rid = rid_of(topic.tid, seq)
        db.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", record_row(rid, record, at_ms)
        )
        if erased:
            db.execute("UPDATE records SET payload = NULL, lane = '' WHERE rid = ?", (rid,))
        db.add_blob_refs(rid, record.blobs)

    return write


def _parse_id(row: DumpRow) -> Callable[[WriteConnection], None]:
    name, record_id, seq = str(row["topic"]), str(row["id"]), int(row["seq"])
    digest = str(row["digest"])
    seqs = [int(value) for value in row["answer"]]
    answer = pack_seqs(seqs) if len(seqs) > 1 else ""

    def write(db: WriteConnection) -> None:
        topic = db.topic(name)
        if not topic.tid:
            db.mark_dirty(topic)
        rid = rid_of(topic.tid, seq)
        sql = "UPDATE records SET digest = ?, answer = ? WHERE rid = ? AND id = ?"
        if not db.execute(sql, (digest, answer, rid, record_id)).rowcount:
            values = (rid, record_id, digest, answer)
            db.execute("INSERT OR REPLACE INTO old_ids VALUES (?, ?, ?, ?)", values)
        db.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (db.id_key(topic.tid, record_id), seq))

    return write


def _parse_inbox(row: DumpRow) -> Callable[[WriteConnection], None]:
    agent, chat, control = str(row["agent"]), int(row["chat"]), int(row["control"])

    def write(db: WriteConnection) -> None:
        cursors = list(intake_cursors(db, agent))
        cursors[CHAT], cursors[CONTROL] = chat, control
        save_intake_cursors(db, agent, cursors)

    return write


def _parse_lane(row: DumpRow) -> Callable[[WriteConnection], None]:
    agent, conversation, attempt = str(row["agent"]), str(row["conversation"]), int(row["attempt"])
    parked, due_ms = bool(row["parked"]), None if row["due_ms"] is None else int(row["due_ms"])
    mail = [MailRef(str(topic), int(seq)) for topic, seq in row["mail"]]

    def write(db: WriteConnection) -> None:
        ready = None if parked or due_ms is not None or not mail else db.next_back()
        due = None
        if due_ms is not None:
            db.store_clock()  # from here on the delay does not depend on the wall clock
            due = due_ms - db.wall_offset_ms()
        lid = db.all(
            "INSERT INTO lanes (conversation, agent, attempt, since_ms, ready, due_ms, parked, principal)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (conversation, agent) DO UPDATE SET attempt = excluded.attempt, ready = excluded.ready,"
            " due_ms = excluded.due_ms, parked = excluded.parked RETURNING lid",
            *(conversation, agent, attempt, db.now_ms, ready, due, parked, db.principal_of(conversation)),
        )[0][0]
        rows: Iterable[SqlRow] = [(lid, ref.topic.startswith("chat:"), ref.seq) for ref in mail]
        db.executemany("INSERT OR IGNORE INTO mail VALUES (?, ?, ?)", rows)

    return write


_PARSERS: dict[str, Callable[[DumpRow], Callable[[WriteConnection], None]]] = {
    "log": _parse_log,
    "blob": _parse_blob,
    "topic": _parse_topic,
    "record": _parse_record,
    "id": _parse_id,
    "inbox": _parse_inbox,
    "lane": _parse_lane,
}
