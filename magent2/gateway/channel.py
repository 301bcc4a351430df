"""One followed conversation: the newest frames, made once for all its readers."""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from magent2.gateway.sse import Frame

TAIL_MAX_FRAMES = 2048
TAIL_MAX_BYTES = 1 << 20


class Sleeper(Protocol):
    """Somebody who waits for news of a conversation."""

    def wake(self) -> None: ...


class Channel:
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
        self.sleepers: set[Sleeper] = set()
        self.begun = False
        self.deleted = False
        self.changed = False  # there may be more on the bus than was read
        self.reading = False
        self.epoch = 0  # how often the tail began anew: cursors from before have to be checked
        self.start = self.last = 0
        self._seqs: list[int] = []
        self._frames: list[Frame] = []
        self._bytes = 0

    def begin(self, last: int) -> None:
        """Nothing is kept of what came before; the first reader says where the topic stood."""
        self.begun = True
        self.epoch += 1
        self.start = self.last = last
        self._seqs, self._frames, self._bytes = [], [], 0

    def add(self, frames: list[Frame]) -> None:
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

    def after(self, cursor: int) -> list[Frame] | None:
        """The frames after the cursor; `None` when they have to be read from the bus."""
        if not self.begun or cursor < self.start:
            return None
        if cursor >= self.last:
            return []
        return self._frames[bisect_right(self._seqs, cursor) :]

    def wake(self) -> None:
        for sleeper in self.sleepers:
            sleeper.wake()
