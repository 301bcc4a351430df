"""The list of sessions as it changes, for everybody in this process who looks at one.

The bus tells when a topic changes, and not that a new one has begun. So each list watches the sessions that it shows
and the inboxes of the agents, where every new conversation leaves its first mail; what begins without any is seen at
the next sweep, or at once when this process began it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import orjson

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Topics
from magent2.bus.records import TopicInfo, TopicList
from magent2.bus.watch import Watch
from magent2.errors import Magent2Error
from magent2.gateway.streaming.fanout import Wakeable
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT, PAUSED
from magent2.models.address import chat_topic, stream_topic
from magent2.sessions.store import HIDDEN, Session

SHOWN_MAX = 100  # sessions of one list
AGENTS_MAX = 1000
SWEEP_S = 5.0
PAUSE_S = 0.1  # what changes together is told together
CHANGES_KEPT = 64  # who is further behind is given the whole list again

log = logging.getLogger(__name__)


def session_summary(session: Session) -> dict[str, Any]:
    """Return a session as an entry of a list."""
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

    def join(self, owner: str | None, sleeper: Wakeable) -> LiveSessionList:
        if owner not in self._lists:
            self._lists[owner] = LiveSessionList(self._bus, owner)
        shown = self._lists[owner]
        shown.sleepers.add(sleeper)
        return shown

    def leave(self, shown: LiveSessionList, sleeper: Wakeable) -> None:
        shown.sleepers.discard(sleeper)
        if not shown.sleepers and self._lists.get(shown.owner) is shown:
            del self._lists[shown.owner]
            shown.close()

    def look(self) -> None:
        """Note that this process created or deleted a session, so that lists need not wait for the sweep."""
        for shown in self._lists.values():
            shown.look()


class LiveSessionList:
    """The most recently active sessions of one owner, and what has changed of late."""

    def __init__(self, bus: Engine, owner: str | None) -> None:
        self.owner = owner
        self.sleepers: set[Wakeable] = set()
        self.version = 0  # 0 until it was read for the first time
        self._bus = bus
        self._items: dict[str, dict[str, Any]] = {}
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=CHANGES_KEPT)
        self._watched: set[str] = set()
        self._told = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(), name="magent2-session-list")]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def look(self) -> None:
        self._told.set()

    def after(self, version: int) -> bytes:
        """What a reader who has seen this version has to be sent; the whole list to one who has seen none."""
        oldest = self._changes[0][0] if self._changes else self.version + 1
        if not self.version or version == self.version:
            return b""
        if not version or version + 1 < oldest:
            return _frame("sessions", {"sessions": list(self._items.values())})
        return b"".join(frame for number, frame in self._changes if number > version)

    # --- looking

    async def _run(self) -> None:
        with self._bus.watch() as watch:
            while True:
                self._told.clear()
                try:
                    while await self._look(watch):
                        pass  # what was added to the watch may have changed before it was
                except Magent2Error as error:
                    log.warning("a list of sessions waits for the bus", extra={"error": str(error)})
                await self._wait(watch)
                await asyncio.sleep(PAUSE_S)

    async def _wait(self, watch: Watch) -> None:
        waits = [asyncio.ensure_future(watch.changed(SWEEP_S)), asyncio.ensure_future(self._told.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _look(self, watch: Watch) -> bool:
        """Read the list and tell what is new; whether there is more to watch now."""
        inboxes = await self._inboxes_now()
        page: TopicList = await self._bus.acall(Topics("stream:", self.owner, None, SHOWN_MAX))
        found = {
            session.session_id: session_summary(session)
            for session in (Session.of(info) for info in page.topics if not info.head.get(HIDDEN))
        }
        gone = await self._deleted([name for name in self._items if name not in found])
        self._tell(found, gone)
        return self._watch_these(watch, {*map(stream_topic, found), *inboxes})

    async def _inboxes_now(self) -> set[str]:
        known: TopicList = await self._bus.acall(Topics("agent:", limit=AGENTS_MAX))
        return {chat_topic(info.topic.partition(":")[2]) for info in known.topics}

    def _watch_these(self, watch: Watch, topics: set[str]) -> bool:
        new, old = topics - self._watched, self._watched - topics
        watch.add(*new)
        watch.discard(*old)
        self._watched = topics
        return bool(new)

    async def _deleted(self, names: list[str]) -> list[str]:
        """Those that are no longer there; others only made room for more recent ones."""
        if not names:
            return []
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe(tuple(map(stream_topic, names))))
        return [name for name, info in zip(names, found, strict=True) if info.deleted]

    def _tell(self, found: dict[str, dict[str, Any]], gone: list[str]) -> None:
        changed = [item for name, item in found.items() if _differs(self._items.get(name), item)]
        self._items = found
        if not self.version:
            self.version = 1
        elif changed or gone:
            self.version += 1
            self._changes.append((self.version, _frame("sessions_changed", {"changed": changed, "removed": gone})))
        else:
            return
        for sleeper in self.sleepers:
            sleeper.wake()


def _differs(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether a list would look different; how far the log has grown it does not show."""
    return before is None or {**before, "last_seq": 0} != {**now, "last_seq": 0}


def _frame(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
