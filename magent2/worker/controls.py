"""Follows `control:{agent}`, so that a command reaches a run inside a model call."""

from __future__ import annotations

from collections.abc import Iterable

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Describe, Pending, Read
from magent2.bus.patience import persist
from magent2.bus.records import Owner, Page, Record
from magent2.errors import Fenced, MalformedRecord, UnknownCursor
from magent2.models.address import control_topic

PAGE = 200  # fewer than any engine sorts in one claim: what was read before a claim is in its lane after it


class Controls:
    """New control records of some agents, each once."""

    def __init__(self, bus: Engine, agents: Iterable[str], worker: str) -> None:
        self._agents = tuple(agents)
        self._bus = bus
        self._worker = worker
        self._cursors: dict[str, int] = {}
        self._changed: set[str] = set()

    async def begin(self) -> int:
        """Start at the end of the logs; how many claims it may take until all that lies before is in its lane."""
        return await self.add(self._agents)

    async def add(self, agents: Iterable[str]) -> int:
        """The same for agents that join; those that are followed already go on where they are."""
        topics = tuple(topic for topic in map(control_topic, agents) if topic not in self._cursors)
        if not topics:
            return 0
        describe = Describe(topics)
        state = await persist(self._bus, describe, self._worker)
        self._cursors |= {info.topic: info.last for info in state}
        return max(1 + (info.last - info.floor) // PAGE for info in state)

    def discard(self, agent: str) -> None:
        topic = control_topic(agent)
        self._cursors.pop(topic, None)
        self._changed.discard(topic)

    def note(self, topics: Iterable[str]) -> None:
        """These topics may have something new."""
        self._changed.update(topic for topic in topics if topic in self._cursors)

    @property
    def waiting(self) -> bool:
        return bool(self._changed)

    async def read(self) -> list[Record]:
        """What is new, up to a page of each topic."""
        records: list[Record] = []
        for topic in sorted(self._changed):
            self._changed.discard(topic)
            page = await self._page(topic)
            if page is None:
                self._changed.add(topic)
                continue
            records += page.records
            if page.records:
                self._cursors[topic] = page.records[-1].seq
                if self._cursors[topic] < page.last:
                    self._changed.add(topic)
        return records

    async def lies_in(self, owner: Owner, record: Record) -> bool:
        """Whether a command waits in this lane. One that was read late may have ended another run already."""
        pending = Pending(owner, READ_LIMIT_MAX)
        try:
            mail = await persist(self._bus, pending, self._worker)
        except Fenced:
            return False
        return any(waiting.ref == record.ref for waiting in mail)

    async def _page(self, topic: str) -> Page | None:
        """The next page; `None` when the cursor had to be moved first. The lanes have what is passed over."""
        read = Read(topic, self._cursors[topic], PAGE)
        try:
            return await persist(self._bus, read, self._worker)
        except MalformedRecord as error:
            self._cursors[topic] = error.seq
        except UnknownCursor:
            describe = Describe((topic,))
            self._cursors[topic] = (await persist(self._bus, describe, self._worker))[0].floor
        return None
