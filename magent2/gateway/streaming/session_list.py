"""Live lists of sessions, shared by all streams of this process that show the same list.

One task follows the sessions of all lists. The bus tells it which sessions were created or deleted or got a new head.
It looks at those sessions alone and passes each on to the lists that show it. A list is read from the log when its
first stream opens, when changes may have been missed, and when a removed session makes room for an older one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypedDict

import orjson

from magent2.background import keep_running
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Topics
from magent2.bus.records import TopicInfo, TopicList
from magent2.bus.watch import Watch
from magent2.gateway.streaming.fanout import Wakeable
from magent2.gateway.streaming.sse import notice_frame
from magent2.mail.headers import BUDGET, CLIENT_CALLS, FIRST_TEXT, LAST_TEXT, PAUSED
from magent2.models.address import checked_topic, stream_topic, topics_of_kind
from magent2.models.api.sessions import SessionState
from magent2.sessions.store import HIDDEN, Session

SHOWN_MAX = 100  # sessions of one list
DESCRIBED_MAX = 100  # sessions that one operation looks at
SWEEP_S = 60.0  # see `_sweep`
PAUSE_S = 0.1  # changes within this time become one event
CHANGES_KEPT = 64  # a reader that is further behind gets the whole list again
TASK_NAME = "magent2-session-lists"
ALL_SESSIONS = topics_of_kind("stream")


class SessionEntry(TypedDict):
    """A session as an entry of a list. The fields are those of `SessionSummary`."""

    session_id: str
    title: str | None
    last_text: str | None
    active_agent_id: str | None
    scenario_id: str | None
    run_status: str | None
    approvals: int
    client_calls: int
    budget: str | None
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
        "approvals": int(head.get(PAUSED) or 0) - int(head.get(CLIENT_CALLS) or 0),
        "client_calls": int(head.get(CLIENT_CALLS) or 0),
        "budget": head.get(BUDGET),
        "last_seq": session.last,
        "last_active_ms": session.active_ms,
        "owner": session.owner,
    }


def session_state(session: Session) -> SessionState | None:
    """Return the state of the last run, as lists filter by it; `None` if the run ended without a failure."""
    if session.head.get(PAUSED) or session.head.get(BUDGET):
        return "waiting"
    match session.head.get("run_status"):
        case "running":
            return "running"
        case "failed":
            return "failed"
    return None


class LiveSessionLists:
    """One live list per owner with an open stream, and one of all sessions for administrators.

    One task keeps all of them up to date. It runs while there is a list.
    """

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._lists: dict[str | None, LiveSessionList] = {}
        self._changed: set[str] = set()  # topics of sessions to look at
        self._sweep_due = False
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, owner: str | None, reader: Wakeable) -> LiveSessionList:
        """Return the list of an owner, and wake the reader when it changes."""
        if owner not in self._lists:
            self._lists[owner] = LiveSessionList(owner)
            self._joined.set()
        joined = self._lists[owner]
        joined.readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(keep_running("follow session lists", self._follow), name=TASK_NAME)
        return joined

    def leave(self, left: LiveSessionList, reader: Wakeable) -> None:
        left.readers.discard(reader)
        if not left.readers and self._lists.get(left.owner) is left:
            del self._lists[left.owner]
        if not self._lists and self._task is not None:
            self._task.cancel()
            self._task = None

    # --- following the log

    async def _follow(self) -> None:
        with self._bus.watch((ALL_SESSIONS,)) as watch:
            self._changed = {ALL_SESSIONS}
            while True:
                await self._update()
                await self._wait(watch)

    async def _wait(self, watch: Watch) -> None:
        """Wait until sessions have changed or a list was opened, and collect the changes of a short time."""
        changed = asyncio.ensure_future(watch.changed(SWEEP_S))
        joined = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait((changed, joined), return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                self._changed |= changed.result()
                self._sweep_due = not self._changed
                if self._changed:
                    await asyncio.wait((joined,), timeout=PAUSE_S)
        finally:
            changed.cancel()
            joined.cancel()
            await asyncio.gather(changed, joined, return_exceptions=True)

    async def _update(self) -> None:
        """Bring all lists up to date."""
        self._joined.clear()
        if ALL_SESSIONS in self._changed:
            for one in self._lists.values():
                one.is_current = False
            self._changed.clear()  # every list is read again, which finds these changes too
        while self._changed:
            topics = sorted(self._changed)[:DESCRIBED_MAX]
            self._apply(await self._bus.acall(Describe(tuple(topics))))
            self._changed.difference_update(topics)
        if self._sweep_due:
            await self._sweep()
        for one in [one for one in self._lists.values() if not one.is_current]:
            await one.read(self._bus)

    async def _sweep(self) -> None:
        """Look at the most recently active sessions of all owners.

        A process of an older release may share the log during an upgrade, and does not tell which heads it has changed.
        """
        page: TopicList = await self._bus.acall(Topics("stream:", limit=SHOWN_MAX))
        self._apply(page.topics)
        self._sweep_due = False

    def _apply(self, sessions: tuple[TopicInfo, ...]) -> None:
        for one in self._lists.values():
            one.apply(sessions)


class LiveSessionList:
    """The most recently active sessions of one owner, and the last changes of the list."""

    def __init__(self, owner: str | None) -> None:
        self.owner = owner
        self.readers: set[Wakeable] = set()
        self.version = 0  # 0 until the first read
        self.is_current = False  # whether `apply` is enough to keep the list up to date
        self._entries: dict[str, SessionEntry] = {}  # most recently active first
        self._is_complete = True  # whether the owner has no older sessions than these
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=CHANGES_KEPT)

    def after(self, version: int) -> bytes:
        """Return the events that bring a reader from this version to the current one. Version 0 is no list at all."""
        oldest = self._changes[0][0] if self._changes else self.version + 1
        if not self.version or version == self.version:
            return b""
        if not version or version + 1 < oldest:
            return notice_frame("sessions", orjson.dumps({"sessions": list(self._entries.values())}))
        return b"".join(frame for number, frame in self._changes if number > version)

    async def read(self, bus: Engine) -> None:
        """Read the list from the log and publish what has changed."""
        page: TopicList = await bus.acall(Topics("stream:", self.owner, None, SHOWN_MAX))
        found = {entry["session_id"]: entry for entry in map(self._entry_of, page.topics) if entry is not None}
        missing = tuple(stream_topic(name) for name in self._entries if name not in found)
        # The others among those that are missing only made room for more recent sessions.
        looked_at: tuple[TopicInfo, ...] = await bus.acall(Describe(missing)) if missing else ()
        removed = [_session_id(info) for info in looked_at if self._entry_of(info) is None]
        changed = [entry for name, entry in found.items() if _differs(self._entries.get(name), entry)]
        self._entries = found
        self._is_complete = page.next is None
        self.is_current = True
        self._publish(changed, removed)

    def apply(self, sessions: tuple[TopicInfo, ...]) -> None:
        """Take over the state of sessions that may be of this list, and publish what has changed."""
        if not self.version:
            return
        changed: dict[str, SessionEntry] = {}
        removed: list[str] = []
        for info in sessions:
            name, entry = _session_id(info), self._entry_of(info)
            if entry is None and self._entries.pop(name, None) is not None:
                removed.append(name)
                self.is_current &= self._is_complete  # if there is an older session, it is shown again now
            elif entry is not None and _differs(self._entries.get(name), entry):
                self._entries[name] = changed[name] = entry
        if changed:
            ordered = sorted(self._entries.values(), key=_order, reverse=True)
            self._entries = {entry["session_id"]: entry for entry in ordered[:SHOWN_MAX]}
            self._is_complete &= len(ordered) <= SHOWN_MAX
        self._publish([entry for name, entry in changed.items() if name in self._entries], removed)

    def _entry_of(self, info: TopicInfo) -> SessionEntry | None:
        """Return the entry of a session, or `None` if the list does not show it."""
        session = Session.of(info)
        is_mine = self.owner is None or session.owner == self.owner
        return session_summary(session) if is_mine and not info.deleted and not info.head.get(HIDDEN) else None

    def _publish(self, changed: list[SessionEntry], removed: list[str]) -> None:
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


def _session_id(info: TopicInfo) -> str:
    return checked_topic(info.topic)[1]


def _order(entry: SessionEntry) -> tuple[int, str]:
    return entry["last_active_ms"], entry["session_id"]


def _differs(before: SessionEntry | None, now: SessionEntry) -> bool:
    """Compare entries without `last_seq`, which lists do not show and every record changes."""
    return before is None or {**before, "last_seq": 0} != {**now, "last_seq": 0}
