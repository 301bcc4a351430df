"""Watches that get the records which their own process appends, so that their readers need not read the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magent2.bus.records import NewRecord, Record
from magent2.bus.watch import LocalWatch, WatchHub

KEPT_RECORDS_MAX = 512  # per watch and topic, until they are taken
KEPT_MAX_BYTES = 256 << 10  # likewise


class Changes(NamedTuple):
    """What a group of operations has changed, for watches."""

    topics: set[str]
    listed: set[str]  # those that were created or deleted or whose head was set
    version: int  # other processes ask for the topics that changed after a number they have seen
    appended: Sequence[tuple[int, NewRecord]]  # seqs and records
    at_ms: int
    erased: bool  # whether content of earlier records was removed


class RecordWatch(LocalWatch):
    """A watch that keeps the records that this process appends to a topic, from the first `take` to the next.

    A reader at the end of a topic needs no read of its own then. Records are missing where another process has written
    or where too many were appended; their seqs show it, and the reader reads the log.
    """

    def __init__(self, hub: WatchHub) -> None:
        super().__init__(hub)
        self._kept: dict[str, list[tuple[int, NewRecord, int]]] = {}

    def keep(self, topic: str, records: Sequence[tuple[int, NewRecord]], at_ms: int) -> None:
        """Keep the records of one commit. Without any, the topic has changed otherwise and has to be read."""
        with self._lock:
            kept = self._kept.get(topic)
            if kept is None:  # no records were taken yet: this watch is only waited on
                return
            kept += [(seq, record, at_ms) for seq, record in records]
            size_bytes = sum(len(record.body) for _, record, _ in kept)
            if not records or len(kept) > KEPT_RECORDS_MAX or size_bytes > KEPT_MAX_BYTES:
                kept.clear()

    def take(self, topic: str) -> list[Record]:
        """Return the records of a topic that were kept since the last call."""
        with self._lock:
            kept = self._kept.get(topic, ())
            if topic in self._topics:
                self._kept[topic] = []
        return [record.as_read(seq, at_ms) for seq, record, at_ms in kept]

    def drop_kept(self) -> None:
        with self._lock:
            for kept in self._kept.values():
                kept.clear()

    def discard(self, *topics: str) -> None:
        super().discard(*topics)
        with self._lock:
            for topic in topics:
                self._kept.pop(topic, None)


class RecordHub(WatchHub):
    """A hub whose watches keep the records that this process appends."""

    def watch(self, topics: Iterable[str] = ()) -> RecordWatch:
        watch = RecordWatch(self)
        watch.add(*topics)
        return watch

    def hand_over(self, changes: Changes) -> None:
        """Give the records of a commit to the watches of their topics, and wake these."""
        if not self._watches:  # read without the lock, as in `notify`
            return
        self._keep(changes)
        self.notify(changes.topics, changes.listed)

    def _keep(self, changes: Changes) -> None:
        if changes.erased:
            self.drop_kept()
            return
        appended: dict[str, list[tuple[int, NewRecord]]]
        appended = {topic: [] for topic in changes.topics if topic in self._watches}
        for seq, record in changes.appended:
            if record.topic in appended:
                appended[record.topic].append((seq, record))
        with self._lock:
            keepers = [(watch, topic) for topic in appended for watch in self._watches.get(topic, ())]
        for watch, topic in keepers:
            if isinstance(watch, RecordWatch):
                watch.keep(topic, appended[topic], changes.at_ms)

    def drop_kept(self) -> None:
        """Make all readers read the log: the content of records that their watches keep may have been erased."""
        with self._lock:
            watches = {watch for watches in self._watches.values() for watch in watches}
        for watch in watches:
            if isinstance(watch, RecordWatch):
                watch.drop_kept()
