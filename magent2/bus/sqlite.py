"""The SQLite engine: a log in one file, shared by any number of processes on one machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from magent2.bus.base import EngineBase
from magent2.bus.operations import AnyOperation, Operation
from magent2.bus.record_watch import RecordWatch
from magent2.bus.records import LogInfo, Page, page_after
from magent2.bus.sqlite_engine import writer as sqlite_writer
from magent2.bus.sqlite_engine.clock import Clock, SystemClock, boot_id
from magent2.bus.sqlite_engine.connection import ReadConnection, ReadTooLarge, ShortReadConnection, WriteConnection
from magent2.bus.sqlite_engine.dispatch import LONG_READS, READS
from magent2.bus.sqlite_engine.errors import primary_code, translate_error
from magent2.bus.sqlite_engine.file_lock import FileLock
from magent2.bus.sqlite_engine.lanes import EndProcess
from magent2.bus.sqlite_engine.peer_sockets import FOLDER_SUFFIX
from magent2.bus.sqlite_engine.poll import PollingHub
from magent2.bus.sqlite_engine.schema import MIGRATIONS, connect, prepare_file, write_backup
from magent2.bus.sqlite_engine.writer import WriterThread
from magent2.bus.waiters import ThreadWaiter
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, InvalidInput
from magent2.private_files import create_if_missing, make_folder, narrow
from magent2.settings import PAYLOAD_MAX_BYTES

FILE_SUFFIXES = (
    "",
    "-wal",
    "-shm",
    ".lock",
    ".lock.waiting",
    FOLDER_SUFFIX,
    *(f".bak-{schema}" for schema in MIGRATIONS),
)
READ_THREADS = 2  # for the long reads of event loops

R = TypeVar("R")
Reader = TypeVar("Reader", bound=ReadConnection)


class SqliteBus(EngineBase):
    """A bus on a SQLite file. An acknowledged write is on disk (`synchronous=FULL`).

    Reads use connections of their own, on the thread of the caller. An event loop only makes short reads itself:
    what is longer is read on a thread (`ShortReadConnection`). Writes go through one thread of this process, which
    commits the operations that wait together in one transaction, and takes turns with the writers of other processes.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, payload_max_bytes: int = PAYLOAD_MAX_BYTES, clock: Clock | None = None
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._boot_id = boot_id()
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._idle_readers: list[ReadConnection] = []
        self._idle_short_readers: list[ShortReadConnection] = []
        self._read_threads = ThreadPoolExecutor(READ_THREADS, "magent2-sqlite-read")
        try:
            self._lock, connection = self._open()
        except (sqlite3.Error, OSError) as error:
            raise translate_error(error, str(self._path)) from error
        self._hub = PollingHub(self._connect_reader, self._path, self._end_process)
        self._db = WriteConnection(connection, self._clock, self._boot_id, payload_max_bytes, self._hub.process_name)
        self._writer = WriterThread(self._db, self._lock, str(self._path), self._hub.committed)

    def _end_process(self, name: str) -> None:
        self._writer.submit(EndProcess(name), ThreadWaiter())  # not waited for: it is tried again until it is done

    def _open(self) -> tuple[FileLock, sqlite3.Connection]:
        make_folder(self._path.parent)
        narrow(*(self._path.with_name(self._path.name + suffix) for suffix in FILE_SUFFIXES))
        lock = FileLock(self._path.with_name(self._path.name + ".lock"))
        try:
            if not lock.acquire_within(sqlite_writer.LOCK_WAIT_MAX_S):
                raise BusUnavailable(sqlite_writer.lock_held_message(str(self._path)))
            create_if_missing(self._path)  # SQLite gives the write-ahead log and its index the mode of this file
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
            if type(operation) not in LONG_READS:
                try:
                    return cast("R", self._short_read(operation))
                except ReadTooLarge:
                    pass  # it has cost the loop about a millisecond, and is made again on a thread
            loop = asyncio.get_running_loop()
            return cast("R", await loop.run_in_executor(self._read_threads, self._read, operation))
        return cast("R", await self._writer.submit_soon(operation, asyncio.get_running_loop()))

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        self._check_usable()
        return self._hub.watch(topics)

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Return the records that this process has appended, or read them if they do not follow the cursor."""
        page = page_after(cursor, watch.take(topic)) if isinstance(watch, RecordWatch) else None
        return page if page is not None else await super().next_page(watch, topic, cursor)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the log in its current state to a new file. Writers are not blocked."""
        self._check_usable()
        connection = connect(str(self._path))
        try:
            write_backup(connection, Path(path))
        except (sqlite3.Error, OSError) as error:
            raise translate_error(error, str(path)) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Commit the queued operations, then close the file. Does nothing in a forked child."""
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        ended = self._writer.close()
        self._hub.close()
        self._read_threads.shutdown(wait=False)
        self._close_idle_readers()
        if ended:  # otherwise the writer thread still waits for the lock and uses both
            self._db.connection.close()
            self._lock.close()

    def _close_idle_readers(self) -> None:
        for idle in (self._idle_readers, self._idle_short_readers):
            for reader in [idle.pop() for _ in range(len(idle))]:
                reader.connection.close()

    # --- reading ---

    def _connect_reader(self) -> sqlite3.Connection:
        return connect(str(self._path), read_only=True)

    def _read(self, operation: AnyOperation) -> object:
        """Run a read operation on an idle connection, or on a new one if all are in use.

        `list.pop` and `list.append` are atomic, so the pool needs no lock.
        """
        try:
            reader = self._idle_readers.pop()
        except IndexError:
            reader = ReadConnection(self._connect_reader(), self._clock, self._boot_id)
        try:
            return self._read_from(reader, operation)
        finally:
            self._put_back(reader, self._idle_readers)

    def _short_read(self, operation: AnyOperation) -> object:
        """Like `_read`, on the thread of an event loop. Raises `ReadTooLarge` if it takes too long for that."""
        try:
            reader = self._idle_short_readers.pop()
        except IndexError:
            reader = ShortReadConnection(self._connect_reader(), self._clock, self._boot_id)
        try:
            return self._read_from(reader, operation)
        finally:
            self._put_back(reader, self._idle_short_readers)

    def _put_back(self, reader: Reader, idle: list[Reader]) -> None:
        if reader.connection.in_transaction:  # its end has failed, and so would every later begin
            reader.connection.close()
            return
        idle.append(reader)
        if self._closed:  # `close` ran during the read and did not see this connection
            self._close_idle_readers()

    def _read_from(self, reader: ReadConnection, operation: AnyOperation) -> object:
        try:
            reader.begin()
            try:
                outcome = READS[type(operation)](reader, operation)
            finally:
                reader.end()
        except sqlite3.Error as error:
            if isinstance(reader, ShortReadConnection) and primary_code(error) == sqlite3.SQLITE_INTERRUPT:
                raise ReadTooLarge from error
            raise translate_error(error, str(self._path)) from error
        return replace(outcome, engine="sqlite") if isinstance(outcome, LogInfo) else outcome

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidInput(sqlite_writer.closed_message(str(self._path)))
        if os.getpid() != self._pid:
            raise InvalidInput(
                f"the bus on {self._path} was opened in process {self._pid} and cannot be used in its fork;"
                " open one after the fork"
            )
