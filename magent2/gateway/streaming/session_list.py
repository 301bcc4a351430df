"""Live lists of sessions, shared by all streams of this process that show the same list.

The bus reports that a topic has changed, but not that a new one was created. So each list watches its sessions and the
inboxes of all agents, which get the first message of every new conversation. A session that was created without a
message is found by the next sweep, or at once if this process created it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TypedDict

import orjson

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Topics
from magent2.bus.records import TopicInfo, TopicList
from magent2.bus.watch import Watch
from magent2.errors import Magent2Error
from magent2.gateway.streaming.fanout import Wakeable
from magent2.gateway.streaming.sse import notice_frame
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT, PAUSED
from magent2.models.address import chat_topic, stream_topic
from magent2.sessions.store import HIDDEN, Session

SHOWN_MAX = 100  # sessions of one list
AGENTS_MAX = 1000  # whose inboxes one list watches
SWEEP_S = 5.0
PAUSE_S = 0.1  # changes within this time become one event
CHANGES_KEPT = 64  # a reader that is further behind gets the whole list again

log = logging.getLogger(__name__)


class SessionEntry(TypedDict):
    """A session as an entry of a list. The fields are those of `SessionSummary`."""

    session_id: str
    title: str | None
    last_text: str | None
    active_agent_id: str | None
    scenario_id: str | None
    run_status: str | None
    approvals: int
    last_seq: int
    last_active_ms: int
    owner: str | None


def session_summary(session: Session) -> SessionEntry:
    head = session.head
    return {
        "session_id": session.session_id,
        "title": head.get("title") or head.get(FIRST_TEXT) or head.get(LAST_TEXT) or None,
        "last_text": head.get(LAST_TEXT) or None,
        "active_agent_id": session.active_agent,
        "scenario_id": head.get("scenario_id"),
        "run_status": head.get("run_status"),
        "approvals": int(head.get(PAUSED) or 0),
        "last_seq": session.last,
        "last_active_ms": session.active_ms,
        "owner": session.owner,
    }


class LiveSessionLists:
    """One live list per owner with an open stream, and one of all sessions for administrators."""

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._lists: dict[str | None, LiveSessionList] = {}

    def join(self, owner: str | None, reader: Wakeable) -> LiveSessionList:
        """Return the list of an owner, and wake the reader when it changes."""
        if owner not in self._lists:
            self._lists[owner] = LiveSessionList(self._bus, owner)
        joined = self._lists[owner]
        joined.readers.add(reader)
        return joined

    def leave(self, left: LiveSessionList, reader: Wakeable) -> None:
        left.readers.discard(reader)
        if not left.readers and self._lists.get(left.owner) is left:
            del self._lists[left.owner]
            left.close()

    def refresh(self) -> None:
        """Read all lists again: this process has created or deleted a session."""
        for one in self._lists.values():
            one.refresh()


class LiveSessionList:
    """The most recently active sessions of one owner, and the last changes of the list."""

    def __init__(self, bus: Engine, owner: str | None) -> None:
        self.owner = owner
        self.readers: set[Wakeable] = set()
        self.version = 0  # 0 until the first read
        self._bus = bus
        self._entries: dict[str, SessionEntry] = {}
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=CHANGES_KEPT)
        self._watched: set[str] = set()
        self._refresh_requested = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="magent2-session-list")

    def close(self) -> None:
        self._task.cancel()

    def refresh(self) -> None:
        self._refresh_requested.set()

    def after(self, version: int) -> bytes:
        """Return the events that bring a reader from this version to the current one. Version 0 is no list at all."""
        oldest = self._changes[0][0] if self._changes else self.version + 1
        if not self.version or version == self.version:
            return b""
        if not version or version + 1 < oldest:
            return notice_frame("sessions", orjson.dumps({"sessions": list(self._entries.values())}))
        return b"".join(frame for number, frame in self._changes if number > version)

    # --- following the log

    async def _run(self) -> None:
        with self._bus.watch() as watch:
            while True:
                self._refresh_requested.clear()
                try:
                    while await self._read(watch):
                        pass  # a topic that was just added to the watch may have changed before that
                except Magent2Error as error:
                    log.warning("cannot read the list of sessions; will retry", extra={"error": str(error)})
                await self._wait(watch)
                await asyncio.sleep(PAUSE_S)

    async def _wait(self, watch: Watch) -> None:
        waits = [asyncio.ensure_future(watch.changed(SWEEP_S)), asyncio.ensure_future(self._refresh_requested.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _read(self, watch: Watch) -> bool:
        """Read the list and publish what has changed. Return whether new topics were added to the watch."""
        known: TopicList = await self._bus.acall(Topics("agent:", limit=AGENTS_MAX))
        inboxes = {chat_topic(info.topic.partition(":")[2]) for info in known.topics}
        page: TopicList = await self._bus.acall(Topics("stream:", self.owner, None, SHOWN_MAX))
        found = {
            session.session_id: session_summary(session)
            for session in (Session.of(info) for info in page.topics if not info.head.get(HIDDEN))
        }
        deleted = await self._deleted([name for name in self._entries if name not in found])
        self._publish(found, deleted)
        topics = {*map(stream_topic, found), *inboxes}
        new, old = topics - self._watched, self._watched - topics
        watch.add(*new)
        watch.discard(*old)
        self._watched = topics
        return bool(new)

    async def _deleted(self, names: list[str]) -> list[str]:
        """Return those that were deleted. The others only made room for more recent sessions."""
        if not names:
            return []
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe(tuple(map(stream_topic, names))))
        return [name for name, info in zip(names, found, strict=True) if info.deleted]

    def _publish(self, found: dict[str, SessionEntry], removed: list[str]) -> None:
        changed = [entry for name, entry in found.items() if _differs(self._entries.get(name), entry)]
        self._entries = found
        if not self.version:
            self.version = 1
        elif changed or removed:
            self.version += 1
            data = orjson.dumps({"changed": changed, "removed": removed})
            self._changes.append((self.version, notice_frame("sessions_changed", data)))
        else:
            return
        for reader in self.readers:
            reader.wake()


def _differs(before: SessionEntry | None, now: SessionEntry) -> bool:
    """Compare entries without `last_seq`, which lists do not show and every record changes."""
    return before is None or {**before, "last_seq": 0} != {**now, "last_seq": 0}
