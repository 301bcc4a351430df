"""Migrations: a log that an earlier release has written, on SQLite and on Redis."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import redis

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    Append,
    Claim,
    Describe,
    Info,
    LastSeqIs,
    Leave,
    Topics,
)
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine.functions import SCHEMA_WITH_EPOCHS
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.schema import SCHEMA
from magent2.errors import SchemaTooNew
from tests.support.old_log import content, fill, fill_owned_lanes, write_old_log
from tests.support.redis_server import RedisServer

# A process that is killed in the middle of the migration of the log in argv[1], after the first statements of it.
KILLED_MIGRATION = """
import os, signal, sys
from magent2.bus.sqlite_engine import schema

def killed(connection):
    connection.execute("DROP INDEX topics_active")
    connection.execute("UPDATE topics SET head = '{}'")
    os.kill(os.getpid(), signal.SIGKILL)

schema.MIGRATIONS = {1: killed}
from magent2.bus.sqlite import SqliteBus
SqliteBus(sys.argv[1])
"""


def claimed_after_migration(bus: Engine) -> list[tuple[str, str]]:
    bus.call(Append(records=(NewRecord("chat:Z", {"conversation_id": "c1"}),)))
    bus.call(Leave("w1"))
    lanes = bus.call(Claim(worker="w2", agents=("Z",), limit=10, lease_s=60.0)).lanes
    return [(lane.owner.conversation, lane.principal) for lane in lanes]


def value(path: Path, sql: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchone()[0]


def schema_of(path: Path) -> int:
    return int(str(value(path, "SELECT value FROM meta WHERE key = 'schema'")))


# --- SQLite


@pytest.fixture
def old_log(tmp_path: Path) -> Path:
    """A log of schema 1 with the content of `fill`."""
    return write_old_log(tmp_path)


@pytest.fixture
def expected(old_log: Path) -> list[object]:
    bus = SqliteBus(old_log.with_name("new.db"))
    found = content(bus)
    bus.close()
    return found


def test_an_old_log_has_the_same_content_after_its_migration(old_log: Path, expected: list[object]) -> None:
    bus = SqliteBus(old_log)

    assert bus.call(Info()).schema == SCHEMA
    assert content(bus) == expected
    repeat = Append(records=(NewRecord("stream:a", {"text": "stream:a"}, "id-stream:a"),))
    assert bus.call(repeat).repeat
    bus.call(Append(records=(NewRecord("stream:new", {}),), conditions=(LastSeqIs("stream:new", 0),)))
    assert "stream:new" in [info.topic for info in bus.call(Topics("stream:")).topics]
    bus.close()


def test_a_migrated_log_has_the_tables_and_indexes_of_a_new_one(old_log: Path) -> None:
    SqliteBus(old_log).close()

    def structure(path: Path) -> list[object]:
        with closing(sqlite3.connect(path)) as connection:
            names = connection.execute("SELECT name, type FROM sqlite_master ORDER BY name").fetchall()
            tables = [connection.execute(f"PRAGMA table_xinfo({name})").fetchall() for name, _ in names]
            others = connection.execute("SELECT name, sql FROM sqlite_master WHERE type <> 'table' ORDER BY name")
            return [names, tables, others.fetchall()]

    assert structure(old_log) == structure(old_log.with_name("new.db"))


def test_the_log_is_copied_before_it_is_migrated(old_log: Path, expected: list[object]) -> None:
    SqliteBus(old_log).close()

    saved = Path(f"{old_log}.bak-1")
    assert (schema_of(old_log), schema_of(saved)) == (SCHEMA, 1)
    assert value(saved, "SELECT count(*) FROM sqlite_master WHERE name = 'topics_active'") == 1
    restored = old_log.with_name("restored.db")
    shutil.copy(saved, restored)
    bus = SqliteBus(restored)
    assert content(bus) == expected
    bus.close()


def test_a_process_that_is_killed_during_the_migration_leaves_the_log_as_it_was(
    old_log: Path, expected: list[object]
) -> None:
    code = textwrap.dedent(KILLED_MIGRATION)
    ended = subprocess.run([sys.executable, "-c", code, str(old_log)], check=False)
    assert ended.returncode == -9
    assert schema_of(old_log) == 1
    assert value(old_log, "SELECT count(*) FROM sqlite_master WHERE name = 'topics_active'") == 1

    bus = SqliteBus(old_log)

    assert content(bus) == expected
    bus.close()


def test_the_copy_of_an_interrupted_migration_is_replaced(old_log: Path) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED_MIGRATION), str(old_log)], check=False)
    with closing(sqlite3.connect(old_log)) as old_release, old_release:
        old_release.execute("UPDATE topics SET head = '{\"title\":\"later\"}' WHERE name = 'stream:b'")

    SqliteBus(old_log).close()

    assert value(Path(f"{old_log}.bak-1"), "SELECT head FROM topics WHERE name = 'stream:b'") == '{"title":"later"}'


def test_a_process_of_schema_1_that_has_the_log_open_goes_on(old_log: Path) -> None:
    with closing(sqlite3.connect(old_log, isolation_level=None)) as old_release:
        old_release.execute("SELECT * FROM topics").fetchall()
        bus = SqliteBus(old_log)

        row = (99, "stream:late", 0, 0, 0, '{"owner":"ann"}', "ann", 2**42, 10**6)
        old_release.execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

        assert bus.call(Topics("stream:", "ann", limit=1)).topics[0].topic == "stream:late"
        bus.close()


def test_ready_lanes_of_an_old_log_are_claimed_in_turns_of_their_owners(old_log: Path) -> None:
    bus = SqliteBus(old_log)

    assert bus.call(Describe(("stream:a1",)))[0].head == {"owner": "ann"}
    lanes = claimed_after_migration(bus)

    assert lanes == [("a0", "ann"), ("b1", "bob"), ("c1", ""), ("a1", "ann"), ("a2", "ann")]
    bus.close()


def test_lanes_that_a_process_of_schema_2_makes_ready_are_claimed(old_log: Path) -> None:
    with closing(sqlite3.connect(old_log, isolation_level=None)) as old_release:
        old_release.execute("SELECT * FROM lanes").fetchall()
        bus = SqliteBus(old_log)
        claim = Claim(worker="w2", agents=("Old",), limit=10, lease_s=60.0)
        assert bus.call(claim).lanes == ()

        row = ("late", "Old", 1, 10**6)
        old_release.execute("INSERT INTO lanes (conversation, agent, since_ms, ready) VALUES (?, ?, ?, ?)", row)
        old_release.execute("INSERT INTO lanes (conversation, agent, since_ms) VALUES ('later', 'Old', 1)")
        old_release.execute("UPDATE lanes SET ready = ? WHERE conversation = 'later'", (10**6 + 1,))

        again = Claim(worker="w2", agents=("Old",), limit=10, lease_s=60.0)
        assert [lane.owner.conversation for lane in bus.call(again).lanes] == ["late", "later"]
        bus.close()


def test_a_log_of_a_newer_schema_is_refused(old_log: Path) -> None:
    with closing(sqlite3.connect(old_log)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA + 1),))

    with pytest.raises(SchemaTooNew, match="upgrade magent2"):
        SqliteBus(old_log)

    assert not Path(f"{old_log}.bak-{SCHEMA + 1}").exists()


# --- Redis


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        yield client


def as_schema_1(server: redis.Redis, prefix: str) -> None:
    """Remove what schema 2 has added to a log."""
    for key in server.scan_iter(f"{prefix}:p:*"):
        server.delete(key)
    server.hset(f"{prefix}:meta", "schema", "1")


@pytest.mark.redis
def test_an_old_log_on_redis_is_indexed_when_it_is_opened(redis_server: RedisServer, server: redis.Redis) -> None:
    prefix = uuid.uuid4().hex
    bus = RedisBus(redis_server.url, prefix=prefix)
    fill(bus)
    for start in range(0, 3000, 1000):
        numbers = range(start, start + 1000)
        bus.call(Append(records=tuple(NewRecord(f"entity:key:{number}", {}) for number in numbers)))
    before = content(bus)
    bus.close()
    as_schema_1(server, prefix)

    bus = RedisBus(redis_server.url, prefix=prefix)

    assert bus.call(Info()).schema == SCHEMA
    assert content(bus) == before
    assert len(bus.call(Topics("entity:key:", limit=10_000)).topics) == 3000
    assert server.zcard(f"{prefix}:p:entity") == 3001
    assert server.hget(f"{prefix}:meta", "schema") == str(SCHEMA).encode()
    bus.close()


def as_schema_2(server: redis.Redis, prefix: str, agent: str) -> None:
    """Put the ready lanes of an agent into the one queue that it had until schema 2, by name."""
    names = cast("list[bytes]", server.lrange(f"{prefix}:a:{agent}", 0, -1))
    queues = [f"{prefix}:e:{len(agent)}:{agent}:{name.decode()}" for name in names]
    server.rpush(f"{prefix}:r:{agent}", *sorted(lane for queue in queues for lane in server.lrange(queue, 0, -1)))
    server.delete(*queues, f"{prefix}:a:{agent}")
    server.hset(f"{prefix}:meta", "schema", "2")


@pytest.mark.redis
def test_ready_lanes_of_an_old_log_on_redis_are_claimed_in_turns_of_their_owners(
    redis_server: RedisServer, server: redis.Redis
) -> None:
    prefix = uuid.uuid4().hex
    bus = RedisBus(redis_server.url, prefix=prefix)
    fill_owned_lanes(bus)
    bus.close()
    as_schema_2(server, prefix, "Z")
    assert server.lrange(f"{prefix}:r:Z", 0, -1) == [b"a1", b"a2", b"b1"]

    bus = RedisBus(redis_server.url, prefix=prefix)

    assert bus.call(Info()).schema == SCHEMA
    lanes = claimed_after_migration(bus)
    assert lanes == [("a0", "ann"), ("b1", "bob"), ("c1", ""), ("a1", "ann"), ("a2", "ann")]
    bus.close()


@pytest.mark.redis
def test_lanes_that_a_process_of_schema_2_leaves_on_redis_are_claimed_once(
    redis_server: RedisServer, server: redis.Redis
) -> None:
    prefix = uuid.uuid4().hex
    bus = RedisBus(redis_server.url, prefix=prefix)
    fill_owned_lanes(bus)
    as_schema_2(server, prefix, "Z")
    server.rpush(f"{prefix}:r:Z", "a0", "gone")  # a lane that is held, and one that was deleted

    claim = Claim(worker="w2", agents=("Z",), limit=10, lease_s=60.0)

    assert [lane.owner.conversation for lane in bus.call(claim).lanes] == ["a1", "b1", "a2"]
    assert server.exists(f"{prefix}:r:Z") == 0
    bus.close()


@pytest.mark.redis
def test_a_log_of_a_newer_schema_on_redis_is_refused(redis_server: RedisServer, server: redis.Redis) -> None:
    prefix = uuid.uuid4().hex
    server.hset(f"{prefix}:meta", mapping={"schema": SCHEMA_WITH_EPOCHS + 1, "log_id": "x", "release": "9"})

    bus = RedisBus(redis_server.url, prefix=prefix)
    with pytest.raises(SchemaTooNew, match="upgrade magent2"):
        bus.call(Info())
    bus.close()
