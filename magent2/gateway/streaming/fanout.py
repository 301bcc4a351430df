"""Follow the conversations that have open streams: read and encode each record once for all readers of one format."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from magent2.background import keep_running, log_error
from magent2.bus.base import FOLLOW_RETRY_S, FOLLOW_SWEEP_S
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.bus.watch import Watch
from magent2.errors import MalformedRecord, UnknownCursor
from magent2.gateway.streaming.sse import RECORD_FORMAT, EventFrame, FrameFormat
from magent2.machine import release_memory
from magent2.models.address import stream_topic

SWEEP_PAGE = 1000  # topics per `Describe` of the sweep
FRAMES_MAX_BYTES = 64 << 20  # of all tails together
FRAMES_IDLE_S = 60.0  # a tail that has not grown for this time keeps no frames


class Fanout:
    """Follows every conversation that has a reader. The first reader starts it, on its own event loop.

    The frames of all tails take at most `frames_max_bytes`. Those of the tail that has not grown for the longest time
    go first. A reader that still needs them reads the bus.
    """

    def __init__(
        self, bus: Engine, frame_format: FrameFormat = RECORD_FORMAT, frames_max_bytes: int = FRAMES_MAX_BYTES
    ) -> None:
        self.frame_format = frame_format
        self.frames_bytes = 0  # of all tails
        self._frames_max_bytes = frames_max_bytes
        self._grown: OrderedDict[str, float] = OrderedDict()  # when each tail with frames has grown, by topic
        self._bus = bus
        self._tails: dict[str, StreamTail] = {}  # by topic
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._failing: set[str] = set()  # topics whose last read failed; the first one is logged

    @property
    def followed(self) -> int:
        return len(self._tails)

    def join(self, conversation: str, reader: Wakeable) -> StreamTail:
        """Return the tail of a conversation's stream. From now on, the reader is woken when the tail grows."""
        topic = stream_topic(conversation)
        tail = self._tails.get(topic)
        if tail is None:
            self._follow(topic)
            tail = self._tails[topic] = StreamTail(conversation, topic)
        tail.readers.add(reader)
        return tail

    def leave(self, tail: StreamTail, reader: Wakeable) -> None:
        tail.readers.discard(reader)
        if not tail.readers and tail.topic in self._tails:
            self._release(tail.topic)
            del self._tails[tail.topic]
            if self._watch is not None:
                self._watch.discard(tail.topic)
        if not self._tails:
            self._stop()

    # --- one watch and one task for all conversations

    def _follow(self, topic: str) -> None:
        if self._watch is None:
            self._watch = self._bus.watch([topic])
            watch = self._watch
            self._task = asyncio.create_task(
                keep_running("read for open streams", lambda: self._read_changes(watch)), name="magent2-fanout"
            )
        else:
            self._watch.add(topic)

    def _stop(self) -> None:
        for task in (self._task, *self._pumps):
            if task is not None:
                task.cancel()
        if self._watch is not None:
            self._watch.close()
        self._watch = self._task = None

    async def _read_changes(self, watch: Watch) -> None:
        changed = await watch.changed(FOLLOW_SWEEP_S)
        if changed:
            self._advance(watch, changed)
        else:
            await self._sweep(watch)

    async def _sweep(self, watch: Watch) -> None:
        """Find topics whose change notification was lost. One `Describe` covers many topics."""
        self._release_idle()
        topics = list(self._tails)
        for start in range(0, len(topics), SWEEP_PAGE):
            found: tuple[TopicInfo, ...] = await self._bus.acall(Describe(tuple(topics[start : start + SWEEP_PAGE])))
            self._advance(watch, [info.topic for info in found if self._is_behind(info)])

    def _is_behind(self, info: TopicInfo) -> bool:
        tail = self._tails.get(info.topic)
        return tail is not None and tail.begun and (info.deleted != tail.deleted or info.last != tail.last)

    # --- at most one read per tail at a time

    def _advance(self, watch: Watch, topics: Iterable[str]) -> None:
        for topic in topics:
            tail = self._tails.get(topic)
            if tail is None:
                continue
            tail.changed = True
            if tail.begun and not tail.reading:
                self.pump(tail, watch)

    def pump(self, tail: StreamTail, watch: Watch | None = None) -> None:
        """Start a task that reads new records. Records that arrive meanwhile are read in its next round."""
        current = watch or self._watch
        if current is None or tail.reading or not tail.changed:
            return
        tail.reading = True
        task = asyncio.create_task(self._pump(tail, current))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _pump(self, tail: StreamTail, watch: Watch) -> None:
        try:
            while tail.changed and tail.readers:
                tail.changed = False
                try:
                    await self._read_on(tail, watch)
                except Exception as error:  # noqa: BLE001  whatever it is, the readers of this tail must not wait for ever
                    tail.changed = True
                    if not self._failing:
                        log_error("cannot read the log for open streams; will retry", error, topic=tail.topic)
                    self._failing.add(tail.topic)
                    await asyncio.sleep(FOLLOW_RETRY_S)
                else:
                    self._failing.discard(tail.topic)
                    tail.wake()
        finally:
            tail.reading = False
            self._failing.discard(tail.topic)

    async def _read_on(self, tail: StreamTail, watch: Watch) -> None:
        try:
            page = await self._bus.next_page(watch, tail.topic, tail.last)
        except UnknownCursor:
            await self._restart(tail)
            return
        except MalformedRecord as error:
            self._add(tail, [self.frame_format.malformed(tail.conversation, error.seq)])
            tail.changed = True
            return
        if page.deleted:
            tail.deleted = True
        elif page.records:
            self._add(tail, [self.frame_format.record(record) for record in page.records])
            tail.changed |= tail.last < page.last
        else:
            tail.last = max(tail.last, page.last)

    async def _restart(self, tail: StreamTail) -> None:
        """Restart the tail after the log was trimmed or lost records.

        The count of restarts makes each reader check its cursor on the bus, which reports the gap.
        """
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((tail.topic,)))
        tail.deleted = found[0].deleted
        self._release(tail.topic)
        tail.begin(found[0].last)

    # --- the memory of frames

    def _add(self, tail: StreamTail, frames: list[EventFrame]) -> None:
        if self._tails.get(tail.topic) is not tail:  # its last reader has left
            return
        before = tail.size_bytes
        tail.add(frames)
        self.frames_bytes += tail.size_bytes - before
        self._grown[tail.topic] = asyncio.get_running_loop().time()
        self._grown.move_to_end(tail.topic)
        while self.frames_bytes > self._frames_max_bytes and len(self._grown) > 1:
            self._release(next(iter(self._grown)))

    def _release(self, topic: str) -> None:
        if self._grown.pop(topic, None) is not None:
            tail = self._tails[topic]
            self.frames_bytes -= tail.size_bytes
            tail.release()

    def _release_idle(self) -> None:
        before, latest = self.frames_bytes, asyncio.get_running_loop().time() - FRAMES_IDLE_S
        while self._grown and next(iter(self._grown.values())) <= latest:
            self._release(next(iter(self._grown)))
        release_memory(before - self.frames_bytes)


TAIL_MAX_FRAMES = 2048  # of one conversation
TAIL_MAX_BYTES = 1 << 20


class Wakeable(Protocol):
    """A reader that waits for new records."""

    def wake(self) -> None: ...


class StreamTail:
    """The tail of a conversation's stream: every record after `start` up to `last`, as frames.

    A reader whose cursor is before `start` reads from the bus until it has caught up.
    """

    __slots__ = (
        "_frames",
        "_seqs",
        "begun",
        "changed",
        "conversation",
        "deleted",
        "last",
        "readers",
        "reading",
        "restarts",
        "size_bytes",
        "start",
        "topic",
    )

    def __init__(self, conversation: str, topic: str) -> None:
        self.conversation = conversation
        self.topic = topic
        self.readers: set[Wakeable] = set()
        self.begun = False
        self.deleted = False
        self.changed = False  # the bus may have records that were not read yet
        self.reading = False
        self.restarts = 0  # a cursor from before the last one must be checked on the bus
        self.start = self.last = 0
        self._seqs: list[int] = []
        self._frames: list[EventFrame] = []
        self.size_bytes = 0  # of the frames

    def begin(self, last: int) -> None:
        """Start an empty tail after the seq that the first reader found as the last of the topic."""
        self.begun = True
        self.restarts += 1
        self.start = self.last = last
        self._seqs, self._frames, self.size_bytes = [], [], 0

    def release(self) -> None:
        """Drop all frames. A reader that needs one of them reads the bus."""
        self.start = self.last
        self._seqs, self._frames, self.size_bytes = [], [], 0

    def add(self, frames: list[EventFrame]) -> None:
        for frame in frames:
            self._seqs.append(frame.seq)
            self.size_bytes += len(frame.data)
        self._frames += frames
        self.last = frames[-1].seq
        while len(self._frames) > TAIL_MAX_FRAMES or self.size_bytes > TAIL_MAX_BYTES:
            self._drop(len(self._frames) // 2 + 1)

    def _drop(self, count: int) -> None:
        dropped = self._frames[:count]
        self.start = dropped[-1].seq
        self.size_bytes -= sum(len(frame.data) for frame in dropped)
        del self._frames[:count], self._seqs[:count]

    def after(self, cursor: int) -> list[EventFrame] | None:
        """Return the frames after the cursor, or `None` if they must be read from the bus."""
        if not self.begun or cursor < self.start:
            return None
        if cursor >= self.last:
            return []
        return self._frames[bisect_right(self._seqs, cursor) :]

    def wake(self) -> None:
        for reader in self.readers:
            reader.wake()
