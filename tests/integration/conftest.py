"""Fixtures for tests with several processes; each test runs on a SQLite file, on Redis and on PostgreSQL."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from tests.support.postgres_server import Schemas
from tests.support.processes import ProcessGroup
from tests.support.redis_server import RedisServer

SEED_VARIABLE = "TEST_SEED"


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new log that any process can open by its URL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    if request.param == "postgres":
        schemas: Schemas = request.getfixturevalue("postgres_schemas")
        return schemas.new_url()
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix={uuid.uuid4().hex[:12]}"


@pytest.fixture
def engine(log_url: str) -> Iterator[Engine]:
    """The test's own connection to the log."""
    engine = connect(log_url)
    yield engine
    engine.close()


@pytest.fixture
def process_group() -> Iterator[ProcessGroup]:
    with ProcessGroup() as process_group:
        yield process_group


@pytest.fixture
def rng() -> random.Random:
    """A seeded random generator. A failed test prints its seed; `TEST_SEED=… pytest …` repeats it."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(2**32)))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(seed)
