"""Following inboxes of agents from the moment a worker begins: new records, each once."""

from __future__ import annotations

from collections.abc import Iterable

from magent2.bus.face import EngineBase
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Read
from magent2.bus.patience import insist, persist
from magent2.bus.records import Page, Record
from magent2.bus.watch import Watch
from magent2.errors import MalformedRecord, UnknownCursor

PAGE = 200  # fewer than any engine sorts in one claim: what was read before a claim is in its lane after it


class Following:
    """New records of some topics."""

    def __init__(self, bus: Engine, topics: Iterable[str], worker: str) -> None:
        self._topics = tuple(topics)
        self._bus = bus
        self._worker = worker
        self._cursors: dict[str, int] = {}
        self._changed: set[str] = set()

    async def begin(self) -> int:
        """Start at the end of the logs; how many claims it may take until all that lies before is in its lane."""
        return await self.add(self._topics)

    async def add(self, topics: Iterable[str]) -> int:
        """The same for topics that join; those that are followed already go on where they are."""
        joining = tuple(topic for topic in topics if topic not in self._cursors)
        if not joining:
            return 0
        describe = Describe(joining)
        state = await persist(self._bus, describe, self._worker)
        self._cursors |= {info.topic: info.last for info in state}
        return max(1 + (info.last - info.floor) // PAGE for info in state)

    def discard(self, topic: str) -> None:
        self._cursors.pop(topic, None)
        self._changed.discard(topic)

    def note(self, topics: Iterable[str]) -> None:
        """These topics may have something new."""
        self._changed.update(topic for topic in topics if topic in self._cursors)

    @property
    def waiting(self) -> bool:
        return bool(self._changed)

    async def read(self, watch: Watch | None = None) -> list[Record]:
        """What is new, up to a page of each topic. The watch may have brought it along."""
        records: list[Record] = []
        for topic in sorted(self._changed):
            self._changed.discard(topic)
            page = await self._page(topic, watch)
            if page is None:
                self._changed.add(topic)
                continue
            records += page.records
            if page.records:
                self._cursors[topic] = page.records[-1].seq
                if self._cursors[topic] < page.last:
                    self._changed.add(topic)
        return records

    async def _page(self, topic: str, watch: Watch | None) -> Page | None:
        """The next page; `None` when the cursor had to be moved first. The lanes have what is passed over."""
        try:
            return await insist(lambda: self._next(topic, watch), self._worker)
        except MalformedRecord as error:
            self._cursors[topic] = error.seq
        except UnknownCursor:
            describe = Describe((topic,))
            self._cursors[topic] = (await persist(self._bus, describe, self._worker))[0].floor
        return None

    async def _next(self, topic: str, watch: Watch | None) -> Page:
        if watch is not None and isinstance(self._bus, EngineBase):
            return await self._bus.next_page(watch, topic, self._cursors[topic])
        page: Page = await self._bus.acall(Read(topic, self._cursors[topic], PAGE))
        return page
