"""Logs that start from a saved database image. Creating tables and a directory in each world would be slow."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.sqlite_engine.clock import Clock
from magent2.bus.sqlite_engine.schema import connect


def leave_empty(bus: Engine) -> None:
    """Leave the log empty."""


@cache
def database_image(prepare: Callable[[Engine], None]) -> bytes:
    """The database of a log after `prepare` has run on it."""
    bus = MemoryBus()
    try:
        prepare(bus)
        return bus._db.connection.serialize()
    finally:
        bus.close()


class PreloadedBus(MemoryBus):
    """The memory engine on a copy of a database image."""

    def __init__(self, image: bytes, clock: Clock) -> None:
        self._image = image
        super().__init__(clock=clock)

    def _open(self) -> sqlite3.Connection:
        connection = connect(":memory:")
        connection.deserialize(self._image)
        return connection
