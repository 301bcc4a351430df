"""Follow the conversations that have open streams: read and encode each record once for all their readers."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol

from magent2.bus.base import FOLLOW_RETRY_S, FOLLOW_SWEEP_S
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.bus.watch import Watch
from magent2.errors import Magent2Error, MalformedRecord, UnknownCursor
from magent2.gateway.streaming.sse import RECORD_FORMAT, EventFrame, FrameFormat
from magent2.models.address import stream_topic

log = logging.getLogger(__name__)

SWEEP_PAGE = 1000  # topics per question of the sweep


class Fanout:
    """Follows every conversation that has a reader, and none other. It begins with the first reader, on its loop."""

    def __init__(self, bus: Engine, rendering: FrameFormat = RECORD_FORMAT) -> None:
        self.rendering = rendering
        self._bus = bus
        self._tails: dict[str, StreamTail] = {}  # by topic
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._troubled: set[str] = set()  # topics that the bus did not answer for

    @property
    def followed(self) -> int:
        return len(self._tails)

    def join(self, conversation: str, sleeper: Wakeable) -> StreamTail:
        """Return the tail of the conversation's stream, and wake the reader when it grows."""
        topic = stream_topic(conversation)
        tail = self._tails.get(topic)
        if tail is None:
            self._follow(topic)
            tail = self._tails[topic] = StreamTail(conversation, topic)
        tail.sleepers.add(sleeper)
        return tail

    def leave(self, tail: StreamTail, sleeper: Wakeable) -> None:
        tail.sleepers.discard(sleeper)
        if not tail.sleepers and self._tails.pop(tail.topic, None) is not None:
            self._troubled.discard(tail.topic)
            if self._watch is not None:
                self._watch.discard(tail.topic)
        if not self._tails:
            self._stop()

    # --- one watch, one task

    def _follow(self, topic: str) -> None:
        if self._watch is None:
            self._watch = self._bus.watch([topic])
            self._task = asyncio.create_task(self._run(self._watch), name="magent2-fanout")
        else:
            self._watch.add(topic)

    def _stop(self) -> None:
        for task in (self._task, *self._pumps):
            if task is not None:
                task.cancel()
        if self._watch is not None:
            self._watch.close()
        self._watch = self._task = None

    async def _run(self, watch: Watch) -> None:
        while True:
            try:
                changed = await watch.changed(FOLLOW_RETRY_S if self._troubled else FOLLOW_SWEEP_S)
            except Magent2Error as error:
                log.warning("streams wait for the bus", extra={"error": str(error)})
                await asyncio.sleep(FOLLOW_RETRY_S)
                continue
            if changed or self._troubled:
                self._advance(watch, changed | self._troubled)
            else:
                await self._sweep(watch)

    async def _sweep(self, watch: Watch) -> None:
        """Look whether news were lost on the way; one question for many topics."""
        topics = list(self._tails)
        for start in range(0, len(topics), SWEEP_PAGE):
            try:
                found: tuple[TopicInfo, ...] = await self._bus.acall(
                    Describe(tuple(topics[start : start + SWEEP_PAGE]))
                )
            except Magent2Error as error:
                log.warning("the streams' sweep waits for the bus", extra={"error": str(error)})
                return
            self._advance(watch, [info.topic for info in found if self._is_behind(info)])

    def _is_behind(self, info: TopicInfo) -> bool:
        tail = self._tails.get(info.topic)
        return tail is not None and tail.begun and (info.deleted != tail.deleted or info.last != tail.last)

    # --- one reader per tail

    def _advance(self, watch: Watch, topics: Iterable[str]) -> None:
        for topic in topics:
            tail = self._tails.get(topic)
            if tail is None:
                continue
            tail.changed = True
            if tail.begun and not tail.reading:
                self.pump(tail, watch)

    def pump(self, tail: StreamTail, watch: Watch | None = None) -> None:
        """Read what is new, in a task of its own; what comes meanwhile is read in the next round."""
        around = watch or self._watch
        if around is None or tail.reading or not tail.changed:
            return
        tail.reading = True
        task = asyncio.create_task(self._pump(tail, around))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _pump(self, tail: StreamTail, watch: Watch) -> None:
        try:
            while tail.changed and tail.sleepers:
                tail.changed = False
                await self._read_on(tail, watch)
                tail.wake()
            self._troubled.discard(tail.topic)
        except Magent2Error as error:
            if not self._troubled:
                log.warning("streams wait for the bus", extra={"topic": tail.topic, "error": str(error)})
            self._troubled.add(tail.topic)
        finally:
            tail.reading = False

    async def _read_on(self, tail: StreamTail, watch: Watch) -> None:
        try:
            page = await self._bus.next_page(watch, tail.topic, tail.last)
        except UnknownCursor:
            await self._begin_again(tail)
            return
        except MalformedRecord as error:
            tail.add([self.rendering.malformed(tail.conversation, error.seq)])
            tail.changed = True
            return
        if page.deleted:
            tail.deleted = True
        elif page.records:
            tail.add([self.rendering.record(record) for record in page.records])
            tail.changed |= tail.last < page.last
        else:
            tail.last = max(tail.last, page.last)

    async def _begin_again(self, tail: StreamTail) -> None:
        """The log was cut off, or lost what it had: readers look for themselves and are told of the gap."""
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((tail.topic,)))
        tail.deleted = found[0].deleted
        tail.begin(found[0].last)


TAIL_MAX_FRAMES = 2048
TAIL_MAX_BYTES = 1 << 20


class Wakeable(Protocol):
    """A reader that waits for new records."""

    def wake(self) -> None: ...


class StreamTail:
    """The tail of a conversation's stream: every record after `start` up to `last`, as frames.

    A reader whose cursor is older reads from the bus until it has come up to `start`.
    """

    __slots__ = (
        "_bytes",
        "_frames",
        "_seqs",
        "begun",
        "changed",
        "conversation",
        "deleted",
        "epoch",
        "last",
        "reading",
        "sleepers",
        "start",
        "topic",
    )

    def __init__(self, conversation: str, topic: str) -> None:
        self.conversation = conversation
        self.topic = topic
        self.sleepers: set[Wakeable] = set()
        self.begun = False
        self.deleted = False
        self.changed = False  # there may be more on the bus than was read
        self.reading = False
        self.epoch = 0  # how often the tail began anew: cursors from before have to be checked
        self.start = self.last = 0
        self._seqs: list[int] = []
        self._frames: list[EventFrame] = []
        self._bytes = 0

    def begin(self, last: int) -> None:
        """Nothing is kept of what came before; the first reader says where the topic stood."""
        self.begun = True
        self.epoch += 1
        self.start = self.last = last
        self._seqs, self._frames, self._bytes = [], [], 0

    def add(self, frames: list[EventFrame]) -> None:
        for frame in frames:
            self._seqs.append(frame.seq)
            self._bytes += len(frame.data)
        self._frames += frames
        self.last = frames[-1].seq
        while len(self._frames) > TAIL_MAX_FRAMES or self._bytes > TAIL_MAX_BYTES:
            self._drop(len(self._frames) // 2 + 1)

    def _drop(self, count: int) -> None:
        dropped = self._frames[:count]
        self.start = dropped[-1].seq
        self._bytes -= sum(len(frame.data) for frame in dropped)
        del self._frames[:count], self._seqs[:count]

    def after(self, cursor: int) -> list[EventFrame] | None:
        """The frames after the cursor; `None` when they have to be read from the bus."""
        if not self.begun or cursor < self.start:
            return None
        if cursor >= self.last:
            return []
        return self._frames[bisect_right(self._seqs, cursor) :]

    def wake(self) -> None:
        for sleeper in self.sleepers:
            sleeper.wake()
