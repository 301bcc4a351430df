"""Readers of open streams, of one conversation or of several sessions: wait for new frames, read them, end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias
from urllib.parse import quote, unquote

from magent2.bus.base import FOLLOW_PAGE
from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, Describe, Read
from magent2.bus.records import Page, TopicInfo
from magent2.errors import MalformedRecord, TransientError, UnknownCursor
from magent2.gateway.access.auth import TOKEN_IDENTITY, Identity, may_read
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.fanout import Fanout, StreamTail
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.gateway.streaming.sse import (
    BATCH_MAX_BYTES,
    EndReason,
    EventFrame,
    FrameBatch,
    FrameFormat,
    StreamRequest,
    batches,
    parse_cursor,
)
from magent2.models.address import check_name

SESSIONS_MAX = 50  # of one connection
CURSORS_MAX_CHARS = 100_000

Cursors: TypeAlias = Mapping[str, int | None]


class WaitingReader(ABC):
    """Base of readers. An idle reader is one future: it costs memory, but no timer and no task."""

    __slots__ = ("_end_reason", "_waiter", "beat", "gone", "identity", "slot")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.slot = 0
        self.beat = False  # a heartbeat is due
        self.gone = False  # the client has closed the connection
        self._end_reason: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def is_idle(self) -> bool:
        return self._waiter is not None

    def leave(self) -> None:
        """Note that the client has closed the connection."""
        self.gone = True
        self.wake()

    def end(self, reason: EndReason) -> None:
        """Send nothing more except an `end` event with the first reason given."""
        self._end_reason = self._end_reason or reason
        self.wake()

    @property
    def is_draining(self) -> bool:
        """Whether the stream ends because the gateway drains."""
        return self._end_reason == "drain"

    @abstractmethod
    def refresh(self) -> None:
        """Make the next `read` ask the bus: a notification of the last records may still be under way."""

    async def wait(self) -> None:
        """Wait until there may be something to send."""
        if self.is_due():
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def is_due(self) -> bool:
        return bool(self.gone or self.beat or self._end_reason or self._is_behind())

    @abstractmethod
    def _is_behind(self) -> bool:
        """Return whether there is something after the cursor of this reader."""


class Reader(WaitingReader):
    """Reads one conversation after its cursor: from the shared tail, or from the bus while it is further behind."""

    __slots__ = ("_bus", "_cursor", "_fanout", "_left", "_request", "_restarts", "_tail", "is_allowed")

    def __init__(
        self, bus: Engine, fanout: Fanout, request: StreamRequest, identity: Identity = TOKEN_IDENTITY
    ) -> None:
        super().__init__(identity)
        self._bus = bus
        self._fanout = fanout
        self._request = request
        self._cursor = request.after if request.after is not None else OLDEST
        self._left = request.max_events
        self._tail: StreamTail = fanout.join(request.conversation, self)
        self._restarts = self._tail.restarts
        self.is_allowed = identity.principal.admin  # once true, it stays: the owner of a conversation never changes

    def close(self) -> None:
        self._fanout.leave(self._tail, self)

    @property
    def frame_format(self) -> FrameFormat:
        return self._fanout.frame_format

    def is_due(self) -> bool:
        return self._tail.deleted or WaitingReader.is_due(self)

    def _is_behind(self) -> bool:
        tail = self._tail
        return self._restarts != tail.restarts or not tail.begun or self._cursor < tail.last

    @property
    def last_frame(self) -> bytes | None:
        """The `end` event, once nothing else follows."""
        reason = self._end_reason
        if self._left == 0:
            reason = "max_events"
        elif reason is None and self._tail.deleted and not self._is_behind():
            reason = "deleted"
        return None if reason is None else self.frame_format.end(self._request.conversation, reason)

    @property
    def is_deleted(self) -> bool:
        return self._tail.deleted

    # --- reading

    async def read(self) -> Iterator[FrameBatch]:
        """Return the frames after the cursor, or none if the reader is up to date."""
        return self._filtered(await self._frames_after_cursor())

    def refresh(self) -> None:
        self._restarts = -1

    async def take(self) -> list[EventFrame]:
        """Return all frames after the cursor and move the cursor behind them."""
        frames = await self._frames_after_cursor()
        if frames:
            self._cursor = frames[-1].seq
        return frames

    def _filtered(self, frames: list[EventFrame]) -> Iterator[FrameBatch]:
        if self._left == 0:
            return
        for batch in batches(frames, self._request.kinds, self._left):
            self._cursor = batch.cursor
            if self._left is not None:
                self._left -= batch.shown
            yield batch

    async def _frames_after_cursor(self) -> list[EventFrame]:
        frames = self._tail.after(self._cursor)
        if frames is None or self._restarts != self._tail.restarts:
            return await self._read_bus()
        if not frames:
            self._cursor = max(self._cursor, self._tail.last)
        return frames

    async def _read_bus(self) -> list[EventFrame]:
        tail = self._tail
        # Before the read: a tail that restarts meanwhile must make this reader check its cursor once more.
        self._restarts = tail.restarts
        try:
            page: Page = await self._bus.acall(Read(tail.topic, self._cursor, FOLLOW_PAGE))
        except MalformedRecord as error:
            return [self.frame_format.malformed(tail.conversation, error.seq)]
        tail.deleted |= page.deleted
        if not tail.begun:
            tail.begin(page.last)
            self._restarts = tail.restarts
            self._fanout.pump(tail)
        if not page.records:
            self._cursor = max(self._cursor, page.last)
        return [self.frame_format.record(record) for record in page.records]

    async def check_allowed(self) -> bool:
        """Return whether the conversation exists and the caller may read it. Raises `NotYours` for another owner's."""
        if not self.is_allowed:
            found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((self._tail.topic,)))
            self.is_allowed = may_read(self.identity.principal, found[0])
        return self.is_allowed

    async def find_gap(self) -> bytes:
        """Return the `gap` event for a cursor that the log no longer has. Reading goes on after the floor."""
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((self._tail.topic,)))
        cursor, self._cursor = self._cursor, OLDEST
        return self.frame_format.gap(self._request.conversation, cursor, found[0].floor)


# --- several sessions on one connection


def parse_cursors(texts: Iterable[str]) -> dict[str, int | None]:
    """Parse `ID:SEQ`, percent-encoded as in an `id:` line. `ID` alone means from the beginning."""
    texts = list(texts)
    if len(texts) > SESSIONS_MAX:
        raise Problem(
            422,
            "too_many_sessions",
            f"one stream follows at most {SESSIONS_MAX} sessions, not {len(texts)}; open another stream for the rest",
        )
    cursors: dict[str, int | None] = {}
    for text in texts:
        name, colon, seq = text.rpartition(":")
        if not colon or not seq.isdigit():
            name, seq = text.removesuffix(":"), ""
        cursors[check_name(unquote(name), "session id")] = parse_cursor(seq) if seq else None
    return cursors


def cursors_text(cursors: Cursors) -> str:
    """Encode all cursors for one `id:` line. A client sends it back as `Last-Event-ID`."""
    return ",".join(f"{quote(name, safe='')}:{seq}" for name, seq in cursors.items() if seq is not None)


class SessionPart(Reader):
    """The reader of one session of a multi-session stream. It wakes the reader of the stream."""

    __slots__ = ("_stream",)

    def __init__(
        self, bus: Engine, fanout: Fanout, request: StreamRequest, identity: Identity, stream: MultiSessionReader
    ) -> None:
        self._stream = stream
        super().__init__(bus, fanout, request, identity)

    def wake(self) -> None:
        self._stream.wake()


class MultiSessionReader(WaitingReader):
    """Reads several sessions in turn, and the list of sessions.

    The `id:` of every event has the cursors of all sessions, so that a client that resumes misses nothing. The end of
    one session is an event of its own; the others go on.
    """

    def __init__(
        self,
        bus: Engine,
        fanout: Fanout,
        cursors: Cursors,
        requests: list[StreamRequest],
        identity: Identity,
        max_events: int | None = None,
    ) -> None:
        super().__init__(identity)
        self._left = max_events
        self.is_deleted = False
        self._cursors = dict(cursors)
        self._lists: LiveSessionLists | None = None
        self._list_version = 0
        self._notices: list[bytes] = []
        self._format = fanout.frame_format
        self._parts = {one.conversation: SessionPart(bus, fanout, one, identity, self) for one in requests}

    def add_list(self, lists: LiveSessionLists) -> None:
        """Send the list of sessions too."""
        self._lists = lists
        self._list = lists.join(self.identity.principal.bound, self)

    def add_notice(self, frame: bytes) -> None:
        """Send this frame, which is not a record, before everything else."""
        self._notices.append(frame)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        if self._lists is not None:
            self._lists.leave(self._list, self)

    @property
    def last_frame(self) -> bytes | None:
        reason = "max_events" if self._left == 0 else self._end_reason
        return None if reason is None else self._format.end("", reason)

    def _is_behind(self) -> bool:
        list_changed = self._lists is not None and self._list.version != self._list_version
        return list_changed or bool(self._notices) or any(part.is_due() for part in self._parts.values())

    async def check_allowed(self) -> bool:
        return True  # the route has checked each session, and owners do not change

    async def find_gap(self) -> bytes:
        return b""  # each session reports its own gap

    def refresh(self) -> None:
        for part in self._parts.values():
            part.refresh()

    async def read(self) -> Iterator[FrameBatch]:
        found = [FrameBatch(b"".join(self._notices), 0, 0)] if self._notices else []
        self._notices = []
        if self._lists is not None:
            data, self._list_version = self._list.after(self._list_version), self._list.version
            found += [FrameBatch(data, 0, 0)] if data else []
        for name, part in list(self._parts.items()):
            try:
                found += await self._read_part(name, part)
            except TransientError:
                if not found:
                    raise
                break  # send what was read first: the cursors of those sessions have moved already
        return iter(found if self._left is None else [cut for batch in found if (cut := self._cut(batch)).data])

    def _cut(self, batch: FrameBatch) -> FrameBatch:
        """Keep as many frames as `max_events` still allows. A frame without data only moves a cursor: not counted."""
        kept: list[bytes] = []
        shown = 0
        for frame in batch.data.split(b"\n\n")[:-1]:
            if shown == self._left:
                break
            shown += b"\ndata: " in frame
            kept.append(frame + b"\n\n")
        self._left = (self._left or 0) - shown
        return FrameBatch(b"".join(kept), batch.cursor, shown)

    async def _read_part(self, name: str, part: SessionPart) -> list[FrameBatch]:
        try:
            found = list(self._with_all_cursors(name, await part.take()))
        except UnknownCursor:
            gap = await part.find_gap()
            self._cursors[name] = None
            return [FrameBatch(gap, 0, 0)]
        end = part.last_frame
        if end is not None:
            self._parts.pop(name).close()
            found.append(FrameBatch(end, 0, 0))
        return found

    def _with_all_cursors(self, name: str, frames: list[EventFrame]) -> Iterator[FrameBatch]:
        """Replace the `id:` line of one session's frames by the cursors of all sessions. The data is not encoded again.

        The text of the other sessions' cursors is built once: they do not move meanwhile.
        """
        cursors = list(self._cursors.items())
        place = list(self._cursors).index(name)
        before, after = cursors_text(dict(cursors[:place])), cursors_text(dict(cursors[place + 1 :]))
        pieces: list[bytes] = []
        size = 0
        for frame in frames:
            self._cursors[name] = frame.seq
            own = cursors_text({name: frame.seq})
            event_id = ",".join(text for text in (before, own, after) if text).encode()
            pieces.append(b"id: %b\n%b" % (event_id, frame.data.partition(b"\n")[2] or b"\n"))
            size += len(pieces[-1])
            if size >= BATCH_MAX_BYTES:
                yield FrameBatch(b"".join(pieces), frame.seq, len(pieces))
                pieces, size = [], 0
        if pieces:
            yield FrameBatch(b"".join(pieces), frames[-1].seq, len(pieces))
