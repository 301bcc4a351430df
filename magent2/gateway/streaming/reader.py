"""Readers of open streams: wait for new frames, read them, end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from magent2.bus.base import FOLLOW_PAGE
from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, Describe, Read
from magent2.bus.records import Page, TopicInfo
from magent2.errors import MalformedRecord
from magent2.gateway.access.identity import TOKEN_IDENTITY, Identity, may_read
from magent2.gateway.streaming.fanout import Fanout, StreamTail
from magent2.gateway.streaming.sse import EndReason, EventFrame, FrameBatch, FrameFormat, StreamRequest, batches


class WaitingReader:
    """Base of readers. An idle reader is one future: it costs memory, but no timer and no task."""

    __slots__ = ("_ending", "_waiter", "beat", "gone", "identity", "slot")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.slot = 0
        self.beat = False  # a heartbeat is due
        self.gone = False  # the client has closed its end
        self._ending: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def is_idle(self) -> bool:
        return self._waiter is not None

    def leave(self) -> None:
        self.gone = True
        self.wake()

    def end(self, reason: EndReason) -> None:
        """Send no more, but for the reason."""
        self._ending = self._ending or reason
        self.wake()

    async def wait(self) -> None:
        """Until there may be something to send."""
        if self.is_due():
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def is_due(self) -> bool:
        return bool(self.gone or self.beat or self._ending or self._has_news())

    def _has_news(self) -> bool:
        raise NotImplementedError


class Reader(WaitingReader):
    """Reads what it has not seen: from the tail of the stream, or from the bus if it is further behind."""

    __slots__ = (
        "_bus",
        "_cursor",
        "_epoch",
        "_fanout",
        "_left",
        "_tail",
        "_wanted",
        "cleared",
    )

    def __init__(self, bus: Engine, fanout: Fanout, wanted: StreamRequest, identity: Identity = TOKEN_IDENTITY) -> None:
        super().__init__(identity)
        self._bus = bus
        self._fanout = fanout
        self._wanted = wanted
        self._cursor = wanted.after if wanted.after is not None else OLDEST
        self._left = wanted.max_events
        self._tail: StreamTail = fanout.join(wanted.conversation, self)
        self._epoch = self._tail.epoch
        self.cleared = identity.principal.admin  # the conversation is theirs to see; its owner never changes

    def close(self) -> None:
        self._fanout.leave(self._tail, self)

    @property
    def rendering(self) -> FrameFormat:
        return self._fanout.rendering

    def is_due(self) -> bool:
        return self._tail.deleted or WaitingReader.is_due(self)

    def _has_news(self) -> bool:
        tail = self._tail
        return self._epoch != tail.epoch or not tail.begun or self._cursor < tail.last

    # --- reading

    @property
    def ended(self) -> bytes | None:
        """The last frame, once there is nothing to come."""
        if self._left == 0:
            return self.rendering.end(self._wanted.conversation, "max_events")
        if self._ending is not None:
            return self.rendering.end(self._wanted.conversation, self._ending)
        if self._tail.deleted and not self._has_news():
            return self.rendering.end(self._wanted.conversation, "deleted")
        return None

    @property
    def is_deleted(self) -> bool:
        return self._tail.deleted

    async def read(self) -> Iterator[FrameBatch]:
        """What is there after the cursor; nothing when the reader has seen it all."""
        return self._taken(await self._news())

    async def _news(self) -> list[EventFrame]:
        frames = self._tail.after(self._cursor)
        if frames is None or self._epoch != self._tail.epoch:
            frames = await self._read_bus()
        elif not frames:
            self._cursor = max(self._cursor, self._tail.last)
        return frames

    def _taken(self, frames: list[EventFrame]) -> Iterator[FrameBatch]:
        for batch in batches(frames, self._wanted.kinds, self._left):
            self._cursor = batch.cursor
            if self._left is not None:
                self._left -= batch.shown
            yield batch

    async def _read_bus(self) -> list[EventFrame]:
        tail = self._tail
        self._epoch = tail.epoch
        try:
            page: Page = await self._bus.acall(Read(tail.topic, self._cursor, FOLLOW_PAGE))
        except MalformedRecord as error:
            return [self.rendering.malformed(tail.conversation, error.seq)]
        self._note(page)
        if not page.records:
            self._cursor = max(self._cursor, page.last)
        return [self.rendering.record(record) for record in page.records]

    def _note(self, page: Page) -> None:
        tail = self._tail
        tail.deleted |= page.deleted
        if not tail.begun:
            tail.begin(page.last)
            self._epoch = tail.epoch
            self._fanout.pump(tail)

    async def may_see(self) -> bool:
        """Return whether the stream is theirs and has records. Raises `NotYours` if another principal owns it."""
        if not self.cleared:
            found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((self._tail.topic,)))
            self.cleared = may_read(self.identity.principal, found[0])
        return self.cleared

    async def find_gap(self) -> bytes:
        """The cursor points at nothing: say so, and go on after the floor."""
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((self._tail.topic,)))
        cursor, self._cursor = self._cursor, OLDEST
        return self.rendering.gap(self._wanted.conversation, cursor, found[0].floor)
