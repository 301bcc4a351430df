"""Limits that are set when an engine is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.interface import BusMessage, Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.postgres import PostgresBus
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from magent2.errors import PayloadTooLarge
from tests.support.engines import ENGINES
from tests.support.postgres_server import PostgresServer, Schemas
from tests.support.redis_server import RedisServer

SMALL_BYTES = 64


def small_engine(kind: str, request: pytest.FixtureRequest) -> Engine:
    if kind == "memory":
        return MemoryBus(payload_max_bytes=SMALL_BYTES)
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return SqliteBus(folder / "small.db", payload_max_bytes=SMALL_BYTES)
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        schemas: Schemas = request.getfixturevalue("postgres_schemas")
        return PostgresBus(postgres.url, prefix=schemas.new_name(), payload_max_bytes=SMALL_BYTES)
    server: RedisServer = request.getfixturevalue("redis_server")
    return RedisBus(server.url, prefix="small", payload_max_bytes=SMALL_BYTES)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_keeps_the_cap_that_it_was_told(kind: str, request: pytest.FixtureRequest) -> None:
    engine = small_engine(kind, request)
    try:
        engine.publish("chat:a", BusMessage("chat:a", {"x": "y" * (SMALL_BYTES - 8)}))
        with pytest.raises(PayloadTooLarge, match="64"):
            engine.publish("chat:a", BusMessage("chat:a", {"x": "y" * (SMALL_BYTES - 7)}))

        assert len(list(engine.read("chat:a"))) == 1
    finally:
        engine.close()
