"""Opens engines of each kind, each on an empty log."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from tests.support.redis_server import RedisServer

NewEngine: TypeAlias = Callable[[], Engine]

ENGINES = ("memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis))


def spoil_next_record(engine: Engine, topic: str, connection: sqlite3.Connection) -> None:
    """Append a record to a SQLite log, and replace its payload by bytes that are not JSON."""
    engine.call(Append(records=(NewRecord(topic, {"conversation_id": "c1"}, "spoiled"),)))
    with connection:
        connection.execute("UPDATE records SET payload = ? WHERE id = 'spoiled'", (b"not JSON",))


def new_engines(kind: str, request: pytest.FixtureRequest) -> NewEngine:
    """Return a function that opens engines of this kind, each on a log of its own."""
    if kind == "memory":
        return MemoryBus
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return lambda: SqliteBus(folder / f"{uuid.uuid4().hex}.db")
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda: RedisBus(server.url, prefix=uuid.uuid4().hex)
