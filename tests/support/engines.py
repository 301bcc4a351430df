"""Opens engines of each kind, each on an empty log."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Operation
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.clock import SystemClock, boot_id
from magent2.bus.sqlite_engine.connection import ReadConnection, WriteConnection
from magent2.bus.sqlite_engine.dispatch import READS, WRITES, run_group
from magent2.settings import PAYLOAD_MAX_BYTES
from tests.support.postgres_server import Schemas
from tests.support.redis_server import RedisServer

NewEngine: TypeAlias = Callable[[], Engine]

ENGINES = (
    "memory",
    "sqlite",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("postgres", marks=pytest.mark.postgres),
)
# For suites of the layers above the bus. Memory runs the statements of SQLite, so they run once. What a file adds is in
# the conformance suite and in the tests with several processes.
DISTINCT_ENGINES = tuple(kind for kind in ENGINES if kind != "sqlite")


def spoil_next_record(engine: Engine, topic: str, connection: sqlite3.Connection) -> None:
    """Append a record to a SQLite log, and replace its payload by bytes that are not JSON."""
    engine.call(Append(records=(NewRecord(topic, {"conversation_id": "c1"}, "spoiled"),)))
    with connection:
        connection.execute("UPDATE records SET payload = ? WHERE id = 'spoiled'", (b"not JSON",))


def count_instructions(connection: sqlite3.Connection, operation: Operation[Any]) -> int:
    """Run an operation on a SQLite log, and count the instructions that SQLite executes for it. A write is undone."""
    count = 0

    def executed() -> int:
        nonlocal count
        count += 1
        return 0

    connection.execute("BEGIN IMMEDIATE" if type(operation) in WRITES else "BEGIN")
    connection.set_progress_handler(executed, 1)
    if type(operation) in WRITES:
        run_group(WriteConnection(connection, SystemClock(), boot_id(), PAYLOAD_MAX_BYTES), [operation])
    else:
        READS[type(operation)](ReadConnection(connection, SystemClock(), ""), operation)
    connection.set_progress_handler(None, 0)
    connection.execute("ROLLBACK")
    return count


def new_engines(kind: str, request: pytest.FixtureRequest) -> NewEngine:
    """Return a function that opens engines of this kind, each on a log of its own."""
    if kind == "memory":
        return MemoryBus
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return lambda: SqliteBus(folder / f"{uuid.uuid4().hex}.db")
    if kind == "postgres":
        schemas: Schemas = request.getfixturevalue("postgres_schemas")
        return lambda: connect(schemas.new_url())
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda: RedisBus(server.url, prefix=uuid.uuid4().hex)
