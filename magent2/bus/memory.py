"""The engine without a file: the same store, in memory, for tests and for one process. Nothing survives it."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from magent2.bus.face import EngineBase
from magent2.bus.operations import Operation
from magent2.bus.records import LogInfo
from magent2.bus.sqlite_engine.clock import Clock, SystemClock
from magent2.bus.sqlite_engine.errors import explain
from magent2.bus.sqlite_engine.schema import connect, create_tables, write_backup
from magent2.bus.sqlite_engine.state import State
from magent2.bus.sqlite_engine.store import READS, run_group
from magent2.bus.watch import Watch, WatchHub
from magent2.errors import InvalidInput
from magent2.settings import PAYLOAD_MAX_BYTES

WHERE = "the log in memory"

R = TypeVar("R")


class MemoryBus(EngineBase):
    """Runs every operation where it is called, one at a time."""

    def __init__(self, *, payload_max_bytes: int = PAYLOAD_MAX_BYTES, clock: Clock | None = None) -> None:
        self._lock = threading.Lock()
        self._hub = WatchHub()
        self._closed = False
        self._state = State(self._open(), clock or SystemClock(), "memory", payload_max_bytes)

    def _open(self) -> sqlite3.Connection:
        connection = connect(":memory:")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a backup is a file like any other
        create_tables(connection)
        return connection

    def call(self, operation: Operation[R]) -> R:
        changed: set[str] = set()
        with self._lock:
            self._check_open()
            try:
                if type(operation) in READS:
                    return cast("R", self._read(operation))
                outcome = self._write(operation)
                changed = self._state.changed
            except sqlite3.Error as error:
                raise explain(error, WHERE) from error
        self._hub.notify(changed)
        if isinstance(outcome, Exception):
            raise outcome
        return cast("R", outcome)

    async def acall(self, operation: Operation[R]) -> R:
        return self.call(operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        self._check_open()
        return self._hub.watch(topics)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """The log as it is now, as a file that `SqliteBus` opens."""
        with self._lock:
            self._check_open()
            try:
                write_backup(self._state.connection, Path(path))
            except (sqlite3.Error, OSError) as error:
                raise explain(error, str(path)) from error

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._state.connection.close()

    def _read(self, operation: Operation[Any]) -> Any:
        outcome = READS[type(operation)](self._state, operation)
        return replace(outcome, engine="memory") if isinstance(outcome, LogInfo) else outcome

    def _write(self, operation: Operation[Any]) -> Any:
        connection = self._state.connection
        connection.execute("BEGIN")
        try:
            outcome = run_group(self._state, (operation,))[0]
            connection.execute("COMMIT")
        except BaseException:
            self._state.reset()
            connection.execute("ROLLBACK")
            raise
        return outcome

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this MemoryBus is closed; make another")
