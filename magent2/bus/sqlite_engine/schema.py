"""Schema of the database file: its tables, opening a connection, migrations, backups."""

from __future__ import annotations

import secrets
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from magent2 import __version__
from magent2.errors import SchemaTooNew, StorageCorrupt, StorageUnwritable
from magent2.private_files import create_if_missing, make_folder, sync

SCHEMA = 3
APPLICATION_ID = 0x6D616732  # "mag2" in the header of the file tells it from databases of other programs
BUSY_TIMEOUT_MS = 10_000  # how long to wait for a program that writes without taking the file lock
CACHE_KIB, READER_CACHE_KIB = 16_384, 4_096  # page cache per connection
STATEMENTS_CACHED = 256
WAL_KEPT_BYTES = 16 << 20  # a write-ahead log that a slow reader made grow is truncated to this

# topics     `kind` is the name up to its first colon, or '' without one. It is computed, and stored only in indexes.
# records    `rid` is tid << 36 | seq: a topic's records are adjacent and in order, and one B-tree descent finds any.
#            Absent values are empty strings. A payload of NULL is an erased record. Mail has `=` before its lane.
# fresh, ids `key` is tid << 36 | 36 bits of a hash of the id. New ids go into the small `fresh` and move to `ids` in
#            bulk, because each random position that is written costs a whole page in the write-ahead log.
# old_ids    ids of records that retention has dropped; their repeats are still recognized.
# counters   `version` numbers the changes of topics, `front` and `back` order the ready lanes, `epoch` makes owner
#            tokens unique, `fresh` counts the rows of that table.
# meta       facts about the log; `clock` is the last moment at which the log clock was stored (`ClockAnchor`), `scrub`
#            what is known of the next scrub (`ScrubState`).
# lanes      a lane without owner has `ready` (its place in the queue), `due_ms` (delayed), `parked` or `idle_ms`.
#            Both times are of the log clock. `principal` is the owner of the conversation when the lane became ready.
# turns      the principals that have ready lanes of an agent, in the order in which claims serve them. Triggers keep
#            the table in step with `lanes`, so that no place that makes a lane ready has to think of it.
# mail       what is in a lane: `chat` is 0 for control mail, 1 for chat mail; `seq` is the record's in that inbox.
# wakes      the last change that made a lane of an agent ready, for watchers in other processes.
# worker_processes  the socket of the process in which a worker runs (`SocketFolder`).
WORKER_PROCESSES = "CREATE TABLE IF NOT EXISTS worker_processes (worker TEXT PRIMARY KEY, process TEXT) WITHOUT ROWID"
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, front INTEGER NOT NULL, back INTEGER NOT NULL,
    epoch INTEGER NOT NULL, fresh INTEGER NOT NULL);
INSERT INTO counters VALUES (1, 0, 0, 0, 0, 0);
CREATE TABLE topics (
    tid INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last INTEGER NOT NULL, floor INTEGER NOT NULL,
    deleted INTEGER NOT NULL, head TEXT NOT NULL, owner TEXT, active_ms INTEGER NOT NULL, version INTEGER NOT NULL,
    kind TEXT GENERATED ALWAYS AS (substr(name, 1, instr(name, ':'))) VIRTUAL);
CREATE INDEX topics_version ON topics (version);
CREATE INDEX topics_kind ON topics (kind, active_ms, name) WHERE deleted = 0;
CREATE INDEX topics_owner ON topics (kind, owner, active_ms, name) WHERE deleted = 0 AND owner IS NOT NULL;
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
    done TEXT, done_answer TEXT, idle_ms INTEGER, principal TEXT NOT NULL DEFAULT '', UNIQUE (conversation, agent));
CREATE INDEX lanes_ready ON lanes (agent, principal, ready) WHERE ready IS NOT NULL;
CREATE INDEX lanes_due ON lanes (agent, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX lanes_worker ON lanes (worker) WHERE worker IS NOT NULL;
CREATE INDEX lanes_parked ON lanes (agent) WHERE parked = 1;
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

# A principal joins at the end of the turns: control mail or a takeover puts a lane ahead of the others of its
# principal, not ahead of other principals.
_JOIN = (
    "NOT EXISTS (SELECT 1 FROM turns WHERE agent = NEW.agent AND principal = NEW.principal) BEGIN"
    " INSERT INTO turns VALUES (NEW.agent, NEW.principal,"
    " max(NEW.ready, coalesce((SELECT max(turn) + 1 FROM turns WHERE agent = NEW.agent), 0))); END"
)
_LEAVE = (
    "NOT EXISTS (SELECT 1 FROM lanes WHERE agent = OLD.agent AND principal = OLD.principal AND ready IS NOT NULL) BEGIN"
    " DELETE FROM turns WHERE agent = OLD.agent AND principal = OLD.principal; END"
)
TURNS = (
    "CREATE TABLE turns (agent TEXT, principal TEXT, turn INTEGER NOT NULL, PRIMARY KEY (agent, principal))"
    " WITHOUT ROWID",
    "CREATE INDEX turns_order ON turns (agent, turn)",
    f"CREATE TRIGGER lanes_added AFTER INSERT ON lanes WHEN NEW.ready IS NOT NULL AND {_JOIN}",
    f"CREATE TRIGGER lanes_made_ready AFTER UPDATE OF ready ON lanes WHEN NEW.ready IS NOT NULL AND {_JOIN}",
    "CREATE TRIGGER lanes_taken AFTER UPDATE OF ready ON lanes"
    f" WHEN OLD.ready IS NOT NULL AND NEW.ready IS NULL AND {_LEAVE}",
    f"CREATE TRIGGER lanes_dropped AFTER DELETE ON lanes WHEN OLD.ready IS NOT NULL AND {_LEAVE}",
)


def _index_topics_by_kind(connection: sqlite3.Connection) -> None:
    """Schema 2: topics are listed by kind, and parked lanes by agent.

    A process of schema 1 that has the file open goes on: SQLite fills the column and the indexes for it too.
    """
    for statement in (
        "ALTER TABLE topics ADD COLUMN kind TEXT GENERATED ALWAYS AS (substr(name, 1, instr(name, ':'))) VIRTUAL",
        "DROP INDEX topics_active",
        "DROP INDEX topics_owner",
        "CREATE INDEX topics_kind ON topics (kind, active_ms, name) WHERE deleted = 0",
        "CREATE INDEX topics_owner ON topics (kind, owner, active_ms, name) WHERE deleted = 0 AND owner IS NOT NULL",
        "CREATE INDEX lanes_parked ON lanes (agent) WHERE parked = 1",
    ):
        connection.execute(statement)


def _give_principals_turns(connection: sqlite3.Connection) -> None:
    """Schema 3: ready lanes are claimed in turns of their principals.

    A process of schema 2 that has the file open goes on: the triggers work for it too. Its lanes have no principal.
    """
    for statement in (
        "ALTER TABLE lanes ADD COLUMN principal TEXT NOT NULL DEFAULT ''",
        "UPDATE lanes SET principal = coalesce((SELECT owner FROM topics WHERE name = 'stream:' || conversation), '')",
        "DROP INDEX lanes_ready",
        "CREATE INDEX lanes_ready ON lanes (agent, principal, ready) WHERE ready IS NOT NULL",
        *TURNS,
        "INSERT INTO turns SELECT agent, principal, min(ready) FROM lanes WHERE ready IS NOT NULL GROUP BY 1, 2",
    ):
        connection.execute(statement)


# Schema n → the function that migrates to n + 1. All steps of one migration share a transaction.
MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {1: _index_topics_by_kind, 2: _give_principals_turns}


def connect(path: str, *, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_CACHED
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if read_only else CACHE_KIB}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def prepare_file(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate an older file. The caller holds the file lock."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    is_new = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
    if is_new:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # must come before the first table
    elif application_id != APPLICATION_ID:
        raise StorageCorrupt(f"{path} is a SQLite database of another program; choose another path")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted content with zeros
    # The writer thread runs checkpoints itself, between groups, after the waiting callers have their results.
    # SQLite would run them inside a COMMIT, and the callers of that group would wait for the checkpoint too.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    if is_new:
        create_tables(connection)
    else:
        migrate(connection, path)
    with transaction(connection):  # report a file that cannot be written now, not at the first append
        # Files of an older release lack it. It needs no schema number, because older releases ignore it.
        connection.execute(WORKER_PROCESSES)


def create_tables(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        for statement in (*TABLES.split(";\n"), WORKER_PROCESSES, *TURNS):
            if statement.strip():
                connection.execute(statement)
        facts = {
            "schema": str(SCHEMA),
            "log_id": str(uuid.uuid4()),
            "release": __version__,
            "salt": secrets.token_hex(16),
        }
        connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


class transaction:  # noqa: N801 - used as a statement
    """Run a block in a write transaction: commit at its end, roll back on an error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def schema_of(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row is None:
        raise StorageCorrupt("the schema version is missing from the log; restore a backup")
    return int(row[0])


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    found = schema_of(connection)
    if found > SCHEMA:
        raise SchemaTooNew(f"{path} has schema {found}, this release knows {SCHEMA}; upgrade magent2 to open it")
    if found == SCHEMA:
        return
    # A copy that is there already is of an earlier attempt, and the log may have grown since.
    write_backup(connection, Path(f"{path}.bak-{found}"), replace=True)
    with transaction(connection):
        for number in range(found, SCHEMA):
            MIGRATIONS[number](connection)
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA),))


def write_backup(connection: sqlite3.Connection, target: Path, *, replace: bool = False) -> None:
    """Write a consistent copy of the whole log; it is on disk when this returns.

    Copying the file itself would be wrong even with all writers stopped: POSIX drops every lock that a process has on a
    file when the process closes any handle of that file, and with them the locks of SQLite.
    """
    if target.exists() and not replace:
        raise StorageUnwritable(f"{target} exists already; choose another name or move it away")
    make_folder(target.parent)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    create_if_missing(part)  # VACUUM INTO accepts an empty file, and would create one that others can read
    connection.execute("VACUUM INTO ?", (str(part),))
    sync(part)
    part.replace(target)
    sync(target.parent)
