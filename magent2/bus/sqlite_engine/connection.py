"""Connections to the database: one kind to read from, one that buffers the writes of a group of operations.

Operations of one group share one transaction. Appends are most of the work, so their rows are collected here and
written in bulk by `WriteConnection.flush`. An operation that queries records has to flush first, because a query does
not see the buffer. Topics stay cached between groups until another process has written.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from magent2.bus.operations import AnyOperation, Write
from magent2.bus.record_watch import Changes
from magent2.bus.records import NewRecord, canonical, decode_object
from magent2.bus.scrub import ScrubState
from magent2.bus.sqlite_engine.clock import WALL_DRIFT_MS, Clock, ClockAnchor
from magent2.models.address import stream_topic

SEQ_BITS = 36  # 68 billion records per topic, 134 million topics
SEQ_MASK = (1 << SEQ_BITS) - 1
FRESH_IDS_MAX = 4096  # ids in the small index before they are moved to the large one
TOPICS_CACHED_MAX = 50_000
LANE_PREFIX = "="  # stored before a lane's name, so that the lane with the empty name differs from "no lane"
ROWS_PER_INSERT = 32
KEYS_PER_LOOKUP = 64
INSTRUCTIONS_PER_STEP = 1000
SHORT_READ_STEPS = 8  # an event loop reads for 8,000 instructions: about 500 records or topics, 1 ms
NO_LIMIT = sys.maxsize  # steps
SHORT_READ_BYTES = 256 << 10
SHORT_READ_PAGE = 16  # rows between two looks at their size
KEYS_ONE_BY_ONE = 4  # up to this many keys, single queries are faster than one query padded to KEYS_PER_LOOKUP

SqlRow: TypeAlias = tuple[Any, ...]  # a row as sqlite3 returns it; the SELECT beside it names the columns

_SELECT_TOPIC = "SELECT tid, last, floor, deleted, head, active_ms FROM topics WHERE name = ?"
_INSERT_PLAIN = "INSERT INTO records (rid, id, digest, at_ms, draft, payload) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_RECORD = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_FRESH_ID = "INSERT INTO fresh VALUES (?, ?)"
_UPDATE_LAST = "UPDATE topics SET last = ?, version = ? WHERE tid = ?"
_UPSERT_TOPIC = (
    "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tid) DO UPDATE SET last = excluded.last,"
    " floor = excluded.floor, deleted = excluded.deleted, head = excluded.head, owner = excluded.owner,"
    " active_ms = excluded.active_ms, version = excluded.version"
)
_UPDATE_COUNTERS = "UPDATE counters SET version = ?, front = ?, back = ?, epoch = ?, fresh = ?"
_UPSERT_WAKE = "INSERT INTO wakes VALUES (?, ?) ON CONFLICT (agent) DO UPDATE SET version = excluded.version"


def _id_lookup(count: int) -> str:
    keys = ", ".join(f"?{number}" for number in range(1, count + 1))
    return f"SELECT key, seq FROM fresh WHERE key IN ({keys}) UNION ALL SELECT key, seq FROM ids WHERE key IN ({keys})"  # noqa: S608


def _for_many_rows(insert: str) -> str:
    return insert + (", " + insert[insert.rindex("(") :]) * (ROWS_PER_INSERT - 1)


_LOOKUP_ONE, _LOOKUP_MANY = _id_lookup(1), _id_lookup(KEYS_PER_LOOKUP)
_INSERT_PLAINS, _INSERT_RECORDS, _INSERT_FRESH_IDS = map(
    _for_many_rows, (_INSERT_PLAIN, _INSERT_RECORD, _INSERT_FRESH_ID)
)


def rid_of(tid: int, seq: int) -> int:
    """Key of a record's row: the topic's number and the seq in one integer, so that a topic's records are adjacent."""
    return tid << SEQ_BITS | seq


def pack_seqs(seqs: Sequence[int]) -> str:
    return ",".join(map(str, seqs))


def unpack_seqs(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def record_row(rid: int, record: NewRecord, at_ms: int, answer: tuple[int, ...] = ()) -> tuple[object, ...]:
    """Return a row of `records`, of strings, numbers and byte arrays only: sqlite3 binds other types more slowly."""
    return (
        rid,
        record.id or "",
        record.digest,
        at_ms,
        pack_seqs(answer) if answer else "",
        record.header_text.decode(),
        "" if record.lane is None else LANE_PREFIX + record.lane,
        record.copy,
        record.draft or "",
        record.closes or "",
        ",".join(record.blobs),
        bytearray(record.body),
    )


@dataclass(slots=True, eq=False)
class TopicRow:
    """Row of a topic; `tid` is 0 until the topic exists."""

    name: str
    tid: int = 0
    last: int = 0
    floor: int = 0
    deleted: bool = False
    head: dict[str, str] = field(default_factory=dict)  # field → canonical JSON text
    active_ms: int = 0

    @property
    def owner(self) -> str | None:
        text = self.head.get("owner")
        if text is None:
            return None
        value = decode_object(f'{{"owner":{text}}}')["owner"]
        return value if isinstance(value, str) else text

    def values(self, version: int) -> tuple[object, ...]:
        """Values of all columns. `owner` repeats a field of the head, because listings filter by it."""
        head = "{" + ",".join(f'"{name}":{text}' for name, text in self.head.items()) + "}"
        return self.tid, self.name, self.last, self.floor, self.deleted, head, self.owner, self.active_ms, version


class KnownId(NamedTuple):
    """What the log remembers of an id. `answer` holds the seqs of the whole append if its record was the key."""

    seq: int
    digest: str
    answer: tuple[int, ...]


class ReadConnection:
    """A connection to read from. `execute` and `executemany` are those of the connection."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.clock = clock
        self.boot_id = boot_id
        self._salted_hash: blake2b | None = None

    def begin(self) -> None:
        """Begin a read operation: all its queries see one snapshot."""
        self.execute("BEGIN")

    def end(self) -> None:
        self.execute("ROLLBACK")

    def anchor(self) -> ClockAnchor | None:
        """Return the last moment at which the log clock was stored; `None` in a log that was never claimed from."""
        row = self.one("SELECT value FROM meta WHERE key = 'clock'")
        if row is None:
            return None
        boot, monotonic_ms, wall_ms, log_ms = row[0].split(" ")
        return ClockAnchor(boot, int(monotonic_ms), int(wall_ms), int(log_ms))

    def log_ms(self) -> int:
        """Return the log clock."""
        anchor, wall_ms = self.anchor(), self.clock.wall_ms()
        return wall_ms if anchor is None else anchor.log_ms_at(self.boot_id, self.clock.monotonic_ms(), wall_ms)

    def wall_offset_ms(self) -> int:
        """Return what to add to a time of the log clock for the same time of the wall clock.

        As long as the wall clock was not set, this is the stored offset: the two clocks differ by some ms otherwise.
        """
        offset_ms = self.clock.wall_ms() - self.log_ms()
        anchor = self.anchor()
        stored_ms = offset_ms if anchor is None else anchor.wall_ms - anchor.log_ms
        return stored_ms if abs(offset_ms - stored_ms) < WALL_DRIFT_MS else offset_ms

    def one(self, sql: str, *values: object) -> SqlRow | None:
        row: SqlRow | None = self.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: object) -> list[SqlRow]:
        return self.execute(sql, values).fetchall()

    def id_key(self, tid: int, record_id: str) -> int:
        """Return the key of an id in `fresh` and `ids`: the topic's number and 36 bits of a hash.

        The hash is salted per log, so that a sender cannot choose ids that all collide. Ids may still collide by
        chance; `resolve_id` compares the id itself.
        """
        if self._salted_hash is None:
            salt = self.all("SELECT value FROM meta WHERE key = 'salt'")[0][0]
            self._salted_hash = blake2b(digest_size=8, salt=bytes.fromhex(salt))
        hashed = self._salted_hash.copy()
        hashed.update(record_id.encode(errors="surrogatepass"))
        return tid << SEQ_BITS | int.from_bytes(hashed.digest()) & SEQ_MASK

    def resolve_id(self, tid: int, record_id: str) -> KnownId | None:
        """Find an id among the records of a topic, then among the ids of records that were dropped."""
        for _, seq in self.all(_LOOKUP_ONE, self.id_key(tid, record_id)):
            rid = rid_of(tid, seq)
            row = self.one("SELECT id, digest, answer FROM records WHERE rid = ?", rid) or self.one(
                "SELECT id, digest, answer FROM old_ids WHERE rid = ?", rid
            )
            if row is not None and row[0] == record_id:
                return KnownId(seq, row[1], unpack_seqs(row[2]))
        return None


class ReadTooLarge(Exception):
    """A read needs more than a `ShortReadConnection` allows."""


class ShortReadConnection(ReadConnection):
    """A connection for short reads on an event loop: interrupts an operation that takes too long.

    The work of an operation is counted in instructions of SQLite, over all its queries, and in bytes of content. Both
    are the same on every machine, and neither can be known before the operation runs.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
        super().__init__(connection, clock, boot_id)
        self._steps_left = SHORT_READ_STEPS
        connection.set_progress_handler(self._count_step, INSTRUCTIONS_PER_STEP)

    def begin(self) -> None:
        self._steps_left = SHORT_READ_STEPS
        super().begin()

    def end(self) -> None:
        # SQLite counts the instructions of ROLLBACK too, over all its executions. If it were interrupted, the
        # transaction would stay open, and every later BEGIN on this connection would fail.
        self._steps_left = NO_LIMIT
        super().end()

    def _count_step(self) -> bool:
        self._steps_left -= 1
        return self._steps_left < 0  # true interrupts the query

    def all(self, sql: str, *values: object) -> list[SqlRow]:
        cursor = self.execute(sql, values)
        rows: list[SqlRow] = []
        room = SHORT_READ_BYTES
        while page := cursor.fetchmany(SHORT_READ_PAGE):
            rows += page
            room -= sum(len(row[-1]) for row in page if isinstance(row[-1], bytes))
            if room < 0:
                cursor.close()
                raise ReadTooLarge
        return rows


class WriteConnection(ReadConnection):
    """The connection that writes: caches topics and counters, and buffers the writes of a group until `flush`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock,
        boot_id: str,
        payload_max_bytes: int,
        process_name: Callable[[], str] = str,
    ) -> None:
        super().__init__(connection, clock, boot_id)
        self.payload_max_bytes = payload_max_bytes
        self.process_name = process_name  # returns the socket of this process; empty without one
        self.now_ms = 0
        self.scrub = ScrubState()  # as of the last group, or as of the last `load_scrub`
        self.has_asked_for_scrub = False  # whether this process has deleted something since the last scrub
        self.dropped_rows = 0  # rows deleted since free pages were last given back
        self._data_version = -1
        self.reset()

    def reset(self) -> None:
        """Forget every cached and buffered value: a transaction was rolled back, or another process has written."""
        self.inboxes: dict[str, list[int]] = {}  # agent → seqs up to which control and chat are sorted into lanes
        self._begin_changes()
        self._topics: dict[str, TopicRow] = {}
        self._next_tid = 0
        self._version = self._front = self._back = self._epoch = self._fresh_count = -1
        self._stored_counters: tuple[int, ...] = ()
        self._anchor: ClockAnchor | None = None
        self._plain_rows: list[tuple[object, ...]] = []
        self._record_rows: list[tuple[object, ...]] = []
        self._fresh_rows: list[tuple[int, int]] = []
        self._advanced: dict[int, TopicRow] = {}  # topics of which only `last` has changed
        self._dirty: dict[int, TopicRow] = {}  # topics of which more has changed
        self._wakes: set[str] = set()
        self._clear_group_ids()

    def _begin_changes(self) -> None:
        self.changed: set[str] = set()
        self.listed: set[str] = set()
        self._appended: list[tuple[int, NewRecord]] = []
        self._erased = False

    def _clear_group_ids(self) -> None:
        # Ids that this group has found or appended; plain tuples of the fields of `KnownId`, which are cheaper to make.
        self._group_ids: dict[tuple[int, str], tuple[int, str, tuple[int, ...]]] = {}
        self._group_keys: dict[tuple[int, str], int] = {}  # ids that were looked up for this group, found or not

    # --- a group ---

    def begin_group(self, operations: Iterable[AnyOperation]) -> None:
        """Start a group. The caller has begun a transaction.

        `PRAGMA data_version` changes when another connection has committed, so an unchanged value means that the
        caches are still right. It is only reliable inside the transaction: before BEGIN, a commit could come between.
        """
        data_version = self.all("PRAGMA data_version")[0][0]
        if data_version != self._data_version or len(self._topics) > TOPICS_CACHED_MAX:
            self.reset()
            self._data_version = data_version
        if self._version < 0:
            self._stored_counters = self.all("SELECT version, front, back, epoch, fresh FROM counters")[0]
            self._version, self._front, self._back, self._epoch, self._fresh_count = self._stored_counters
            self._next_tid = self.all("SELECT coalesce(max(tid), 0) + 1 FROM topics")[0][0]
            self.load_scrub()
        self._clear_group_ids()
        self.now_ms = self.clock.wall_ms()
        self._look_up_ids(operations)

    def anchor(self) -> ClockAnchor | None:
        if self._anchor is None:
            self._anchor = super().anchor()
        return self._anchor

    def store_clock(self) -> None:
        """Store the log clock, so that other processes and the time after a reboot go on from here."""
        now = ClockAnchor(self.boot_id, self.clock.monotonic_ms(), self.clock.wall_ms(), self.log_ms())
        self.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (" ".join(map(str, now)),))
        self._anchor = now

    def take_changes(self) -> Changes:
        """Return what the group has changed, and keep it no longer."""
        changes = Changes(self.changed, self.listed, self._version, self._appended, self.now_ms, self._erased)
        self._begin_changes()
        return changes

    def flush(self) -> None:
        """Write what is buffered, inside the transaction."""
        if self._plain_rows:
            self._insert(_INSERT_PLAIN, _INSERT_PLAINS, self._plain_rows)
            self._plain_rows = []
        if self._record_rows:
            self._insert(_INSERT_RECORD, _INSERT_RECORDS, self._record_rows)
            self._record_rows = []
        if self._fresh_rows:
            self._insert_fresh_ids()
        if self._advanced or self._dirty or self._wakes:
            self._write_topics()
        counters = (self._version, self._front, self._back, self._epoch, self._fresh_count)
        if counters != self._stored_counters:
            self.execute(_UPDATE_COUNTERS, counters)
            self._stored_counters = counters

    def _insert(self, one: str, many: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Insert many rows per statement: every statement releases the GIL and may have to wait to get it back."""
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        for start in range(0, whole, ROWS_PER_INSERT):
            self.execute(many, list(chain.from_iterable(rows[start : start + ROWS_PER_INSERT])))
        if whole < len(rows):
            self.executemany(one, rows[whole:])

    def _insert_fresh_ids(self) -> None:
        """Insert new ids into the small index, and move all of it to the large one when it is full.

        Ids are random, so each one inserted into the large index would dirty a page of its own, and every dirty page is
        a whole page in the write-ahead log. Moved in bulk and in order, many ids share a page.
        """
        self._fresh_rows.sort()
        self._insert(_INSERT_FRESH_ID, _INSERT_FRESH_IDS, self._fresh_rows)
        self._fresh_count += len(self._fresh_rows)
        self._fresh_rows = []
        if self._fresh_count >= FRESH_IDS_MAX:
            self.execute("INSERT INTO ids SELECT key, seq FROM fresh ORDER BY key, seq")
            self.execute("DELETE FROM fresh")
            self._fresh_count = 0

    def _write_topics(self) -> None:
        self._version += 1
        version = self._version
        for tid in self._dirty:
            self._advanced.pop(tid, None)
        if self._dirty:
            self.executemany(_UPSERT_TOPIC, [topic.values(version) for topic in self._dirty.values()])
        if self._advanced:
            self.executemany(_UPDATE_LAST, [(topic.last, version, tid) for tid, topic in self._advanced.items()])
        if self._wakes:
            self.executemany(_UPSERT_WAKE, [(agent, version) for agent in self._wakes])
        self._advanced, self._dirty, self._wakes = {}, {}, set()

    # --- scrubs ---
    # The state is a row of `meta`, so that another process finishes what this one leaves undone.

    def load_scrub(self) -> ScrubState:
        row = self.one("SELECT value FROM meta WHERE key = 'scrub'")
        self.scrub = ScrubState(*map(int, row[0].split())) if row is not None else ScrubState()
        return self.scrub

    def store_scrub(self, state: ScrubState) -> None:
        self.scrub = state
        text = f"{state.requests} {state.asked_ms} {state.rest_until_ms}"
        self.execute(
            "INSERT INTO meta VALUES ('scrub', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (text,)
        )

    def ask_for_scrub(self) -> None:
        """Record in the running transaction that the file or the write-ahead log holds deleted content."""
        self.store_scrub(self.scrub.asked(self.now_ms))
        self.has_asked_for_scrub = True
        self._erased = True

    # --- topics ---

    def topic(self, name: str) -> TopicRow:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._load_topic(name)
        return topic

    def _load_topic(self, name: str) -> TopicRow:
        row = self.one(_SELECT_TOPIC, name)
        if row is None:
            return TopicRow(name)
        tid, last, floor, deleted, head, active_ms = row
        fields = {} if head == "{}" else {name: canonical(value) for name, value in decode_object(head).items()}
        return TopicRow(name, tid, last, floor, bool(deleted), fields, active_ms)

    def principal_of(self, conversation: str) -> str:
        """Return the owner of a conversation; empty if it has none."""
        return self.topic(stream_topic(conversation)).owner or ""

    def _create_topic(self, topic: TopicRow) -> None:
        topic.tid = self._next_tid
        self._next_tid += 1
        topic.active_ms = self.now_ms
        self._dirty[topic.tid] = topic
        self.listed.add(topic.name)

    def mark_dirty(self, topic: TopicRow) -> None:
        """Have the whole row written by the next flush; creates the topic if it does not exist."""
        if not topic.tid:
            self._create_topic(topic)
        self._dirty[topic.tid] = topic
        self.changed.add(topic.name)
        self.listed.add(topic.name)

    def wake(self, agent: str) -> None:
        """Notify watchers of the agent's inbox that a lane became ready."""
        self._wakes.add(agent)
        self.changed.add(f"chat:{agent}")

    # --- records ---

    def next_seq(self, topic: TopicRow) -> int:
        if not topic.tid:
            self._create_topic(topic)
        topic.last += 1
        self._advanced[topic.tid] = topic
        self.changed.add(topic.name)
        return topic.last

    def add_record(self, record: NewRecord, tid: int, seq: int, answer: tuple[int, ...] = ()) -> None:
        """Buffer a record. `answer`: the seqs of the whole append, if this record is its key."""
        self._appended.append((seq, record))
        if record.id is not None:
            pair = (tid, record.id)
            self._fresh_rows.append((self._group_keys.get(pair) or self.id_key(tid, record.id), seq))
            self._group_ids[pair] = (seq, record.digest, answer)
        rid = tid << SEQ_BITS | seq
        if answer or record.lane is not None or record.copy or record.closes or record.header_text or record.blobs:
            self._record_rows.append(record_row(rid, record, self.now_ms, answer))
            if record.blobs:
                self.add_blob_refs(rid, record.blobs)
        else:  # most records have only these values, and their INSERT has fewer columns
            draft, body = record.draft or "", bytearray(record.body)
            self._plain_rows.append((rid, record.id or "", record.digest, self.now_ms, draft, body))

    def add_blob_refs(self, rid: int, blobs: Iterable[str]) -> None:
        self.executemany("INSERT OR IGNORE INTO blob_refs VALUES (?, ?)", [(rid, name) for name in blobs])

    # --- ids ---

    def known_id(self, topic: TopicRow, record_id: str) -> KnownId | None:
        """Return what the log remembers of an id in a topic, appends of this group included."""
        pair = (topic.tid, record_id)
        known = self._group_ids.get(pair)
        if known is not None:
            return KnownId(*known)
        if pair in self._group_keys or not topic.tid:  # looked up and not found, or in a topic that has no records
            return None
        return self.resolve_id(topic.tid, record_id)

    def forget_group_ids(self, topic: TopicRow) -> None:
        """Drop what this group has cached about the ids of a topic, because their digests were changed or deleted."""
        self._group_ids = {pair: known for pair, known in self._group_ids.items() if pair[0] != topic.tid}

    def _look_up_ids(self, operations: Iterable[AnyOperation]) -> None:
        """Look up all ids of a group together: most are new, and a few queries say so for all of them."""
        for operation in operations:
            for record in operation.records if isinstance(operation, Write) else ():
                if record.id is not None and (tid := self.topic(record.topic).tid):  # a new topic has no ids
                    self._group_keys[tid, record.id] = self.id_key(tid, record.id)
        stored = self._stored_keys(list(self._group_keys.values()))
        for (tid, record_id), key in self._group_keys.items() if stored else ():
            known = self.resolve_id(tid, record_id) if key in stored else None
            if known is not None:
                self._group_ids[tid, record_id] = known

    def _stored_keys(self, keys: list[int]) -> set[int]:
        """Return those of the keys that are in the index; a key may be there for another id with the same hash."""
        if len(keys) <= KEYS_ONE_BY_ONE:
            return {key for key in keys if self.one(_LOOKUP_ONE, key) is not None}
        found: set[int] = set()
        for start in range(0, len(keys), KEYS_PER_LOOKUP):
            part = keys[start : start + KEYS_PER_LOOKUP]
            part += [-1] * (KEYS_PER_LOOKUP - len(part))
            found.update(key for key, _ in self.execute(_LOOKUP_MANY, part))
        return found

    # --- counters of the lanes ---

    def next_front(self) -> int:
        """Return an order number ahead of every ready lane: the numbers at the front count down from zero."""
        self._front -= 1
        return self._front

    def next_back(self) -> int:
        """Return an order number behind every ready lane."""
        self._back += 1
        return self._back

    def next_epoch(self) -> int:
        """Return a number that no owner token of this log has had."""
        self._epoch += 1
        return self._epoch
