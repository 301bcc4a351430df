"""The PostgreSQL engine: functions on the server do the work, called from threads of this process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from magent2.bus.base import EngineBase
from magent2.bus.operations import (
    AnyOperation,
    Append,
    Claim,
    Delete,
    Describe,
    Dump,
    Erase,
    Find,
    GetBlob,
    Info,
    Lanes,
    Later,
    Leave,
    Load,
    Operation,
    OwnedAppend,
    Pending,
    Read,
    Renew,
    Scrub,
    Settle,
    Topics,
    Workers,
    Write,
)
from magent2.bus.postgres_engine import lanes, reads, transfer
from magent2.bus.postgres_engine.clock import LogClock
from magent2.bus.postgres_engine.connection import Connection, PostgresAddress
from magent2.bus.postgres_engine.maintenance import MAINTENANCE, SCRUB_MAX_BYTES, ScrubWait
from magent2.bus.postgres_engine.notifications import NotificationHub
from magent2.bus.postgres_engine.schema import log_info, prepare
from magent2.bus.postgres_engine.threads import OperationThreads, RunGroup
from magent2.bus.postgres_engine.writes import WriteGroup
from magent2.bus.record_watch import Changes, RecordWatch
from magent2.bus.records import LogInfo, Page, page_after
from magent2.bus.scrub import Scrubber
from magent2.bus.servers import DEFAULT_PREFIX, FIRST_CONTACT_S, RETRY_FOR_S
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, Magent2Error
from magent2.models.address import chat_topic
from magent2.settings import PAYLOAD_MAX_BYTES

log = logging.getLogger(__name__)

R = TypeVar("R")

DEFAULT_URL = "postgresql://localhost:5432/magent2"
GROUP_MAX = 256  # writes per commit
READ_CONNECTIONS_MAX = 4

READS: dict[type[AnyOperation], Callable[[Connection, Any], object]] = {
    Read: reads.read,
    Find: reads.find,
    Describe: reads.describe,
    Topics: reads.topics,
    GetBlob: reads.get_blob,
    Pending: lanes.pending,
    Lanes: lanes.lanes,
    Workers: lanes.workers,
    Dump: transfer.dump,
}
WRITES = (Append, OwnedAppend, Settle, Later)
LEASES = (Claim, Renew, Leave)
DELETIONS = (Delete, Erase)


class PostgresBus(EngineBase):
    """A log in a schema of a PostgreSQL database. The first operation contacts the server.

    Appends of this process that wait at the same time are committed together, on one connection. Claims have another
    one: they do not wait for the disk. Reads share up to `READ_CONNECTIONS_MAX`. Maintenance, scrubs and notifications
    have one each. Connections that are not used for a minute are closed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        payload_max_bytes: int = PAYLOAD_MAX_BYTES,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self._server = PostgresAddress.parse(url or DEFAULT_URL, DEFAULT_PREFIX if prefix is None else prefix)
        self._payload_max_bytes = payload_max_bytes
        self._retry_for_s = retry_for_s
        self._clock = LogClock()
        self._info: LogInfo | None = None
        self._closed = False
        self._begin()
        _BUSES.add(self)

    def _begin(self) -> None:
        """Set up without any connection: at creation, and in a forked child."""
        self._preparing = threading.Lock()
        self._has_warned = False  # that the log is too large for a scrub
        self._hub = NotificationHub(self._connect, self._server)
        self._writer = self._threads("write", self._run_writes, group_max=GROUP_MAX)
        self._claimer = self._threads("claim", self._run_leases)
        self._maintainer = self._threads("maintain", self._run_maintenance)
        self._readers = self._threads("read", self._run_read, threads_max=READ_CONNECTIONS_MAX)
        scrubs = self._scrub_threads = self._threads("scrub", self._run_maintenance)
        self._scrubber = Scrubber(
            "postgres",
            lambda: cast("float | None", scrubs.call(ScrubWait())),
            lambda: cast("bool", scrubs.call(Scrub())),
        )

    @property
    def _all_threads(self) -> tuple[OperationThreads, ...]:
        return self._writer, self._claimer, self._maintainer, self._readers, self._scrub_threads

    @property
    def usage(self) -> ConnectionUsage:
        """How many connections are in use now, for metrics."""
        return ConnectionUsage(self)

    def _threads(self, name: str, run: RunGroup, **limits: int) -> OperationThreads:
        return OperationThreads(name, self._connect, run, str(self._server), self._retry_s, **limits)

    def _retry_s(self) -> float:
        """For how long an operation is tried again: only briefly as long as no connection has ever succeeded."""
        return FIRST_CONTACT_S if self._info is None else self._retry_for_s

    def _connect(self) -> Connection:
        connection = self._server.connect()
        try:
            with self._preparing:
                # Each time: the server may be another one, which lacks the last that was created on the one before.
                prepare(connection, self._server.schema)
                if self._info is None:
                    self._set_info(log_info(connection, self._server))
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_info(self, found: LogInfo) -> None:
        self._info = found
        for warning in found.warnings:
            log.warning("postgres server is not set up safely", extra={"server": str(self._server), "warning": warning})

    # --- operations

    def call(self, operation: Operation[R]) -> R:
        self._check_open()
        result = self._threads_for(operation).call(operation)
        self._scrubber.operation_ended(deleted=isinstance(operation, DELETIONS))
        return cast("R", result)

    async def acall(self, operation: Operation[R]) -> R:
        self._check_open()
        result = await self._threads_for(operation).acall(operation)
        self._scrubber.operation_ended(deleted=isinstance(operation, DELETIONS))
        return cast("R", result)

    def _threads_for(self, operation: AnyOperation) -> OperationThreads:
        if isinstance(operation, WRITES):
            return self._writer
        if isinstance(operation, LEASES):
            return self._claimer
        return self._readers if type(operation) in READS or isinstance(operation, Info) else self._maintainer

    def _run_writes(self, connection: Connection, operations: Sequence[AnyOperation]) -> list[object]:
        outcomes: list[object] = [None] * len(operations)
        places = list(range(len(operations)))
        while places:
            group = WriteGroup(self._payload_max_bytes)
            chosen: list[int] = []
            left: list[int] = []
            for place in places:
                try:
                    (chosen if group.add(cast("Write", operations[place])) else left).append(place)
                except Magent2Error as refusal:
                    outcomes[place] = refusal
            if chosen:
                results, changes, versions = group.run(connection, self._clock)
                for place, outcome in zip(chosen, results, strict=True):
                    outcomes[place] = outcome
                if changes.topics:
                    self._hub.committed(changes, versions)
            places = left
        return outcomes

    def _run_leases(self, connection: Connection, operations: Sequence[AnyOperation]) -> list[object]:
        (operation,) = operations
        if isinstance(operation, Renew):
            return [lanes.renew(connection, operation, self._clock)]
        outcome: object
        if isinstance(operation, Claim):
            outcome, woken = lanes.claim(connection, operation, self._clock)
        else:
            outcome, woken = lanes.leave(connection, cast("Leave", operation))
        if woken:
            self._hub.committed(Changes({chat_topic(agent) for agent in woken}, set(), 0, (), 0, erased=False), {})
        return [outcome]

    def _run_read(self, connection: Connection, operations: Sequence[AnyOperation]) -> list[object]:
        (operation,) = operations
        if isinstance(operation, Info):
            return [log_info(connection, self._server)]
        try:
            return [READS[type(operation)](connection, operation)]
        except Magent2Error as refusal:
            return [refusal]

    def _run_maintenance(self, connection: Connection, operations: Sequence[AnyOperation]) -> list[object]:
        (operation,) = operations
        try:
            if isinstance(operation, Load):
                transfer.load(connection, operation)
                return [None]
            done = MAINTENANCE[type(operation)](connection, operation)
        except Magent2Error as refusal:
            return [refusal]
        if done.versions or done.erased:
            topics = set(done.versions)
            changes = Changes(topics, topics if done.listed else set(), 0, (), 0, done.erased)
            self._hub.committed(changes, done.versions)
        if done.left_bytes and not self._has_warned:
            self._has_warned = True
            log.warning(
                "postgres log is too large to remove deleted content while in use; see 'magent2 erase --wait'",
                extra={"server": str(self._server), "bytes": done.left_bytes, "bytes_max": SCRUB_MAX_BYTES},
            )
        return [done.result]

    # --- watching

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        self._check_open()
        return self._hub.watch(topics)

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Return the records that this process has appended, or read them if they do not follow the cursor."""
        page = page_after(cursor, watch.take(topic)) if isinstance(watch, RecordWatch) else None
        return page if page is not None else await super().next_page(watch, topic, cursor)

    # --- closing

    def _check_open(self) -> None:
        if self._closed:
            raise BusUnavailable(f"the bus on {self._server} is closed; open another")

    async def aclose(self) -> None:
        self._closed = True
        for threads in self._all_threads:
            threads.flush()
        # Not in the default executor: tools may occupy all of its threads.
        closer = ThreadPoolExecutor(1, "magent2-postgres-close")
        try:
            await asyncio.get_running_loop().run_in_executor(closer, self.close)
        finally:
            closer.shutdown(wait=False)

    def close(self) -> None:
        """Commit the queued operations, scrub what this process has deleted, then close all connections."""
        self._closed = True
        self._scrubber.close()
        for threads in self._all_threads:
            threads.close()
        self._hub.close()


class ConnectionUsage:
    """The connections of a bus that run an operation, and the operations that wait for one."""

    def __init__(self, bus: PostgresBus) -> None:
        self._bus = bus

    @property
    def busy(self) -> int:
        return sum(threads.busy for threads in self._bus._all_threads)

    @property
    def waiting(self) -> int:
        return sum(threads.waiting for threads in self._bus._all_threads)


_BUSES: weakref.WeakSet[PostgresBus] = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Start anew in a forked child. psycopg leaves connections alone that another process has opened."""
    for bus in list(_BUSES):
        bus._begin()


os.register_at_fork(after_in_child=_reset_after_fork)
