"""What a group of operations knows and has yet to write.

Operations of one group share one transaction. What most of them do, appending, is collected here and written in bulk;
whoever has to query records flushes first. Topics stay known between groups until another process has written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from magent2.bus.operations import Operation, Write
from magent2.bus.records import NewRecord, canonical, decode_object
from magent2.bus.sqlite_engine.clock import Clock

SEQ_BITS = 36  # 68 billion records per topic, 134 million topics
SEQ_MASK = (1 << SEQ_BITS) - 1
FRESH_MAX = 4096  # ids that wait to be moved to the large index
TOPICS_CACHED_MAX = 50_000
LANE_MARK = "="  # so that the lane without a name differs from no lane
ROWS_PER_INSERT = 32
KEYS_PER_LOOKUP = 64
KEYS_ONE_BY_ONE = 4  # so few are looked up faster one after the other

_TOPIC = "SELECT tid, last, floor, deleted, head, active_ms FROM topics WHERE name = ?"
_PLAIN = "INSERT INTO records (rid, id, digest, at_ms, payload) VALUES (?, ?, ?, ?, ?)"
_RECORD = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FRESH = "INSERT INTO fresh VALUES (?, ?)"
_MOVED = "UPDATE topics SET last = ?, version = ? WHERE tid = ?"
_SHAPED = (
    "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tid) DO UPDATE SET last = excluded.last,"
    " floor = excluded.floor, deleted = excluded.deleted, head = excluded.head, owner = excluded.owner,"
    " active_ms = excluded.active_ms, version = excluded.version"
)
_COUNTERS = "UPDATE counters SET version = ?, front = ?, back = ?, epoch = ?, fresh = ?"
_WAKE = "INSERT INTO wakes VALUES (?, ?) ON CONFLICT (agent) DO UPDATE SET version = excluded.version"


def _lookup(count: int) -> str:
    keys = ", ".join(f"?{number}" for number in range(1, count + 1))
    return f"SELECT key, seq FROM fresh WHERE key IN ({keys}) UNION ALL SELECT key, seq FROM ids WHERE key IN ({keys})"  # noqa: S608


def _many(sql: str) -> str:
    return sql + (", " + sql[sql.rindex("(") :]) * (ROWS_PER_INSERT - 1)


_LOOKUP_ONE, _LOOKUP_MANY = _lookup(1), _lookup(KEYS_PER_LOOKUP)
_PLAINS, _RECORDS, _FRESHES = _many(_PLAIN), _many(_RECORD), _many(_FRESH)


def rid_of(tid: int, seq: int) -> int:
    return tid << SEQ_BITS | seq


def pack_seqs(seqs: Sequence[int]) -> str:
    return ",".join(map(str, seqs))


def unpack_seqs(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def record_row(rid: int, record: NewRecord, at_ms: int, answer: tuple[int, ...] = ()) -> tuple[object, ...]:
    """A row of `records`. Only texts, numbers and byte arrays: other types take the slow way into SQLite."""
    return (
        rid,
        record.id or "",
        record.digest,
        at_ms,
        pack_seqs(answer) if answer else "",
        record.header_text.decode(),
        "" if record.lane is None else LANE_MARK + record.lane,
        record.copy,
        record.draft or "",
        record.closes or "",
        ",".join(record.blobs),
        bytearray(record.body),
    )


def is_plain(record: NewRecord) -> bool:
    """Nothing but id and payload: most records of a conversation, so they have a shorter way into the file."""
    return not (
        record.copy or record.lane is not None or record.draft or record.closes or record.header_text or record.blobs
    )


@dataclass(slots=True, eq=False)
class Topic:
    """A topic's row; `tid` is 0 until the topic exists."""

    name: str
    tid: int = 0
    last: int = 0
    floor: int = 0
    deleted: bool = False
    head: dict[str, str] = field(default_factory=dict)  # field → canonical JSON text
    active_ms: int = 0

    def row(self, version: int) -> tuple[object, ...]:
        owner = decode_owner(self.head.get("owner"))
        head = "{" + ",".join(f'"{name}":{text}' for name, text in self.head.items()) + "}"
        return self.tid, self.name, self.last, self.floor, self.deleted, head, owner, self.active_ms, version


def decode_owner(text: str | None) -> str | None:
    if text is None:
        return None
    value = decode_object(f'{{"owner":{text}}}')["owner"]
    return value if isinstance(value, str) else text


class Known(NamedTuple):
    """What an id stands for. `answer` is the whole append's, of which the record was the key."""

    seq: int
    digest: str
    answer: tuple[int, ...]


class View:
    """A connection to read from."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, boot: str) -> None:
        self.connection = connection
        self.clock = clock
        self.boot = boot
        self._hash: blake2b | None = None

    def one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.connection.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def id_key(self, tid: int, record_id: str) -> int:
        """Where an id is found. The salt keeps a stranger from choosing ids that all fall on one place."""
        hashed = self._hash.copy() if self._hash else self._salted_hash().copy()
        hashed.update(record_id.encode(errors="surrogatepass"))
        return tid << SEQ_BITS | int.from_bytes(hashed.digest()) & SEQ_MASK

    def _salted_hash(self) -> blake2b:
        salt = self.all("SELECT value FROM meta WHERE key = 'salt'")[0][0]
        self._hash = blake2b(digest_size=8, salt=bytes.fromhex(salt))
        return self._hash

    def resolve_id(self, tid: int, record_id: str) -> Known | None:
        key = self.id_key(tid, record_id)
        seqs = [seq for _, seq in self.all(_LOOKUP_ONE, key)]
        return self.known_among(tid, record_id, seqs)

    def known_among(self, tid: int, record_id: str, seqs: Iterable[int]) -> Known | None:
        for seq in seqs:
            rid = rid_of(tid, seq)
            row = self.one("SELECT id, digest, answer FROM records WHERE rid = ?", rid) or self.one(
                "SELECT id, digest, answer FROM old_ids WHERE rid = ?", rid
            )
            if row is not None and row[0] == record_id:
                return Known(seq, row[1], unpack_seqs(row[2]))
        return None


class State(View):
    """A connection to write through."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, boot: str, payload_max_bytes: int) -> None:
        super().__init__(connection, clock, boot)
        self.payload_max_bytes = payload_max_bytes
        self.now_ms = 0
        self.stale = False  # whether the write-ahead log may still hold what was deleted
        self.freed = 0  # rows that were dropped since the file was last made smaller
        self._data_version = -1
        self.reset()

    def reset(self) -> None:
        """Forget everything: a transaction was rolled back, or another process has written."""
        self.topics: dict[str, Topic] = {}
        self.inboxes: dict[str, list[int]] = {}
        self.changed: set[str] = set()
        self._next_tid = 0
        self._version = self._front = self._back = self._epoch = self._fresh_count = -1
        self._stored_counters: tuple[int, ...] = ()
        self._plains: list[tuple[object, ...]] = []
        self._records: list[tuple[object, ...]] = []
        self._fresh: list[tuple[int, int]] = []
        self._moved: dict[int, Topic] = {}
        self._shaped: dict[int, Topic] = {}
        self._wakes: set[str] = set()
        self._forget_ids()

    def _forget_ids(self) -> None:
        self._known: dict[tuple[int, str], tuple[int, str, tuple[int, ...]]] = {}  # ids found or appended by this group
        self._keys: dict[tuple[int, str], int] = {}  # ids that were looked up for this group

    # --- a group ---

    def begin(self, operations: Iterable[Operation[Any]]) -> None:
        """Start a group, in a transaction that has begun."""
        row = self.one("PRAGMA data_version")
        if row is None or row[0] != self._data_version or len(self.topics) > TOPICS_CACHED_MAX:
            self.reset()
            self._data_version = row[0] if row else -1
        if self._version < 0:
            self._load_counters()
        self.changed = set()
        self._forget_ids()
        self.now_ms = self.clock.wall_ms()
        self._look_up_ids(operations)

    def _load_counters(self) -> None:
        self._stored_counters = self.all("SELECT version, front, back, epoch, fresh FROM counters")[0]
        self._version, self._front, self._back, self._epoch, self._fresh_count = self._stored_counters
        self._next_tid = self.all("SELECT coalesce(max(tid), 0) + 1 FROM topics")[0][0]

    @property
    def version(self) -> int:
        """The number of the last change; readers in other processes ask what came after one."""
        return self._version

    def flush(self) -> None:
        if self._plains:
            self._insert(_PLAIN, _PLAINS, self._plains)
            self._plains = []
        if self._records:
            self._insert(_RECORD, _RECORDS, self._records)
            self._records = []
        if self._fresh:
            self._insert_fresh()
        if self._moved or self._shaped or self._wakes:
            self._write_topics()
        counters = (self._version, self._front, self._back, self._epoch, self._fresh_count)
        if counters != self._stored_counters:
            self.connection.execute(_COUNTERS, counters)
            self._stored_counters = counters

    def _insert(self, one: str, many: str, rows: list[Any]) -> None:
        """Many rows per statement: each statement lets go of the interpreter lock once, and may wait to get it back."""
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        for start in range(0, whole, ROWS_PER_INSERT):
            self.connection.execute(many, list(chain.from_iterable(rows[start : start + ROWS_PER_INSERT])))
        if whole < len(rows):
            self.connection.executemany(one, rows[whole:])

    def _insert_fresh(self) -> None:
        self._fresh.sort()
        self._insert(_FRESH, _FRESHES, self._fresh)
        self._fresh_count += len(self._fresh)
        self._fresh = []
        if self._fresh_count >= FRESH_MAX:
            self.connection.execute("INSERT INTO ids SELECT key, seq FROM fresh ORDER BY key, seq")
            self.connection.execute("DELETE FROM fresh")
            self._fresh_count = 0

    def _write_topics(self) -> None:
        self._version += 1
        version = self._version
        for tid in self._shaped:
            self._moved.pop(tid, None)
        if self._shaped:
            self.connection.executemany(_SHAPED, [topic.row(version) for topic in self._shaped.values()])
        if self._moved:
            self.connection.executemany(_MOVED, [(topic.last, version, tid) for tid, topic in self._moved.items()])
        if self._wakes:
            self.connection.executemany(_WAKE, [(agent, version) for agent in self._wakes])
        self._moved, self._shaped, self._wakes = {}, {}, set()

    # --- topics ---

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = self._load_topic(name)
        return topic

    def _load_topic(self, name: str) -> Topic:
        row = self.one(_TOPIC, name)
        if row is None:
            return Topic(name)
        tid, last, floor, deleted, head, active_ms = row
        fields = {} if head == "{}" else {name: canonical(value) for name, value in decode_object(head).items()}
        return Topic(name, tid, last, floor, bool(deleted), fields, active_ms)

    def create(self, topic: Topic) -> None:
        topic.tid = self._next_tid
        self._next_tid += 1
        topic.active_ms = self.now_ms
        self._shaped[topic.tid] = topic

    def reshape(self, topic: Topic) -> None:
        """More of the topic than its last seq has changed."""
        if not topic.tid:
            self.create(topic)
        self._shaped[topic.tid] = topic
        self.changed.add(topic.name)

    def wake(self, agent: str) -> None:
        """A lane of the agent became ready."""
        self._wakes.add(agent)
        self.changed.add(f"chat:{agent}")

    # --- records ---

    def next_seq(self, topic: Topic) -> int:
        if not topic.tid:
            self.create(topic)
        topic.last += 1
        self._moved[topic.tid] = topic
        self.changed.add(topic.name)
        return topic.last

    def add(self, record: NewRecord, tid: int, seq: int, answer: tuple[int, ...] = ()) -> None:
        if record.id is not None:
            pair = (tid, record.id)
            self._fresh.append((self._keys.get(pair) or self.id_key(tid, record.id), seq))
            self._known[pair] = (seq, record.digest, answer)
        rid = tid << SEQ_BITS | seq
        if not answer and is_plain(record):
            self._plains.append((rid, record.id or "", record.digest, self.now_ms, bytearray(record.body)))
            return
        self._records.append(record_row(rid, record, self.now_ms, answer))
        if record.blobs:
            self.refer(rid, record.blobs)

    def refer(self, rid: int, blobs: Iterable[str]) -> None:
        self.connection.executemany("INSERT OR IGNORE INTO blob_refs VALUES (?, ?)", [(rid, name) for name in blobs])

    # --- ids ---

    def known(self, topic: Topic, record_id: str) -> Known | None:
        """What the id stands for in the topic, appends of this group included."""
        pair = (topic.tid, record_id)
        known = self._known.get(pair)
        if known is not None:
            return Known(*known)
        if pair in self._keys or not topic.tid:
            return None
        return self.resolve_id(topic.tid, record_id)

    def forget_ids_of(self, topic: Topic) -> None:
        self._known = {pair: known for pair, known in self._known.items() if pair[0] != topic.tid}

    def _look_up_ids(self, operations: Iterable[Operation[Any]]) -> None:
        """One query for all ids of a group."""
        for operation in operations:
            if isinstance(operation, Write):
                self._note_ids(operation.records)
        found = self._stored_among(list(self._keys.values()))
        if found:
            self._resolve([pair for pair, key in self._keys.items() if key in found])

    def _stored_among(self, keys: list[int]) -> set[int]:
        if len(keys) <= KEYS_ONE_BY_ONE:
            return {key for key in keys if self.one(_LOOKUP_ONE, key) is not None}
        found: set[int] = set()
        for start in range(0, len(keys), KEYS_PER_LOOKUP):
            part = keys[start : start + KEYS_PER_LOOKUP]
            part += [-1] * (KEYS_PER_LOOKUP - len(part))
            found.update(key for key, _ in self.connection.execute(_LOOKUP_MANY, part))
        return found

    def _note_ids(self, records: Iterable[NewRecord]) -> None:
        for record in records:
            if record.id is not None:
                tid = self.topic(record.topic).tid
                if tid:
                    self._keys[tid, record.id] = self.id_key(tid, record.id)

    def _resolve(self, pairs: Iterable[tuple[int, str]]) -> None:
        for tid, record_id in pairs:
            known = self.resolve_id(tid, record_id)
            if known is not None:
                self._known[tid, record_id] = known

    # --- numbers of the lanes ---

    def front(self) -> int:
        self._front -= 1
        return self._front

    def back(self) -> int:
        self._back += 1
        return self._back

    def epoch(self) -> int:
        self._epoch += 1
        return self._epoch
