"""Moving house: the whole log as rows of the neutral form, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

from magent2.bus.operations import Dump, DumpRow, Info, Load
from magent2.bus.records import MailRef, NewRecord, canonical, decode_object
from magent2.bus.sqlite_engine.reads import COLUMNS, decode, info, mail_ref
from magent2.bus.sqlite_engine.schema import SCHEMA
from magent2.bus.sqlite_engine.sort import CHAT, CONTROL, inbox, save_inbox
from magent2.bus.sqlite_engine.state import (
    SEQ_BITS,
    SEQ_MASK,
    State,
    View,
    pack_seqs,
    record_row,
    rid_of,
    unpack_seqs,
)
from magent2.errors import InvalidInput, MalformedRecord, NotEmpty, SchemaTooNew

DUMP_BYTES = 4 << 20  # about how much one chunk of a dump may hold

Cells = tuple[Any, ...]


# --- out ---


def dump(view: View, operation: Dump) -> tuple[tuple[DumpRow, ...], str | None]:
    section, _, position = operation.cursor.partition(":")
    names = list(_SECTIONS)
    if section and section not in names:
        raise InvalidInput(f"{operation.cursor!r} is not a cursor of a dump; start with none")
    rows: list[DumpRow] = []
    room = DUMP_BYTES
    for name in names[names.index(section) if section else 0 :]:
        sql, start, shape = _SECTIONS[name]
        for cells in view.connection.execute(sql, (_position(start, position),)):
            if len(rows) >= operation.limit or room <= 0:
                return tuple(rows), f"{name}:{position}"
            rows.append(shape(view, cells))
            position = str(cells[0])
            room -= sum(len(cell) for cell in cells if isinstance(cell, bytes | str))
        position = ""
    return tuple(rows), None


def _position(start: int | str, position: str) -> int | str:
    if not position:
        return start
    return int(position) if isinstance(start, int) else position


def _log_row(view: View, _cells: Cells) -> DumpRow:
    facts = info(view, Info())
    return {"kind": "log", "log_id": facts.log_id, "schema": facts.schema, "release": facts.release}


def _blob_row(_view: View, cells: Cells) -> DumpRow:
    name, at_ms, data = cells
    return {"kind": "blob", "name": name, "at_ms": at_ms, "data": base64.b64encode(data).decode()}


def _topic_row(_view: View, cells: Cells) -> DumpRow:
    _, name, last, floor, deleted, head, active_ms = cells
    return {
        "kind": "topic", "topic": name, "last": last, "floor": floor, "deleted": bool(deleted),
        "head": decode_object(head), "active_ms": active_ms,
    }  # fmt: skip


def _record_row(view: View, cells: Cells) -> DumpRow:
    topic = _topic_name(view, cells[0])
    try:
        record = decode(topic, cells)
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedRecord(topic, cells[0] & SEQ_MASK, str(error)) from error
    return {
        "kind": "record", "topic": topic, "seq": record.seq, "id": cells[1] or None, "at_ms": record.at_ms,
        "payload": None if record.erased else record.payload, "headers": dict(record.headers), "draft": record.draft,
        "closes": record.closes, "blobs": list(record.blobs),
    }  # fmt: skip


def _id_row(view: View, cells: Cells) -> DumpRow:
    rid, record_id, digest, answer = cells
    seq = rid & SEQ_MASK
    return {
        "kind": "id", "topic": _topic_name(view, rid), "id": record_id, "seq": seq, "digest": digest,
        "answer": list(unpack_seqs(answer)) or [seq],
    }  # fmt: skip


def _topic_name(view: View, rid: int) -> str:
    return str(view.all("SELECT name FROM topics WHERE tid = ?", rid >> SEQ_BITS)[0][0])


def _inbox_row(_view: View, cells: Cells) -> DumpRow:
    agent, chat, control = cells
    return {"kind": "inbox", "agent": agent, "chat": chat, "control": control}


def _lane_row(view: View, cells: Cells) -> DumpRow:
    lid, agent, conversation, attempt, due_ms, parked = cells
    mail = view.all("SELECT chat, seq FROM mail WHERE lid = ? ORDER BY chat, seq", lid)
    return {
        "kind": "lane", "agent": agent, "conversation": conversation,
        "mail": [list(mail_ref(agent, chat, seq)) for chat, seq in mail], "attempt": attempt, "due_ms": due_ms,
        "parked": bool(parked),
    }  # fmt: skip


# Where each section starts, and what follows a position; the first column is the position.
_SECTIONS: dict[str, tuple[str, int | str, Callable[[View, Cells], DumpRow]]] = {
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


# --- in ---


def load(state: State, operation: Load) -> None:
    if operation.first:
        _check_empty(state)
    for write in [_parse(row) for row in operation.rows]:
        write(state)


def _check_empty(state: State) -> None:
    state.flush()
    for table in ("topics", "blobs", "lanes"):
        if state.one(f"SELECT 1 FROM {table} LIMIT 1") is not None:  # noqa: S608 - three constants
            raise NotEmpty("the log has content already; load into a fresh one")


def _parse(row: DumpRow) -> Callable[[State], None]:
    """What the row asks for. All rows are read before the first is written."""
    kind = row.get("kind")
    parser = _PARSERS.get(str(kind))
    if parser is None:
        raise InvalidInput(f"a row of kind {kind!r} is not part of a dump")
    try:
        return parser(row)
    except (KeyError, TypeError, binascii.Error) as error:
        raise InvalidInput(
            f"a row of kind {kind!r} is damaged ({type(error).__name__}: {error}); dump again"
        ) from error


def _parse_log(row: DumpRow) -> Callable[[State], None]:
    if int(row["schema"]) > SCHEMA:
        raise SchemaTooNew(f"the dump has schema {row['schema']}, this release knows {SCHEMA}; upgrade magent2")
    log_id = str(row["log_id"])

    def write(state: State) -> None:
        state.connection.execute("UPDATE meta SET value = ? WHERE key = 'log_id'", (log_id,))

    return write


def _parse_blob(row: DumpRow) -> Callable[[State], None]:
    values = (str(row["name"]), int(row["at_ms"]), base64.b64decode(row["data"], validate=True))

    def write(state: State) -> None:
        state.connection.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", values)

    return write


def _parse_topic(row: DumpRow) -> Callable[[State], None]:
    name, last, floor = str(row["topic"]), int(row["last"]), int(row["floor"])
    deleted, active_ms = bool(row["deleted"]), int(row["active_ms"])
    head = {str(field): canonical(value) for field, value in row["head"].items()}

    def write(state: State) -> None:
        topic = state.topic(name)
        state.reshape(topic)
        topic.last, topic.floor, topic.deleted = max(topic.last, last), max(topic.floor, floor), deleted
        topic.head, topic.active_ms = head, active_ms

    return write


def _parse_record(row: DumpRow) -> Callable[[State], None]:
    erased = row["payload"] is None
    record = NewRecord(
        str(row["topic"]),
        row["payload"] or {},
        row["id"],
        row["headers"],
        row["draft"],
        row["closes"],
        tuple(row["blobs"]),
    )
    seq, at_ms = int(row["seq"]), int(row["at_ms"])

    def write(state: State) -> None:
        topic = state.topic(record.topic)
        state.reshape(topic)
        topic.last = max(topic.last, seq)
        rid = rid_of(topic.tid, seq)
        state.connection.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", record_row(rid, record, at_ms)
        )
        if erased:
            state.connection.execute("UPDATE records SET payload = NULL, lane = '' WHERE rid = ?", (rid,))
        state.refer(rid, record.blobs)

    return write


def _parse_id(row: DumpRow) -> Callable[[State], None]:
    name, record_id, seq = str(row["topic"]), str(row["id"]), int(row["seq"])
    digest = str(row["digest"])
    seqs = [int(value) for value in row["answer"]]
    answer = pack_seqs(seqs) if len(seqs) > 1 else ""

    def write(state: State) -> None:
        topic = state.topic(name)
        if not topic.tid:
            state.reshape(topic)
        rid = rid_of(topic.tid, seq)
        sql = "UPDATE records SET digest = ?, answer = ? WHERE rid = ? AND id = ?"
        if not state.connection.execute(sql, (digest, answer, rid, record_id)).rowcount:
            values = (rid, record_id, digest, answer)
            state.connection.execute("INSERT OR REPLACE INTO old_ids VALUES (?, ?, ?, ?)", values)
        state.connection.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (state.id_key(topic.tid, record_id), seq))

    return write


def _parse_inbox(row: DumpRow) -> Callable[[State], None]:
    agent, chat, control = str(row["agent"]), int(row["chat"]), int(row["control"])

    def write(state: State) -> None:
        cursors = list(inbox(state, agent))
        cursors[CHAT], cursors[CONTROL] = chat, control
        save_inbox(state, agent, cursors)

    return write


def _parse_lane(row: DumpRow) -> Callable[[State], None]:
    agent, conversation, attempt = str(row["agent"]), str(row["conversation"]), int(row["attempt"])
    parked, due_ms = bool(row["parked"]), None if row["due_ms"] is None else int(row["due_ms"])
    mail = [MailRef(str(topic), int(seq)) for topic, seq in row["mail"]]

    def write(state: State) -> None:
        ready = None if parked or due_ms is not None or not mail else state.back()
        lid = state.all(
            "INSERT INTO lanes (conversation, agent, attempt, since_ms, ready, due_ms, parked)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (conversation, agent) DO UPDATE SET attempt = excluded.attempt, ready = excluded.ready,"
            " due_ms = excluded.due_ms, parked = excluded.parked RETURNING lid",
            *(conversation, agent, attempt, state.now_ms, ready, due_ms, parked),
        )[0][0]
        rows: Iterable[Cells] = [(lid, ref.topic.startswith("chat:"), ref.seq) for ref in mail]
        state.connection.executemany("INSERT OR IGNORE INTO mail VALUES (?, ?, ?)", rows)

    return write


_PARSERS: dict[str, Callable[[DumpRow], Callable[[State], None]]] = {
    "log": _parse_log,
    "blob": _parse_blob,
    "topic": _parse_topic,
    "record": _parse_record,
    "id": _parse_id,
    "inbox": _parse_inbox,
    "lane": _parse_lane,
}
