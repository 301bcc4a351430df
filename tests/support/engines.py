"""How the tests open each engine on an empty log of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from tests.support.redis_server import RedisServer

NewEngine: TypeAlias = Callable[[], Engine]

ENGINES = ("memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis))


def new_engines(kind: str, request: pytest.FixtureRequest) -> NewEngine:
    """A maker of engines of this kind, each on its own log."""
    if kind == "memory":
        return MemoryBus
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return lambda: SqliteBus(folder / f"{uuid.uuid4().hex}.db")
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda: RedisBus(server.url, prefix=f"{uuid.uuid4().hex}:")
