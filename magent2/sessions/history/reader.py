"""Reads histories: from the last snapshot on, in small pages, with a cache of what was read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeAlias, cast

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.bus.records import NewRecord, Page, Record, decode_object
from magent2.errors import UnknownCursor
from magent2.machine import release_memory
from magent2.models.address import history_topic
from magent2.models.json_types import JsonMapping, JsonScalar
from magent2.sessions.history.fold import (
    RECORD_COST_BYTES,
    RUNS_MAX,
    History,
    RunRecord,
    add_record,
    is_usable,
    started_run,
)
from magent2.sessions.history.snapshot import SnapshotRecord, from_snapshot

FIRST_PAGE = 32  # records; how large they are is known only after it
PAGE_MAX = 256  # records
PAGE_BYTES = 1 << 20  # decoding a page occupies the event loop: about 5 ms for this size
SEARCH_MAX_BYTES = 8 << 20  # of records that are kept while a snapshot is looked for
READ_ON_MAX = 512  # records after a known history; with more, the last snapshot is the shorter way
CACHE_MAX_BYTES = 64 << 20  # of all histories that a process caches
CACHE_IDLE_S = 60.0  # a history that was not used for this time leaves the cache

# Reads the history of a conversation: `read_history`, or `HistoryCache.read_with`
HistoryReader: TypeAlias = Callable[[Log, str], Awaitable[History]]


async def read_history(log: Log, conversation: str, known: History | None = None, runs_max: int = RUNS_MAX) -> History:
    """Read the current history. `known` is an earlier one, to read on from. `runs_max`: see `History`."""
    topic = history_topic(conversation)
    if known is not None and known.runs_max < runs_max:
        known = None if known.dropped.ended else replace(known, runs_max=runs_max)
    if known is not None and known.last:
        try:
            page = await log.read(topic, known.last, FIRST_PAGE)
            if page.deleted:
                return History()
            if page.last - known.last <= READ_ON_MAX:
                return await _read_on(log, topic, known.followed_by(page.records), page)
        except UnknownCursor:  # retention has removed the record that was read last
            pass
    return await _read_anew(log, topic, runs_max)


async def _read_on(log: Log, topic: str, history: History, page: Page) -> History:
    """Read up to the last record that the topic had at `page`, the page that was read last."""
    last = page.last
    while page.records and history.last < last:
        await log.give_way()
        page = await log.read(topic, history.last, _next_limit(page.records))
        history = history.followed_by(page.records)
    return History() if page.deleted else history


async def _read_anew(log: Log, topic: str, runs_max: int) -> History:
    """Read from the last usable snapshot, or everything if there is none."""
    end = await log.read(topic, None, FIRST_PAGE)
    if end.deleted:
        return History()
    tail = await _read_tail(log, topic, end, runs_max)
    history, after = History(runs_max=runs_max), end.floor
    if tail.snapshot is not None:
        snapshot = tail.snapshot
        kept = [
            record
            for first, last in snapshot["spans"]
            async for page in tail.pages(log, first - 1, min(last, snapshot["last"]))
            for record in page
        ]
        history = from_snapshot(snapshot, kept)
        after = snapshot["last"]
    async for page in tail.pages(log, after, end.last):
        history = history.followed_by(page)
    # Retention may have removed the last records. Writers compare `last` with the last seq of the topic.
    return replace(history, last=max(history.last, end.last))


@dataclass(slots=True)
class _Tail:
    """The last records of a topic, without a gap, and the snapshot among them."""

    topic: str
    records: list[Record] = field(default_factory=list)
    snapshot: SnapshotRecord | None = None

    async def pages(self, log: Log, after: int, last: int) -> AsyncIterator[Sequence[Record]]:
        """Yield the records after a seq up to another in pages; those of the tail are not read again."""
        end = min(last, self.records[0].seq - 1) if self.records else last
        cursor, limit = after, _next_limit(self.records)
        while cursor < end:
            try:
                page = await log.read(self.topic, cursor, min(limit, end - cursor))
            except UnknownCursor:  # retention has removed that record
                page = await log.read(self.topic, OLDEST, limit)
            if not page.records:
                break
            cursor, limit = page.records[-1].seq, _next_limit(page.records)
            yield [record for record in page.records if record.seq <= end]
            await log.give_way()
        yield [record for record in self.records if after < record.seq <= last]


async def _read_tail(log: Log, topic: str, page: Page, runs_max: int) -> _Tail:
    """Read backwards from the last page until a usable snapshot is found.

    The records on the way are kept as long as they are few: a history without a snapshot may be of any length.
    """
    pages, size, before = [page.records], _size(page.records), page.last + 1
    while page.records:
        if page.records[-1].seq != before - 1:  # a page ends before a record that cannot be decoded
            await log.read(topic, page.records[-1].seq, 1)  # raises `MalformedRecord`
        for record in reversed(page.records):
            if is_usable(record, runs_max):
                return _Tail(topic, _joined(pages), cast(SnapshotRecord, record.payload))
        before = page.records[0].seq
        if before <= page.floor + 1:
            break
        await log.give_way()
        page = await log.read(topic, None, _next_limit(page.records), before)
        size += _size(page.records)
        pages = [*pages, page.records] if size < SEARCH_MAX_BYTES else []
    return _Tail(topic, _joined(pages))


def _joined(pages: Sequence[Sequence[Record]]) -> list[Record]:
    """The records of pages that were read backwards, in order."""
    return [record for page in reversed(pages) for record in page]


def _size(records: Sequence[Record]) -> int:
    return sum(record.size_bytes for record in records)


def _next_limit(records: Sequence[Record]) -> int:
    """The number of records for a page after these, so that it has about `PAGE_BYTES`."""
    if not records:
        return FIRST_PAGE
    average = max(1, _size(records) // len(records))
    return min(PAGE_MAX, max(1, PAGE_BYTES // average))


async def find_runs(log: Log, conversation: str, matches: Callable[[JsonMapping], bool]) -> list[RunRecord]:
    """Search the whole history for the runs with a record that matches, for what the fold does not hold any more.

    It reads everything twice, in small pages: first the names of the runs, then their records.
    """
    tail = _Tail(history_topic(conversation))
    (info,) = await log.describe(tail.topic)
    names: set[str] = set()
    async for page in tail.pages(log, OLDEST, info.last):
        names.update(record.payload["run"] for record in page if not record.erased and matches(record.payload))
    runs: dict[str, RunRecord] = {}
    if not names:
        return []
    async for page in tail.pages(log, OLDEST, info.last):
        for record in page:
            name = record.payload.get("run")
            if name in runs:
                add_record(runs[name], record)
            elif name in names and record.payload["kind"] == "start":
                runs[name] = started_run(record)
    return list(runs.values())


class WrittenRecord(NamedTuple):
    """A record that this process has appended to a history."""

    seq: int
    body: bytes
    headers: Mapping[str, JsonScalar]

    @classmethod
    def of(cls, record: NewRecord, seq: int) -> Self:
        return cls(seq, record.body, record.headers)

    def as_read(self, topic: str) -> Record:
        """The record as a reader would get it, as far as the fold needs it."""
        payload = decode_object(self.body)
        return Record(topic, payload, seq=self.seq, headers=self.headers, size_bytes=len(self.body))


@dataclass(frozen=True, slots=True)
class _Cached:
    history: History
    size_bytes: int
    used_s: float  # time of the event loop when it was read last
    written: tuple[WrittenRecord, ...] = ()  # the records that follow; most conversations end before they are needed

    @property
    def last(self) -> int:
        return self.written[-1].seq if self.written else self.history.last


class HistoryCache:
    """Caches histories, so that the next run of a conversation reads only the new records.

    Bounded by bytes; the least recently used history is removed first. On an event loop, histories that are not used
    any more leave the cache after `idle_s`.
    """

    def __init__(self, bus: Engine, max_bytes: int = CACHE_MAX_BYTES, idle_s: float = CACHE_IDLE_S) -> None:
        self.size_bytes = 0
        self._bus = bus
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._kept: OrderedDict[str, _Cached] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that will remove idle histories

    async def read(self, conversation: str, runs_max: int = RUNS_MAX) -> History:
        return await self.read_with(Log(self._bus), conversation, runs_max)

    async def read_up_to(self, conversation: str, last: int | None, runs_max: int = RUNS_MAX) -> History:
        """Return a history that contains at least the records up to `last`, which is 0 if it has none.

        A history that is known up to there is not read. With `None`, it is read.
        """
        cached = self._forget(conversation)
        if last == 0:
            history = History(runs_max=runs_max)
        elif cached is None or cached.last != last or cached.history.runs_max < runs_max:
            history = await read_history(
                Log(self._bus), conversation, None if cached is None else cached.history, runs_max
            )
        else:
            topic = history_topic(conversation)
            history = cached.history.followed_by([written.as_read(topic) for written in cached.written])
        return self._store(conversation, history)

    def add_written(self, conversation: str, written: Sequence[WrittenRecord]) -> None:
        """Add what this process has appended. Where others have appended too, the next read finds everything."""
        cached = self._kept.get(conversation)
        if cached is None or not written:
            return
        follows = [record.seq for record in written] == list(range(cached.last + 1, cached.last + 1 + len(written)))
        if not follows or len(cached.written) + len(written) > READ_ON_MAX:  # folding more would occupy the event loop
            return
        added = sum(len(record.body) + RECORD_COST_BYTES for record in written)
        together = (*cached.written, *written)
        self._kept[conversation] = _Cached(cached.history, cached.size_bytes + added, cached.used_s, together)
        self.size_bytes += added
        self._shrink()

    async def read_with(self, log: Log, conversation: str, runs_max: int = RUNS_MAX) -> History:
        cached = self._forget(conversation)
        history = await read_history(log, conversation, None if cached is None else cached.history, runs_max)
        return self._store(conversation, history)

    def _store(self, conversation: str, history: History) -> History:
        self._forget(conversation)  # a concurrent read of the same history may have stored its own
        size = history.size_bytes
        if size <= self._max_bytes:
            self._kept[conversation] = _Cached(history, size, self._plan_removal())
            self.size_bytes += size
            self._shrink()
        return history

    def _shrink(self) -> None:
        while self.size_bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, conversation: str) -> _Cached | None:
        cached = self._kept.pop(conversation, None)
        if cached is not None:
            self.size_bytes -= cached.size_bytes
        return cached

    def _plan_removal(self) -> float:
        """Make sure that idle histories are removed some time, and return the time of the event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread without an event loop uses the cache for one wait only
            return 0.0
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(self._idle_s, self._remove_idle, loop)
        return loop.time()

    def _remove_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove the histories that were not used for `idle_s`, and give their memory back to the system."""
        self._loop = None
        before, latest = self.size_bytes, loop.time() - self._idle_s
        while self._kept and next(iter(self._kept.values())).used_s <= latest:
            self._forget(next(iter(self._kept)))
        release_memory(before - self.size_bytes)
        if self._kept:
            self._plan_removal()
