"""Export and import of a whole log, as the rows that all engines share (`bus/transfer.py`).

An export runs in phases, one per kind of row. Its cursor is JSON: the phase, then the position in it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import orjson

from magent2.bus.operations import DUMP_SCHEMA, OLDEST, Dump, DumpRow, Info, Load, Read
from magent2.bus.records import ASSIGNED_ID_MARK, MailRef, NewRecord, Record, TopicInfo, canonical
from magent2.bus.redis_engine.codec import decode_topic, is_plain, lane_field, mail_members, optional_fields
from magent2.bus.redis_engine.exchanges import Keyspace, read
from magent2.bus.redis_engine.functions import Argument, Exchange, Reply
from magent2.bus.redis_engine.handshake import info
from magent2.errors import InvalidInput, NotEmpty, SchemaTooNew

BLOBS_PER_DUMP = 4
LANES_PER_DUMP = 100

Position: TypeAlias = list[Any]  # JSON, and different in each phase
PositionInTopic: TypeAlias = int | str | None
Step: TypeAlias = tuple[list[DumpRow], Position | None]  # some rows, and where to continue; None ends the phase


# --- export ---------------------------------------------------------------------------------------------------------


def dump(keyspace: Keyspace, op: Dump) -> Exchange[tuple[tuple[DumpRow, ...], str | None]]:
    """Return the next rows of an export, and the cursor to continue with."""
    phase, *at = orjson.loads(op.cursor) if op.cursor else [0]
    rows, position = yield from _PHASES[phase](keyspace, op.limit, at)
    if position is not None:
        return tuple(rows), orjson.dumps([phase, *position]).decode()
    following = phase + 1
    return tuple(rows), orjson.dumps([following]).decode() if following < len(_PHASES) else None


def _dump_log(keyspace: Keyspace, _: int, __: Position) -> Exchange[Step]:
    found = yield from info(keyspace, Info())
    return [{"kind": "log", "log_id": found.log_id, "schema": DUMP_SCHEMA, "release": found.release}], None


def _dump_blobs(keyspace: Keyspace, limit: int, at: Position) -> Exchange[Step]:
    start = at[0] if at else 0
    count = min(limit, BLOBS_PER_DUMP)
    names = yield ("ZRANGE", f"{keyspace.prefix}:blobs", start, start + count - 1)
    rows: list[DumpRow] = []
    for name in names:
        data, put_ms = yield ("HMGET", f"{keyspace.prefix}:b:{name.decode()}", "d", "a")
        if data is not None:
            text = base64.b64encode(data).decode()
            rows.append({"kind": "blob", "name": name.decode(), "at_ms": int(put_ms), "data": text})
    return rows, [start + count] if len(names) == count else None


def _topic_page(keyspace: Keyspace, limit: int, at: Position) -> Exchange[tuple[list[TopicInfo], Position | None]]:
    kind, active, topic = at[:3] if at else ("", "", "")
    found = yield keyspace.fcall("dump_topics", kind, active, topic, limit)
    infos = [decode_topic(described) for _, _, described in found]
    if len(found) < limit:
        return infos, None
    return infos, [found[-1][0].decode(), found[-1][1].decode(), infos[-1].topic]


def _dump_topics(keyspace: Keyspace, limit: int, at: Position) -> Exchange[Step]:
    infos, position = yield from _topic_page(keyspace, limit, at)
    return [_topic_row(found) for found in infos], position


def _topic_row(found: TopicInfo) -> DumpRow:
    return {
        "kind": "topic",
        "topic": found.topic,
        "last": found.last,
        "floor": found.floor,
        "deleted": found.deleted,
        "head": dict(found.head),
        "active_ms": found.active_ms,
    }


TopicStep: TypeAlias = tuple[list[DumpRow], PositionInTopic]
TopicPart: TypeAlias = Callable[[Keyspace, str, PositionInTopic, int], Exchange[TopicStep]]


def _per_topic(keyspace: Keyspace, limit: int, at: Position, part: TopicPart) -> Exchange[Step]:
    """Dump one topic after the other; `at` holds the next position in the topic list, the topic, the position in it."""
    position, topic, inside = at if at else [[], None, None]
    if topic is None:
        infos, position = yield from _topic_page(keyspace, 1, position)
        if not infos:
            return [], None
        topic = infos[0].topic
    rows, inside = yield from part(keyspace, topic, inside, limit)
    if inside is not None:
        return rows, [position, topic, inside]
    return rows, None if position is None else [position, None, None]


def _record_rows(keyspace: Keyspace, topic: str, after: PositionInTopic, limit: int) -> Exchange[TopicStep]:
    page = yield from read(keyspace, Read(topic, OLDEST if after is None else after, limit))
    rows = [_record_row(record) for record in page.records]
    return rows, page.records[-1].seq if len(rows) == limit else None


def _record_row(record: Record) -> DumpRow:
    return {
        "kind": "record",
        "topic": record.topic,
        "seq": record.seq,
        "id": None if record.id.startswith(ASSIGNED_ID_MARK) else record.id,
        "at_ms": record.at_ms,
        "payload": None if record.erased else record.payload,
        "headers": dict(record.headers),
        "draft": record.draft,
        "closes": record.closes,
        "blobs": list(record.blobs),
    }


def _id_rows(keyspace: Keyspace, topic: str, inside: PositionInTopic, limit: int) -> Exchange[TopicStep]:
    following, found = yield ("HSCAN", f"{keyspace.prefix}:i:{topic}", inside or "0", "COUNT", limit)
    rows = [_id_row(topic, *pair) for pair in zip(found[::2], found[1::2], strict=True)]
    return rows, None if following == b"0" else following.decode()


def _id_row(topic: str, record_id: bytes, value: bytes) -> DumpRow:
    seqs, _, digest = value.decode().partition(" ")
    seq, is_key, answer = seqs.partition(":")
    numbers = [int(number) for number in answer.split(",")] if answer else [int(seq)]
    return {
        "kind": "id",
        "topic": topic,
        "id": record_id.decode(),
        "seq": int(seq),
        "digest": digest,
        "answer": numbers if is_key else [],
    }


def _dump_inboxes(keyspace: Keyspace, _: int, __: Position) -> Exchange[Step]:
    rows: list[DumpRow] = []
    for agent in sorted((yield ("SMEMBERS", f"{keyspace.prefix}:agents"))):
        chat, control = yield ("HMGET", f"{keyspace.prefix}:q:{agent.decode()}", "chat", "control")
        rows.append({"kind": "inbox", "agent": agent.decode(), "chat": int(chat or 0), "control": int(control or 0)})
    return rows, None


def _dump_lanes(keyspace: Keyspace, limit: int, at: Position) -> Exchange[Step]:
    agents = sorted(agent.decode() for agent in (yield ("SMEMBERS", f"{keyspace.prefix}:agents")))
    agent, after = at if at else ["", ""]
    waiting = [name for name in agents if name >= agent]
    if not waiting:
        return [], None
    if waiting[0] != agent:
        agent, after = waiting[0], ""
    count = min(limit, LANES_PER_DUMP)
    found = yield keyspace.fcall("dump_lanes", agent, after, count)
    rows = [_lane_row(agent, *lane) for lane in found]
    if len(found) == count:
        return rows, [agent, "=" + rows[-1]["conversation"]]
    return rows, [waiting[1], ""] if len(waiting) > 1 else None


def _lane_row(agent: str, conversation: bytes, mail: Reply, attempt: bytes, due: bytes, parked: int) -> DumpRow:
    return {
        "kind": "lane",
        "agent": agent,
        "conversation": conversation.decode(),
        "mail": [[topic.decode(), int(seq)] for topic, seq in mail],
        "attempt": int(attempt),
        "due_ms": int(float(due)) if due else None,
        "parked": bool(parked),
    }


_PHASES: list[Callable[[Keyspace, int, Position], Exchange[Step]]] = [
    _dump_log,
    _dump_blobs,
    _dump_topics,
    partial(_per_topic, part=_record_rows),
    partial(_per_topic, part=_id_rows),
    _dump_inboxes,
    _dump_lanes,
]


# --- import ----------------------------------------------------------------------------------------------------------


def load(keyspace: Keyspace, op: Load) -> Exchange[None]:
    """Import rows into an empty log, in the order of their export; rows of one kind go into one call.

    Loading rows again changes nothing, so that an import can be repeated after a lost reply.
    """
    for key in ("kinds", "blobs") if op.first else ():
        if (yield ("EXISTS", f"{keyspace.prefix}:{key}")):
            raise NotEmpty(f"the log under {keyspace.prefix!r} has content; import into another prefix or database")
    for kind, rows in _group_by_kind(op.rows):
        if kind == "log":
            schema = rows[0]["schema"]
            if schema > DUMP_SCHEMA:
                raise SchemaTooNew(
                    f"the export has schema {schema}, this release supports {DUMP_SCHEMA}; upgrade magent2"
                )
            yield ("HSET", f"{keyspace.prefix}:meta", "log_id", rows[0]["log_id"], "release", rows[0]["release"])
        else:
            name, arguments = _LOADERS[kind]
            yield keyspace.fcall(name, len(rows), *(part for row in rows for part in arguments(row)))


def _group_by_kind(rows: Iterable[DumpRow]) -> list[tuple[str, list[DumpRow]]]:
    """Group neighbouring rows of the same kind."""
    groups: list[tuple[str, list[DumpRow]]] = []
    for row in rows:
        kind = row.get("kind", "")
        if kind != "log" and kind not in _LOADERS:
            raise InvalidInput(
                f"a row of kind {str(kind)[:40]!r} is unknown; if a newer release exported it, upgrade magent2"
            )
        if not groups or groups[-1][0] != kind:
            groups.append((kind, []))
        groups[-1][1].append(row)
    return groups


def _topic_arguments(row: DumpRow) -> list[Argument]:
    head = [part for name, value in row["head"].items() for part in (name, canonical(value))]
    state = [row["last"], row["floor"], int(row["deleted"]), row["active_ms"]]
    return [*state, 0, 1, row["topic"], len(row["head"]), *head]


def _record_arguments(row: DumpRow) -> list[Argument]:
    erased = row["payload"] is None
    record = NewRecord(
        row["topic"],
        row["payload"] or {},
        row["id"],
        row["headers"],
        row["draft"],
        row["closes"],
        tuple(row["blobs"]),
    )
    return [
        *(row["topic"], row["seq"], row["at_ms"], int(erased)),
        *(row["id"] or "", lane_field(record), record.body, b"" if is_plain(record) else optional_fields(record)),
    ]


def _id_arguments(row: DumpRow) -> list[Argument]:
    seq, answer = row["seq"], row["answer"]
    text = ",".join(map(str, answer)) if answer != [seq] else ""
    return [row["topic"], row["id"], f"{seq}:{text}" if answer else f"{seq}", row["digest"]]


def _lane_arguments(row: DumpRow) -> list[Argument]:
    due: Argument = "" if row["due_ms"] is None else row["due_ms"]
    state = [row["agent"], row["conversation"], row["attempt"], due, int(row["parked"])]
    return [*state, *mail_members([MailRef(topic, seq) for topic, seq in row["mail"]])]


_LOADERS: dict[str, tuple[str, Callable[[DumpRow], list[Argument]]]] = {
    "blob": ("load_blobs", lambda row: [row["name"], row["at_ms"], base64.b64decode(row["data"])]),
    "topic": ("load_topics", _topic_arguments),
    "record": ("load_records", _record_arguments),
    "id": ("load_ids", _id_arguments),
    "inbox": ("load_inboxes", lambda row: [row["agent"], row["chat"], row["control"]]),
    "lane": ("load_lanes", _lane_arguments),
}
