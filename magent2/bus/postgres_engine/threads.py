"""Threads that run operations, each on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from magent2.background import log_error
from magent2.bus.operations import AnyOperation
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.postgres_engine.errors import is_transient, translate
from magent2.bus.servers import retry_delays
from magent2.bus.waiters import LoopBatches, QueuedOperation, ThreadWaiter, Waiter, finish_all
from magent2.errors import BusUnavailable, Magent2Error

log = logging.getLogger(__name__)

IDLE_S = 60.0  # a thread without work ends after this, and closes its connection

RunGroup = Callable[[Connection, Sequence[AnyOperation]], list[object]]


class OperationThreads:
    """Up to `threads_max` threads that take operations from one queue, up to `group_max` at a time.

    `run` runs a group and returns the result or the error of each operation. If a group of several fails as a whole,
    each operation is run alone, so that none fails because of another. An operation is tried again on another
    connection after its connection was lost: every operation has the same effect once and twice.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        run: RunGroup,
        server: str,
        retry_for_s: Callable[[], float],
        *,
        threads_max: int = 1,
        group_max: int = 1,
    ) -> None:
        self._name = name
        self._connect = connect
        self._run = run
        self._server = server
        self._retry_for_s = retry_for_s
        self._threads_max = threads_max
        self._group_max = group_max
        self._queue: deque[QueuedOperation] = deque()
        self._batches = LoopBatches(self.submit_all)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Number of threads that run an operation, each on its connection."""
        return len(self._threads) - self._idle

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def call(self, operation: AnyOperation) -> object:
        waiter = ThreadWaiter()
        self.submit_all([(operation, waiter)])
        outcome = waiter.wait()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def acall(self, operation: AnyOperation) -> object:
        return await self._batches.submit(operation, asyncio.get_running_loop())

    def submit_all(self, batch: Sequence[QueuedOperation]) -> None:
        with self._lock:
            if not self._closed:
                self._queue.extend(batch)
                self._wake_threads(len(batch))
                return
        finish_all([waiter for _, waiter in batch], [BusUnavailable(self._closed_message()) for _ in batch])

    def _wake_threads(self, count: int) -> None:
        wanted = -(-count // self._group_max)
        if self._idle:
            self._ready.notify(min(wanted, self._idle))
        wanted -= self._idle
        while wanted > 0 and len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._work, name=f"magent2-postgres-{self._name}", daemon=True)
            self._threads.add(thread)
            thread.start()
            wanted -= 1

    def _closed_message(self) -> str:
        return f"the bus on {self._server} is closed; open another"

    def flush(self) -> None:
        """Queue now what the event loop of this thread has collected."""
        self._batches.flush()

    def close(self) -> None:
        """Run the queued operations, then end the threads."""
        self.flush()
        with self._lock:
            self._closed = True
            self._ready.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- a thread ---

    def _work(self) -> None:
        slot = ConnectionSlot(self._connect)
        try:
            while (group := self._next_group()) is not None:
                self._run_group(slot, group)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
            slot.close()

    def _next_group(self) -> list[QueuedOperation] | None:
        """Wait for operations; `None` if the thread has to end."""
        with self._lock:
            deadline = time.monotonic() + IDLE_S
            while not self._queue:
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    self._threads.discard(threading.current_thread())  # under the lock: the next caller starts another
                    return None
                self._idle += 1
                try:
                    self._ready.wait(left)
                finally:
                    self._idle -= 1
            return [self._queue.popleft() for _ in range(min(self._group_max, len(self._queue)))]

    def _run_group(self, slot: ConnectionSlot, group: list[QueuedOperation]) -> None:
        """Run a group, and give every operation an outcome."""
        waiters: list[Waiter] = [waiter for _, waiter in group]
        try:
            outcomes = self._run_with_retry(slot, [operation for operation, _ in group])
        except Exception as error:  # noqa: BLE001  the callers get it, and the thread goes on
            slot.close()
            if len(group) > 1 and not is_transient(error):
                for queued in group:
                    self._run_group(slot, [queued])
                return
            outcomes = [self._failure(error) for _ in waiters]
        except BaseException as error:
            finish_all(waiters, [BusUnavailable(repr(error)) for _ in waiters])
            raise
        finish_all(waiters, outcomes)

    def _failure(self, error: Exception) -> Exception:
        failure = translate(error, self._server)
        if not isinstance(failure, Magent2Error):
            log_error("an operation of the postgres log failed", error, server=self._server)
        return failure

    def _run_with_retry(self, slot: ConnectionSlot, operations: Sequence[AnyOperation]) -> list[object]:
        delays: Iterator[float] | None = None
        while True:
            try:
                return self._run(slot.open(), operations)
            except Exception as error:
                slot.close()
                delays = delays or retry_delays(self._retry_for_s())
                delay_s = None if self._closed else next(delays, None)
                if delay_s is None or not is_transient(error):
                    raise
                time.sleep(delay_s)


class ConnectionSlot:
    """The connection of one thread, which is opened when it is needed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    def open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
