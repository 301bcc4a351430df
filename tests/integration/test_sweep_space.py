"""A sweep gives space back: SQLite to the file system, Redis to the memory of the server, PostgreSQL to its tables."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.retention import RetentionPolicy
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine import writer
from magent2.sessions.sweep import sweep_log
from tests.support.audit import whole_log
from tests.support.postgres_server import PostgresServer, Schemas
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

ANSWERS, TOKENS = 100, 80
LATER_MS = 10**14


def answer_often(engine: Engine) -> None:
    """Short answers: tokens lie between records that stay."""
    for number in range(ANSWERS):
        run = f"run-{number}"
        tokens = [NewRecord("stream:one", {"event": "token", "text": "x" * 100}, draft=run) for _ in range(TOKENS)]
        engine.call(Append(records=(*tokens, NewRecord("stream:one", {"event": "output"}, closes=run))))


def sweep(engine: Engine) -> None:
    policy = RetentionPolicy(tokens_after_s=0.0)
    eventually(lambda: run_sync(engine, sweep_log, policy, LATER_MS).tokens == 0 and not drafts(engine))


def drafts(engine: Engine) -> int:
    return sum(record.draft is not None for record in whole_log(engine, "stream:one"))


def test_the_file_of_a_sqlite_log_shrinks_after_a_sweep_without_further_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FREE_PAGES_KEPT", 16)
    monkeypatch.setattr(writer, "VACUUM_PAGES_MAX", 16)  # several rounds
    path = tmp_path / "log.db"
    bus = SqliteBus(path)
    answer_often(bus)
    bus.close()
    full = path.stat().st_size
    bus = SqliteBus(path)

    sweep(bus)

    eventually(lambda: path.stat().st_size < full / 4)
    bus.close()


def test_a_process_that_sweeps_and_ends_has_given_the_pages_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FREE_PAGES_KEPT", 16)
    monkeypatch.setattr(writer, "VACUUM_PAGES_MAX", 16)
    path = tmp_path / "log.db"
    bus = SqliteBus(path)
    answer_often(bus)
    bus.close()
    full = path.stat().st_size

    bus = SqliteBus(path)
    sweep(bus)
    bus.close()

    assert path.stat().st_size < full / 4


@pytest.mark.redis
def test_the_stream_of_a_redis_log_takes_less_memory_after_a_sweep(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url, prefix="space")
    answer_often(bus)
    with redis.Redis(port=redis_server.port) as client:
        full = client.memory_usage("space:t:stream:one", samples=0)

        sweep(bus)

        left = client.memory_usage("space:t:stream:one", samples=0)
        copies = client.keys("space:T:*")
    assert left < full / 10
    assert copies == []
    assert [record.seq for record in whole_log(bus, "stream:one")[:2]] == [TOKENS + 1, 2 * TOKENS + 2]
    bus.close()


@pytest.mark.postgres
def test_the_tables_of_a_postgres_log_do_not_grow_with_what_sweeps_remove(
    postgres_server: PostgresServer, postgres_schemas: Schemas
) -> None:
    schema = postgres_schemas.new_name()
    bus = connect(f"{postgres_server.url}?prefix={schema}")
    sizes = []
    with psycopg.connect(postgres_server.url, autocommit=True) as client:
        for _ in range(3):
            answer_often(bus)
            sweep(bus)
            client.execute(f"VACUUM {schema}.records")  # as autovacuum does
            ((size,),) = client.execute("SELECT pg_relation_size(%s)", (f"{schema}.records",)).fetchall()
            sizes.append(size)
    bus.close()

    print(sizes)
    assert sizes[2] < 1.2 * sizes[0]
