"""Wait for the outcome of a message."""

from __future__ import annotations

import asyncio
from typing import Protocol

from magent2.background import log_error
from magent2.bus.base import FOLLOW_RETRY_S, FOLLOW_SWEEP_S
from magent2.bus.interface import Engine
from magent2.bus.records import Record
from magent2.bus.watch import Watch
from magent2.errors import TopicDeleted, TransientError
from magent2.models.address import stream_topic


class OutcomeReader(Protocol):
    """Reads records of a conversation in order, until it has a status. The status `finished` is final."""

    status: str | None

    def take(self, record: Record) -> None: ...


class ReplyWaiter:
    """Waits for outcomes on behalf of requests. A graceful shutdown ends all waits."""

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._clocks: set[asyncio.Timeout] = set()
        self._draining = False

    @property
    def waiting(self) -> int:
        return len(self._clocks)

    async def wait(self, conversation: str, after: int, outcome: OutcomeReader, max_s: float) -> bool:
        """Read the records after a seq until the message has an outcome. Return whether it has one.

        With `max_s` of 0, only the records that exist already are read. The end of a wait does not affect the run.
        The message was accepted before, so a log that cannot be read is no error: the outcome is not known yet. Raises
        `TopicDeleted` if the session was deleted.
        """
        reading = _Reading(self._bus, conversation, after, outcome)
        try:
            if max_s > 0 and not self._draining:
                with self._bus.watch([reading.topic]) as watch:
                    if await self._follow(reading, watch, max_s):
                        return True
                if not self._draining:
                    return False
            # A new watch has got no records, so this reads the log. In a drain, the notification of an answer that a
            # worker has just written may still be under way.
            with self._bus.watch([reading.topic]) as watch:
                return await reading.catch_up(watch)
        except TopicDeleted:
            raise
        except Exception as error:  # noqa: BLE001  the caller answers that the message was accepted
            log_error("cannot read the outcome of a message", error, conversation_id=conversation)
            return False

    async def _follow(self, reading: _Reading, watch: Watch, max_s: float) -> bool:
        clock = asyncio.timeout(max_s)
        try:
            async with clock:
                self._clocks.add(clock)
                while not await reading.catch_up_with_retry(watch):
                    await watch.changed(FOLLOW_SWEEP_S)
                return True
        except TimeoutError:
            if not clock.expired():
                raise
            return False
        finally:
            self._clocks.discard(clock)

    def drain(self) -> None:
        """End all waits. Those whose message has no outcome yet are answered with 202."""
        self._draining = True
        for clock in self._clocks:
            if not clock.expired():  # one that has just run out cannot be set any more; its wait ends by itself
                clock.reschedule(asyncio.get_running_loop().time())


class _Reading:
    """The position up to which one wait has read a conversation."""

    def __init__(self, bus: Engine, conversation: str, after: int, outcome: OutcomeReader) -> None:
        self.topic = stream_topic(conversation)
        self._bus = bus
        self._conversation = conversation
        self._cursor = after
        self._outcome = outcome

    async def catch_up(self, watch: Watch) -> bool:
        """Read all new records. Return whether the message has an outcome.

        A failure or a stop counts only if no record follows it: the message may have been retried.
        """
        while True:
            page = await self._bus.next_page(watch, self.topic, self._cursor)
            if page.deleted:
                raise TopicDeleted(f"session {self._conversation!r} was deleted")
            for record in page.records:
                self._cursor = record.seq
                if not record.erased:
                    self._outcome.take(record)
            if self._outcome.status == "finished":
                return True
            if not page.records or self._cursor >= page.last:
                return self._outcome.status is not None

    async def catch_up_with_retry(self, watch: Watch) -> bool:
        """Read as `catch_up` does, and retry while the bus is unavailable."""
        while True:
            try:
                return await self.catch_up(watch)
            except TransientError:
                await asyncio.sleep(FOLLOW_RETRY_S)
