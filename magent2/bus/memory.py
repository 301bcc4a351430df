"""The memory engine: the SQLite engine on a database in memory, for tests and single processes. Nothing is kept."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from magent2.bus.base import EngineBase
from magent2.bus.operations import AnyOperation, Operation
from magent2.bus.records import LogInfo
from magent2.bus.sqlite_engine.clock import Clock, SystemClock
from magent2.bus.sqlite_engine.connection import WriteConnection
from magent2.bus.sqlite_engine.dispatch import READS, run_group
from magent2.bus.sqlite_engine.errors import translate_error
from magent2.bus.sqlite_engine.schema import connect, create_tables, write_backup
from magent2.bus.watch import Watch, WatchHub
from magent2.errors import InvalidInput
from magent2.settings import PAYLOAD_MAX_BYTES

LOG_NAME = "the log in memory"  # in place of a path in error messages

R = TypeVar("R")


class MemoryBus(EngineBase):
    """A bus in memory. Operations run on the thread of the caller, one at a time."""

    def __init__(self, *, payload_max_bytes: int = PAYLOAD_MAX_BYTES, clock: Clock | None = None) -> None:
        self._lock = threading.Lock()
        self._hub = WatchHub()
        self._closed = False
        self._db = WriteConnection(self._open(), clock or SystemClock(), "memory", payload_max_bytes)

    def _open(self) -> sqlite3.Connection:
        """Create the database. The simulation overrides this to start from an image."""
        connection = connect(":memory:")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a backup has the settings of a log in a file
        create_tables(connection)
        return connection

    def call(self, operation: Operation[R]) -> R:
        with self._lock:
            self._check_open()
            try:
                if type(operation) in READS:
                    found = READS[type(operation)](self._db, operation)
                    return cast("R", replace(found, engine="memory") if isinstance(found, LogInfo) else found)
                outcome = self._write(operation)
                changes = self._db.take_changes()
            except sqlite3.Error as error:
                raise translate_error(error, LOG_NAME) from error
        self._hub.notify(changes.topics, changes.listed)
        if isinstance(outcome, Exception):
            raise outcome
        return cast("R", outcome)

    async def acall(self, operation: Operation[R]) -> R:
        return self.call(operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        self._check_open()
        return self._hub.watch(topics)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write the log in its current state to a file that `SqliteBus` opens."""
        with self._lock:
            self._check_open()
            try:
                write_backup(self._db.connection, Path(path))
            except (sqlite3.Error, OSError) as error:
                raise translate_error(error, str(path)) from error

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.connection.close()

    def _write(self, operation: AnyOperation) -> object:
        connection = self._db.connection
        connection.execute("BEGIN")
        try:
            outcome = run_group(self._db, (operation,))[0]
            connection.execute("COMMIT")
        except BaseException:
            self._db.reset()
            connection.execute("ROLLBACK")
            raise
        return outcome

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this MemoryBus is closed; create another")
