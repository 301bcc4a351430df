"""The embedded engine: a log in one SQLite file, for any number of processes on one machine."""

from __future__ import annotations

import asyncio
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
from magent2.bus.sqlite_engine import writer as sqlite_writer
from magent2.bus.sqlite_engine.clock import Clock, SystemClock, boot_id
from magent2.bus.sqlite_engine.errors import explain
from magent2.bus.sqlite_engine.lock import FileLock
from magent2.bus.sqlite_engine.poll import PollingHub
from magent2.bus.sqlite_engine.schema import connect, prepare_file, write_backup
from magent2.bus.sqlite_engine.state import State, View
from magent2.bus.sqlite_engine.store import READS
from magent2.bus.sqlite_engine.writer import ThreadWaiter, Writer
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, InvalidInput
from magent2.settings import PAYLOAD_MAX_BYTES

R = TypeVar("R")


class SqliteBus(EngineBase):
    """What is acknowledged is on disk: operations that wait together share one commit with `synchronous=FULL`.

    Reads go to the file directly, from any thread. Writes go through one thread of this process, which takes turns with
    those of other processes.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, payload_max_bytes: int = PAYLOAD_MAX_BYTES, clock: Clock | None = None
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._boot = boot_id()
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._views: list[View] = []  # connections for reading that nobody uses now
        try:
            self._lock, connection = self._open()
        except (sqlite3.Error, OSError) as error:
            raise explain(error, str(self._path)) from error
        self._hub = PollingHub(self._reader, str(self._path))
        state = State(connection, self._clock, self._boot, payload_max_bytes)
        self._state = state
        self._writer = Writer(state, self._lock, str(self._path), self._hub.committed)

    def _open(self) -> tuple[FileLock, sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path.with_name(self._path.name + ".lock"))
        try:
            if not lock.acquire_within(sqlite_writer.LOCK_WAIT_MAX_S):
                raise BusUnavailable(sqlite_writer.held_elsewhere(str(self._path)))
            connection = connect(str(self._path))
            try:
                prepare_file(connection, self._path)
            except BaseException:
                connection.close()
                raise
            lock.release()
        except BaseException:
            lock.close()
            raise
        return lock, connection

    def call(self, operation: Operation[R]) -> R:
        self._check_usable()
        if type(operation) in READS:
            return cast("R", self._read(operation))
        waiter = ThreadWaiter()
        self._writer.submit(operation, waiter)
        outcome = waiter.wait()
        if isinstance(outcome, Exception):
            raise outcome
        return cast("R", outcome)

    async def acall(self, operation: Operation[R]) -> R:
        if self._closed or os.getpid() != self._pid:
            self._check_usable()
        if type(operation) in READS:
            return cast("R", self._read(operation))
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._writer.submit_soon(operation, future)
        return await future

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        self._check_usable()
        return self._hub.watch(topics)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """A copy of the log as it is now, in a new file; writers go on meanwhile."""
        self._check_usable()
        connection = connect(str(self._path))
        try:
            write_backup(connection, Path(path))
        except (sqlite3.Error, OSError) as error:
            raise explain(error, str(path)) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Commit what waits, then let go of the file. A bus of a process that was forked is only forgotten."""
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        ended = self._writer.close()
        self._hub.close()
        self._close_views()
        if ended:  # else they belong to the thread that still waits
            self._state.connection.close()
            self._lock.close()

    def _close_views(self) -> None:
        for view in [self._views.pop() for _ in range(len(self._views))]:
            view.connection.close()

    # --- reading ---

    def _reader(self) -> sqlite3.Connection:
        return connect(str(self._path), read_only=True)

    def _read(self, operation: Operation[Any]) -> Any:
        try:
            view = self._views.pop()
        except IndexError:
            view = View(self._reader(), self._clock, self._boot)
        try:
            return self._read_from(view, operation)
        finally:
            self._views.append(view)
            if self._closed:
                self._close_views()

    def _read_from(self, view: View, operation: Operation[Any]) -> Any:
        try:
            view.connection.execute("BEGIN")
            try:
                outcome = READS[type(operation)](view, operation)
            finally:
                view.connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise explain(error, str(self._path)) from error
        return replace(outcome, engine="sqlite") if isinstance(outcome, LogInfo) else outcome

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidInput(sqlite_writer.closed(str(self._path)))
        if os.getpid() != self._pid:
            raise InvalidInput(
                f"the bus on {self._path} was opened in process {self._pid} and cannot be used in its fork;"
                " open one after the fork"
            )
