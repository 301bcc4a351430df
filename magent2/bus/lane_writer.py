"""The pen of a run: all that one owner appends, in order, one append in flight."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
from magent2.errors import Fenced, InvalidInput, Magent2Error, Refused, TopicDeleted

QUEUE_MAX = 10_000  # records that may wait for the bus; then the run waits
ENTRY_MAX = 500  # records that wait as one; tokens are many
REFUSALS = (InvalidInput, Refused, TopicDeleted)  # nothing was changed, and the lane is still held
ENDED = "the lane was given up; this run can write no more"


@dataclass(slots=True, eq=False)
class _Entry:
    records: list[NewRecord]
    mail: tuple[MailRef, ...] = ()
    heads: tuple[SetHead, ...] = ()
    conditions: tuple[Condition, ...] = ()
    done: asyncio.Future[None] | None = None
    open: bool = False  # more records may join it


class LaneWriter:
    """Appends for one lane while it is owned.

    `put` queues and returns; `commit` returns when what it was given is on the log, and all before it. The next append
    carries all that queued meanwhile: no timer, nothing merged, nothing dropped. While the bus does not answer, or is
    full, the same append is tried again; once the owner is fenced, or an append is refused, every later call raises
    that error, which is kept as `failure`. After `settle` or `later` whoever still writes is told that it is too late.
    A commit with conditions goes alone: when the log refuses it, it alone fails, and the run goes on.
    """

    def __init__(self, bus: Engine, owner: Owner, note_taken: Callable[[float], object] | None = None) -> None:
        self.owner = owner
        self._note_taken = note_taken  # is told how long each append took
        self._bus = bus
        self._n = 0
        self._entries: deque[_Entry] = deque()
        self._queued = 0
        self._pump: asyncio.Task[None] | None = None
        self._closing = False
        self.failure: Magent2Error | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        last = self._entries[-1] if self._entries and not heads else None
        if last is not None and last.open and len(last.records) < ENTRY_MAX:
            last.records += records
            self._queued += len(records)
        else:
            self._add(_Entry([*records], heads=heads, open=True))
        if self._queued > QUEUE_MAX:
            self._room.clear()
            await self._room.wait()
            self._raise_failure()

    async def commit(
        self,
        *records: NewRecord,
        mail: tuple[MailRef, ...] = (),
        heads: tuple[SetHead, ...] = (),
        conditions: tuple[Condition, ...] = (),
    ) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look)
        self._add(_Entry([*records], mail, heads, conditions, done))
        await asyncio.shield(done)

    async def settle(
        self, mail: tuple[MailRef, ...], *records: NewRecord, heads: tuple[SetHead, ...] = ()
    ) -> AppendResult:
        """The last append: all that is queued, then these, and the mail is gone."""
        queued, merged = await self._rest(len(records))
        return await self._finish(
            Settle(owner=self.owner, mail=mail, records=(*queued, *records), heads=merge_heads([*merged, *heads]))
        )

    async def later(
        self, delay_s: float | None, *records: NewRecord, refund: bool = False, heads: tuple[SetHead, ...] = ()
    ) -> AppendResult:
        queued, merged = await self._rest(len(records))
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
        """Forget an append that was refused, and all behind it, so that the lane can still be given up."""
        if isinstance(self.failure, REFUSALS):
            self.failure = None
            self._closing = False

    # --- inside

    def _add(self, entry: _Entry) -> None:
        self._raise_failure()
        self._entries.append(entry)
        self._queued += len(entry.records)
        if self._pump is None:
            self._pump = asyncio.create_task(self._run(), name="owner-log")

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
        if self._queued <= QUEUE_MAX:
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
        except Magent2Error as error:
            self._fail(error, batch)
            return
        for entry in batch:
            if entry.done is not None and not entry.done.done():
                entry.done.set_result(None)

    async def _persist(self, operation: Write) -> AppendResult:
        if self._note_taken is None:
            return await retry_while_unavailable(self._bus, operation, self.owner.token)
        begun = time.perf_counter()
        appended = await retry_while_unavailable(self._bus, operation, self.owner.token)
        self._note_taken(time.perf_counter() - begun)
        return appended

    def _refuse(self, error: Magent2Error, batch: list[_Entry]) -> None:
        """Nothing was changed, so the number was not used either."""
        self._n -= 1
        done = batch[0].done
        if isinstance(error, InvalidInput) or not batch[0].conditions or done is None:
            self._fail(error, batch)
            return
        if not done.done():
            done.set_exception(error)

    def _fail(self, error: Magent2Error, batch: list[_Entry]) -> None:
        self.failure = error
        for entry in [*batch, *self._entries]:
            if entry.done is not None and not entry.done.done():
                entry.done.set_exception(error)
        self._entries.clear()
        self._queued = 0
        self._room.set()

    async def _rest(self, room_for: int) -> tuple[list[NewRecord], list[SetHead]]:
        """What is still queued once the append in flight has ended, as far as one append has room for it."""
        self._closing = True
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
        """Whether all that is queued can ride in the last append."""
        waits = any(entry.conditions or entry.done is not None for entry in self._entries)
        return not waits and self._queued + room_for <= RECORDS_PER_APPEND_MAX

    async def _finish(self, operation: Settle | Later) -> AppendResult:
        try:
            appended = await self._persist(operation)
        except Magent2Error as error:
            self._fail(error, [])
            raise
        self._fail(Fenced(ENDED), [])
        return appended


def _look(done: asyncio.Future[None]) -> None:
    """Whoever waited may have been cancelled: the failure is kept in the log, and need not be told again."""
    if not done.cancelled():
        done.exception()


def _fits(entry: _Entry, room: int) -> bool:
    return not entry.conditions and len(entry.records) <= room
