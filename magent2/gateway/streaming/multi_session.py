"""One stream for several sessions and the list of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

from magent2.bus.interface import Engine
from magent2.errors import TransientError, UnknownCursor
from magent2.gateway.access.identity import Identity
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.reader import Reader, WaitingReader
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.gateway.streaming.sse import BATCH_MAX_BYTES, EventFrame, FrameBatch, StreamRequest, parse_cursor
from magent2.models.address import check_name

SESSIONS_MAX = 50  # of one connection
CURSORS_MAX_CHARS = 100_000

Cursors = Mapping[str, int | None]


def parse_cursors(texts: list[str]) -> dict[str, int | None]:
    """`ID:SEQ`, percent-encoded as in an `id:`, or `ID` alone for all there is."""
    if len(texts) > SESSIONS_MAX:
        raise Problem(422, "too_many_sessions", f"one stream follows at most {SESSIONS_MAX} sessions, not {len(texts)}")
    found: dict[str, int | None] = {}
    for text in texts:
        name, colon, seq = text.rpartition(":")
        if not colon or not seq.isdigit():
            name, seq = text.removesuffix(":"), ""
        found[check_name(unquote(name), "session id")] = parse_cursor(seq) if seq else None
    return found


def cursors_text(cursors: Cursors) -> str:
    """All cursors as one `id:`: what a client gives back as `Last-Event-ID`."""
    return ",".join(f"{quote(name, safe='')}:{seq}" for name, seq in cursors.items() if seq is not None)


class SessionPart(Reader):
    """The reader of one of the sessions. It wakes the reader of the whole stream."""

    __slots__ = ("_whole",)

    def __init__(
        self, bus: Engine, fanout: Fanout, wanted: StreamRequest, identity: Identity, whole: MultiSessionReader
    ) -> None:
        self._whole = whole
        super().__init__(bus, fanout, wanted, identity)

    @property
    def session_id(self) -> str:
        return self._wanted.conversation

    def wake(self) -> None:
        self._whole.wake()

    async def take(self) -> list[EventFrame]:
        """What is new, as single frames."""
        frames = await self._news()
        if frames:
            self._cursor = frames[-1].seq
        return frames


class MultiSessionReader(WaitingReader):
    """Reads all sessions in turns; every event goes out with the cursors of all, so that a resume has no hole.

    A session that ends is told and left out; the others go on.
    """

    def __init__(
        self,
        bus: Engine,
        fanout: Fanout,
        cursors: Cursors,
        wanted: list[StreamRequest],
        identity: Identity,
        max_events: int | None = None,
    ) -> None:
        super().__init__(identity)
        self._left = max_events
        self.is_deleted = False
        self._cursors = dict(cursors)
        self._lists: LiveSessionLists | None = None
        self._version = 0
        self._notices: list[bytes] = []
        self._rendering = fanout.rendering
        self._parts = {one.conversation: SessionPart(bus, fanout, one, identity, self) for one in wanted}

    def look_at(self, lists: LiveSessionLists) -> None:
        """Show the list of sessions too."""
        self._lists = lists
        self._shown = lists.join(self.identity.principal.bound, self)

    def say(self, frame: bytes) -> None:
        """Something that is no record, before all else."""
        self._notices.append(frame)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        if self._lists is not None:
            self._lists.leave(self._shown, self)

    @property
    def ended(self) -> bytes | None:
        reason = "max_events" if self._left == 0 else self._ending
        return None if reason is None else self._rendering.end("", reason)

    def _has_news(self) -> bool:
        listed = self._lists is not None and self._shown.version != self._version
        return listed or bool(self._notices) or any(part.is_due() for part in self._parts.values())

    # --- reading

    async def may_see(self) -> bool:
        return True  # each session was looked at when the stream began, and owners do not change

    async def find_gap(self) -> bytes:
        return b""  # each session tells its own

    async def read(self) -> Iterator[FrameBatch]:
        found = [FrameBatch(b"".join(self._notices), 0, 0)] if self._notices else []
        self._notices = []
        if self._lists is not None:
            data, self._version = self._shown.after(self._version), self._shown.version
            found += [FrameBatch(data, 0, 0)] if data else []
        for name, part in list(self._parts.items()):
            try:
                found += await self._of(name, part)
            except TransientError:
                if not found:
                    raise
                break  # what was read is sent first: its readers have moved on
        return iter(found if self._left is None else [cut for batch in found if (cut := self._cut(batch)).data])

    def _cut(self, batch: FrameBatch) -> FrameBatch:
        """As many of its frames as the reader still wants; one without data moves a cursor and does not count."""
        kept: list[bytes] = []
        shown = 0
        for frame in batch.data.split(b"\n\n")[:-1]:
            if shown == self._left:
                break
            shown += b"\ndata: " in frame
            kept.append(frame + b"\n\n")
        self._left = (self._left or 0) - shown
        return FrameBatch(b"".join(kept), batch.cursor, shown)

    async def _of(self, name: str, part: SessionPart) -> list[FrameBatch]:
        try:
            found = list(self._numbered(name, await part.take()))
        except UnknownCursor:
            gap = await part.find_gap()
            self._cursors[name] = None
            return [FrameBatch(gap, 0, 0)]
        end = part.ended
        if end is not None:
            self._parts.pop(name).close()
            found.append(FrameBatch(end, 0, 0))
        return found

    def _numbered(self, name: str, frames: list[EventFrame]) -> Iterator[FrameBatch]:
        """The frames of one session under the cursors of all."""
        known = list(self._cursors.items())
        place = list(self._cursors).index(name)
        ahead, behind = cursors_text(dict(known[:place])), cursors_text(dict(known[place + 1 :]))
        pieces: list[bytes] = []
        size = 0
        for frame in frames:
            self._cursors[name] = frame.seq
            own = cursors_text({name: frame.seq})
            mark = ",".join(text for text in (ahead, own, behind) if text).encode()
            pieces.append(b"id: %b\n%b" % (mark, frame.data.partition(b"\n")[2] or b"\n"))
            size += len(pieces[-1])
            if size >= BATCH_MAX_BYTES:
                yield FrameBatch(b"".join(pieces), frame.seq, len(pieces))
                pieces, size = [], 0
        if pieces:
            yield FrameBatch(b"".join(pieces), frames[-1].seq, len(pieces))
