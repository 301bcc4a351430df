"""The writer of a lane: everything that the owner of the lane appends, in order, one append in flight."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magent2.background import log_error, raise_if_cancelled
from magent2.bus.interface import Engine
from magent2.bus.operations import (
    RECORDS_PER_APPEND_MAX,
    Condition,
    Later,
    OwnedAppend,
    SetHead,
    Settle,
    Write,
    merge_heads,
)
from magent2.bus.records import AppendResult, MailRef, NewRecord, Owner
from magent2.bus.retry import retry_while_unavailable
from magent2.errors import InvalidInput, Magent2Error, Refused, TopicDeleted, WriterClosed

# Records that may wait behind the append in flight; then the run waits. This bounds the memory of what a run has not
# written yet: a token's record takes about 5 kB. A lower bound splits appends while the store is slow. With 64, an
# answer of 500 tokens from a fast model took 9 appends on SQLite; with 256 it takes 3.
AHEAD_MAX = 256
REFUSALS = (InvalidInput, Refused, TopicDeleted)  # nothing was changed, and the lane is still owned
CLOSED = "the lane was given up; this run can write no more"


@dataclass(slots=True, eq=False)
class _Entry:
    """Records that go into one append together; with `done`, a commit that waits for them."""

    records: list[NewRecord]
    mail: tuple[MailRef, ...] = ()
    heads: tuple[SetHead, ...] = ()
    conditions: tuple[Condition, ...] = ()
    done: asyncio.Future[None] | None = None
    open: bool = False  # later puts may add records to it


class LaneWriter:
    """Appends for one lane while it is owned.

    `put` queues and returns; `commit` returns when its records are on the log, after everything that was queued before.
    While one append is in flight, whatever is written meanwhile queues up and becomes the next append. There is no
    timer, nothing is merged and nothing is dropped: a run that is `AHEAD_MAX` records ahead waits.

    While the bus is unavailable or full, the same append is tried again. Once the owner is fenced or an append is
    refused, that error is kept as `failure` and raised by every later call. So is any other error of the bus: it is
    unknown whether the append took effect, so nothing can be written after it. A commit with conditions is an append of
    its own: when the log refuses it, only that commit fails.

    `close`, `settle` and `later` begin the end: from then on `put` and `commit` raise `WriterClosed`. Otherwise a late
    token could be appended behind the record that says how the run ended, or take the place of its last append.
    """

    def __init__(
        self,
        bus: Engine,
        owner: Owner,
        on_append: Callable[[float], object] | None = None,
        on_written: Callable[[Sequence[NewRecord], Sequence[int]], object] | None = None,
    ) -> None:
        self.owner = owner
        self.failure: Exception | None = None
        self._on_append = on_append  # gets the duration of each append in seconds
        self._on_written = on_written  # gets the records of each append and their seqs; no seqs if they are not known
        self._bus = bus
        self._n = 0
        self._entries: deque[_Entry] = deque()
        self._queued = 0
        self._pump: asyncio.Task[None] | None = None  # while an append is in flight
        self._pump_start: asyncio.Handle | None = None  # while it is about to begin
        self._closing = False
        self._room = asyncio.Event()
        self._room.set()

    def full(self) -> bool:
        """Whether `put` would wait."""
        return self._queued >= AHEAD_MAX

    def put_nowait(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        """Queue records without waiting for room."""
        last = self._entries[-1] if self._entries and not heads else None
        if last is not None and last.open and not self._closing:
            last.records += records
            self._queued += len(records)
        else:
            self._add(_Entry([*records], heads=heads, open=True))

    async def put(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        """Queue records, after waiting for room."""
        while self._queued >= AHEAD_MAX and not self._closing:
            self._room.clear()
            await self._room.wait()
        self.put_nowait(*records, heads=heads)

    async def commit(
        self,
        *records: NewRecord,
        mail: tuple[MailRef, ...] = (),
        heads: tuple[SetHead, ...] = (),
        conditions: tuple[Condition, ...] = (),
    ) -> None:
        """Append records behind everything that is queued, and return when they are on the log.

        A cancelled caller does not take the append back. It does not wait for room either: each of the few tasks of a
        run waits for its own commit, and a commit must not stand behind the tokens of another task.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieve_exception)
        self._add(_Entry([*records], mail, heads, conditions, done))
        await asyncio.shield(done)

    def close(self) -> None:
        """Refuse further writes. What is queued stays, for `settle` or `later`."""
        self._closing = True
        self._room.set()

    async def settle(
        self, mail: tuple[MailRef, ...], *records: NewRecord, heads: tuple[SetHead, ...] = ()
    ) -> AppendResult:
        """Make the last append: everything that is queued, then these records, and the mail leaves the lane."""
        queued, merged = await self._remaining(len(records))
        return await self._finish(
            Settle(owner=self.owner, mail=mail, records=(*queued, *records), heads=merge_heads([*merged, *heads]))
        )

    async def later(
        self, delay_s: float | None, *records: NewRecord, refund: bool = False, heads: tuple[SetHead, ...] = ()
    ) -> AppendResult:
        """Make the last append and release the lane with its mail, to be claimed again after the delay."""
        queued, merged = await self._remaining(len(records))
        return await self._finish(
            Later(
                owner=self.owner,
                delay_s=delay_s,
                refund=refund,
                records=(*queued, *records),
                heads=merge_heads([*merged, *heads]),
            )
        )

    def forget_refusal(self) -> None:
        """Forget a refused append and everything queued behind it, so that the lane can still be given up."""
        if isinstance(self.failure, REFUSALS):
            self.failure = None
            self._closing = False

    def _add(self, entry: _Entry) -> None:
        self._raise_failure()
        if self._closing:
            raise WriterClosed(CLOSED)
        self._entries.append(entry)
        self._queued += len(entry.records)
        if self._pump is None and self._pump_start is None:
            self._pump_start = asyncio.get_running_loop().call_soon(self._start_pump)

    def _start_pump(self) -> None:
        # Not in `_add`: what a run writes without waiting for anything is one append, also if that is the last one.
        self._pump_start = None
        self._pump = asyncio.create_task(self._run(), name="lane-writer")

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            while self._entries and not self._closing:
                batch = self._take(RECORDS_PER_APPEND_MAX)
                await self._append(batch)
        finally:
            self._pump = None

    def _take(self, room: int) -> list[_Entry]:
        """Entries for one append; one with conditions, or alone too large, goes alone."""
        batch: list[_Entry] = []
        while self._entries and (not batch or _fits(self._entries[0], room)):
            entry = self._entries.popleft()
            room -= len(entry.records)
            self._queued -= len(entry.records)
            batch.append(entry)
            if entry.conditions:
                break
        if self._queued < AHEAD_MAX:
            self._room.set()
        return batch

    async def _append(self, batch: list[_Entry]) -> None:
        self._n += 1
        try:
            await self._persist(
                OwnedAppend(
                    owner=self.owner,
                    n=self._n,
                    records=tuple(record for entry in batch for record in entry.records),
                    mail=tuple(ref for entry in batch for ref in entry.mail),
                    heads=merge_heads([head for entry in batch for head in entry.heads]),
                    conditions=batch[0].conditions,
                )
            )
        except REFUSALS as error:
            self._refuse(error, batch)
            return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the last handler
            # Every commit that waits must hear of it: there is no other append that could wake it.
            failure = error if isinstance(error, Exception) else RuntimeError("an append was cancelled")
            self._fail(failure, batch)
            raise_if_cancelled(error)
            if not isinstance(error, Magent2Error):
                log_error("the writer of a lane failed", error, owner=self.owner.token)
            return
        for entry in batch:
            if entry.done is not None and not entry.done.done():
                entry.done.set_result(None)

    async def _persist(self, operation: Write) -> AppendResult:
        begun = time.perf_counter()
        appended = await retry_while_unavailable(self._bus, operation, self.owner.token)
        if self._on_append is not None:
            self._on_append(time.perf_counter() - begun)
        if self._on_written is not None:
            self._on_written(operation.records, appended.seqs)
        return appended

    def _refuse(self, error: Exception, batch: list[_Entry]) -> None:
        """Fail only the commit whose conditions do not hold; any other refusal ends the run."""
        self._n -= 1  # nothing was changed, so the log has not seen this number either
        done = batch[0].done
        if isinstance(error, InvalidInput) or not batch[0].conditions or done is None:
            self._fail(error, batch)
            return
        if not done.done():
            done.set_exception(error)

    def _fail(self, error: Exception, batch: list[_Entry]) -> None:
        self.failure = error
        for entry in [*batch, *self._entries]:
            if entry.done is not None and not entry.done.done():
                entry.done.set_exception(error)
        self._entries.clear()
        self._queued = 0
        self._room.set()

    async def _remaining(self, room_for: int) -> tuple[list[NewRecord], list[SetHead]]:
        """Close, and return what is still queued after the append in flight, as far as one append has room for it."""
        self.close()
        if self._pump_start is not None:
            self._pump_start.cancel()
            self._pump_start = None
        if self._pump is not None:
            await asyncio.wait([self._pump])
        while self._entries and not self._fits_last(room_for):
            await self._append(self._take(RECORDS_PER_APPEND_MAX))
        self._raise_failure()
        entries = list(self._entries)
        self._entries.clear()
        self._queued = 0
        return [r for entry in entries for r in entry.records], [h for entry in entries for h in entry.heads]

    def _fits_last(self, room_for: int) -> bool:
        """Whether everything that is queued can be part of the last append."""
        waits = any(entry.conditions or entry.done is not None for entry in self._entries)
        return not waits and self._queued + room_for <= RECORDS_PER_APPEND_MAX

    async def _finish(self, operation: Settle | Later) -> AppendResult:
        try:
            appended = await self._persist(operation)
        except Exception as error:
            self._fail(error, [])
            raise
        self._fail(WriterClosed(CLOSED), [])
        return appended


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Mark an error as seen. The caller may have been cancelled; the failure is kept in the writer anyway."""
    if not done.cancelled():
        done.exception()


def _fits(entry: _Entry, room: int) -> bool:
    return not entry.conditions and len(entry.records) <= room
