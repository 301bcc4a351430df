"""Base class of all engines: the v1 methods and `follow`, written in terms of `call`, `acall` and `watch`."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from magent2.bus.interface import BusMessage
from magent2.bus.operations import Append, Describe, Operation, Read
from magent2.bus.records import NewRecord, Page, Record
from magent2.bus.watch import Watch
from magent2.errors import TopicError, TransientError

log = logging.getLogger(__name__)

R = TypeVar("R")

FOLLOW_PAGE = 256  # records per read of a follower
FOLLOW_SWEEP_S = 30.0  # a follower reads at least this often, also without a notification
FOLLOW_RETRY_S = 1.0  # pause between attempts while the bus is unavailable


class EngineBase(ABC):
    """Implements the bus interface for an engine that provides `call`, `acall`, `watch` and `close`."""

    @abstractmethod
    def call(self, operation: Operation[R]) -> R: ...

    @abstractmethod
    async def acall(self, operation: Operation[R]) -> R: ...

    @abstractmethod
    def watch(self, topics: Iterable[str] = ()) -> Watch: ...

    @abstractmethod
    def close(self) -> None: ...

    async def aclose(self) -> None:
        self.close()

    def publish(self, topic: str, message: BusMessage) -> str:
        self.call(publishing(topic, message))
        return message.id

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> list[Record]:
        return list(self.call(Read(topic, last_id, limit)).records)

    def read_blocking(
        self, topic: str, last_id: str | None = None, limit: int = 100, timeout_s: float = 10.0
    ) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        with self.watch([topic]) as watch:
            while True:
                page = self.call(Read(topic, last_id, limit))
                left = deadline - time.monotonic()
                if page.records or left <= 0:
                    return list(page.records)
                watch.wait(left)

    async def follow(self, topic: str, after: int | str | None = None) -> AsyncIterator[Record]:
        with self.watch([topic]) as watch:
            cursor = (await self.acall(Describe((topic,))))[0].last if after is None else after
            while True:
                page = await self._read_on(watch, topic, cursor)
                for record in page.records:
                    cursor = record.seq
                    yield record
                if page.deleted:
                    return
                # A full page is followed by the next one at once. An empty page waits even below `last`: the records up
                # to it may have been dropped, and reading again would find nothing new.
                if cursor == page.last or not page.records:
                    await watch.changed(FOLLOW_SWEEP_S)

    async def _read_on(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        while True:
            try:
                return await self.next_page(watch, topic, cursor)
            except TransientError as error:
                log.warning("follower is waiting for the bus", extra={"topic": topic, "error": str(error)})
                await asyncio.sleep(FOLLOW_RETRY_S)

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Read the records after the cursor. Engines whose watch delivers records override this."""
        return await self.acall(Read(topic, cursor, FOLLOW_PAGE))


def publishing(topic: str, message: BusMessage) -> Append:
    """v1 `publish` as an operation."""
    if message.topic != topic:
        raise TopicError(f"the message says topic {message.topic!r}, the call says {topic!r}; make them one")
    return Append(records=(NewRecord(topic, message.payload, message.id),))
