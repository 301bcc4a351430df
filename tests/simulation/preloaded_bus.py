"""Logs that begin where another has got to: to make tables and to settle a town takes as long as a part of a world."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.sqlite_engine.connection import Clock
from magent2.bus.sqlite_engine.schema import connect


def leave_empty(bus: Engine) -> None:
    """A log without a record."""


@cache
def database_image(prepare: Callable[[Engine], None]) -> bytes:
    """A log as it is after this."""
    bus = MemoryBus()
    try:
        prepare(bus)
        return bus._db.connection.serialize()
    finally:
        bus.close()


class PreloadedBus(MemoryBus):
    """The memory engine on a log that is there already."""

    def __init__(self, image: bytes, clock: Clock) -> None:
        self._image = image
        super().__init__(clock=clock)

    def _open(self) -> sqlite3.Connection:
        connection = connect(":memory:")
        connection.deserialize(self._image)
        return connection
