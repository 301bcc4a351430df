"""A log of schema 1, as release 0.2.0 has written it on SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, Append, Claim, Delete, Describe, Lanes, Later, PutBlob, Read, SetHead, Topics
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.schema import APPLICATION_ID

# The tables of schema 1, as release 0.2.0 creates them.
SCHEMA_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, front INTEGER NOT NULL, back INTEGER NOT NULL,
    epoch INTEGER NOT NULL, fresh INTEGER NOT NULL);
INSERT INTO counters VALUES (1, 0, 0, 0, 0, 0);
CREATE TABLE topics (
    tid INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last INTEGER NOT NULL, floor INTEGER NOT NULL,
    deleted INTEGER NOT NULL, head TEXT NOT NULL, owner TEXT, active_ms INTEGER NOT NULL, version INTEGER NOT NULL);
CREATE INDEX topics_version ON topics (version);
CREATE INDEX topics_active ON topics (active_ms, name) WHERE deleted = 0;
CREATE INDEX topics_owner ON topics (owner, active_ms, name) WHERE deleted = 0 AND owner IS NOT NULL;
CREATE TABLE records (
    rid INTEGER PRIMARY KEY, id TEXT NOT NULL, digest TEXT NOT NULL, at_ms INTEGER NOT NULL,
    answer TEXT NOT NULL DEFAULT '', headers TEXT NOT NULL DEFAULT '', lane TEXT NOT NULL DEFAULT '',
    copy TEXT NOT NULL DEFAULT '', draft TEXT NOT NULL DEFAULT '', closes TEXT NOT NULL DEFAULT '',
    blobs TEXT NOT NULL DEFAULT '', payload BLOB);
CREATE INDEX records_copy ON records (copy) WHERE copy <> '';
CREATE INDEX records_draft ON records (rid) WHERE draft <> '';
CREATE INDEX records_closes ON records (closes) WHERE closes <> '';
CREATE TABLE fresh (key INTEGER, seq INTEGER, PRIMARY KEY (key, seq)) WITHOUT ROWID;
CREATE TABLE ids (key INTEGER, seq INTEGER, PRIMARY KEY (key, seq)) WITHOUT ROWID;
CREATE TABLE old_ids (rid INTEGER PRIMARY KEY, id TEXT NOT NULL, digest TEXT NOT NULL, answer TEXT NOT NULL);
CREATE TABLE inboxes (agent TEXT PRIMARY KEY, chat INTEGER NOT NULL, control INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE lanes (
    lid INTEGER PRIMARY KEY, conversation TEXT NOT NULL, agent TEXT NOT NULL, owner TEXT, worker TEXT, nonce TEXT,
    n INTEGER NOT NULL DEFAULT 0, answer TEXT, attempt INTEGER NOT NULL DEFAULT 0,
    since_ms INTEGER NOT NULL DEFAULT 0, ready INTEGER, due_ms INTEGER, parked INTEGER NOT NULL DEFAULT 0,
    done TEXT, done_answer TEXT, idle_ms INTEGER, UNIQUE (conversation, agent));
CREATE INDEX lanes_ready ON lanes (agent, ready) WHERE ready IS NOT NULL;
CREATE INDEX lanes_due ON lanes (agent, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX lanes_worker ON lanes (worker) WHERE worker IS NOT NULL;
CREATE INDEX lanes_idle ON lanes (idle_ms) WHERE idle_ms IS NOT NULL;
CREATE TABLE mail (lid INTEGER, chat INTEGER, seq INTEGER, PRIMARY KEY (lid, chat, seq)) WITHOUT ROWID;
CREATE TABLE wakes (agent TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE workers (
    worker TEXT PRIMARY KEY, agents TEXT NOT NULL, deadline INTEGER NOT NULL, boot TEXT NOT NULL, nonce TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE blobs (name TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE blob_refs (rid INTEGER, name TEXT, PRIMARY KEY (rid, name)) WITHOUT ROWID;
CREATE INDEX blob_refs_name ON blob_refs (name);
"""

TOPICS = ("stream:a", "stream:b", "stream:gone", "chat:A", "entity:user:ann", "stream:a~helper", "plain")


def fill(bus: Engine) -> None:
    bus.call(PutBlob(b"attached"))
    for topic in TOPICS:
        bus.call(Append(records=(NewRecord(topic, {"text": topic}, f"id-{topic}"),)))
    bus.call(Append(records=(NewRecord("stream:a", {}),), heads=(SetHead("stream:a", {"owner": "ann", "title": "x"}),)))
    bus.call(Delete(("stream:gone",)))
    bus.call(Append(records=(NewRecord("chat:A", {"conversation_id": "a"}, "mail"),)))
    lanes = bus.call(Claim(worker="w1", agents=("A",), limit=10, lease_s=60.0)).lanes
    for lane in lanes:
        bus.call(Later(owner=lane.owner, delay_s=None))


def fill_owned_lanes(bus: Engine) -> None:
    """Make lanes of two owners ready, two of the first before one of the second; and one that is held."""
    for owner, conversation in (("ann", "a0"), ("ann", "a1"), ("ann", "a2"), ("bob", "b1")):
        record = NewRecord("chat:Z", {"conversation_id": conversation})
        bus.call(Append(records=(record,), heads=(SetHead(f"stream:{conversation}", {"owner": owner}),)))
    bus.call(Claim(worker="w1", agents=("Z",), limit=1, lease_s=60.0))


def content(bus: Engine) -> list[object]:
    listings = [Topics(), Topics("stream:"), Topics("stream:", "ann"), Topics("entity:user:"), Topics("stream:a~")]
    pages = [bus.call(Read(topic, OLDEST)) for topic in TOPICS]
    return [bus.call(Describe(TOPICS)), pages, bus.call(Lanes("A")), *(bus.call(listing) for listing in listings)]


def write_old_log(folder: Path) -> Path:
    """Write a log of schema 1 with the content of `fill`; `new.db` beside it has the same content in today's schema."""
    bus = SqliteBus(folder / "new.db")
    fill(bus)
    fill_owned_lanes(bus)
    bus.close()
    path = folder / "log.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; {SCHEMA_1}")
        connection.execute("ATTACH ? AS new", (str(folder / "new.db"),))
        tables = [name for (name,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"DELETE FROM main.{table}")
            connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
        connection.execute("UPDATE main.meta SET value = '1' WHERE key = 'schema'")
        connection.execute(f"PRAGMA main.application_id = {APPLICATION_ID}")
    return path
