"""Sorting: from an agent's two inboxes into the lanes of its conversations."""

from __future__ import annotations

from collections.abc import Iterable

from magent2.bus.sqlite_engine.state import LANE_MARK, SEQ_MASK, State, rid_of
from magent2.models.address import chat_topic, control_topic

SORT_MAX = 256  # records per inbox and claim

CONTROL, CHAT = 0, 1  # of mail: control comes first

_LANE = (
    "SELECT lid, owner IS NOT NULL, ready IS NOT NULL, due_ms IS NOT NULL OR parked FROM lanes"
    " WHERE conversation = ? AND agent = ?"
)
_OPEN = "INSERT INTO lanes (conversation, agent, since_ms, ready) VALUES (?, ?, ?, ?)"
_READY = (
    "UPDATE lanes SET ready = ?, due_ms = NULL, parked = 0, since_ms = iif(idle_ms IS NULL, since_ms, ?),"
    " idle_ms = NULL WHERE lid = ?"
)


def sort_inboxes(state: State, agents: Iterable[str]) -> bool:
    """Move new mail into lanes; whether some is left."""
    more = False
    for agent in agents:
        cursors = inbox(state, agent)
        before = list(cursors)
        for kind, topic in ((CONTROL, control_topic(agent)), (CHAT, chat_topic(agent))):
            if state.topic(topic).last > cursors[kind]:
                cursors[kind] = _sort(state, agent, kind, topic, cursors[kind])
                more = more or state.topic(topic).last > cursors[kind]
        if cursors != before:
            save_inbox(state, agent, cursors)
    return more


def inbox(state: State, agent: str) -> list[int]:
    """How far the agent's inboxes are sorted: control, chat."""
    cursors = state.inboxes.get(agent)
    if cursors is None:
        row = state.one("SELECT control, chat FROM inboxes WHERE agent = ?", agent)
        cursors = state.inboxes[agent] = list(row or (0, 0))
    return cursors


def save_inbox(state: State, agent: str, cursors: list[int]) -> None:
    state.inboxes[agent] = cursors
    values = (agent, cursors[CHAT], cursors[CONTROL])
    state.connection.execute("INSERT OR REPLACE INTO inboxes VALUES (?, ?, ?)", values)


def _sort(state: State, agent: str, kind: int, name: str, cursor: int) -> int:
    topic = state.topic(name)
    rows = state.all(
        "SELECT rid, lane, at_ms, payload IS NULL FROM records WHERE rid > ? AND rid <= ? ORDER BY rid LIMIT ?",
        rid_of(topic.tid, cursor),
        rid_of(topic.tid, topic.last),
        SORT_MAX,
    )
    for rid, lane, at_ms, erased in rows:
        if lane and not erased:
            _deliver(state, agent, lane.removeprefix(LANE_MARK), kind, rid & SEQ_MASK, at_ms)
    return topic.last if len(rows) < SORT_MAX else rows[-1][0] & SEQ_MASK


def _deliver(state: State, agent: str, conversation: str, kind: int, seq: int, at_ms: int) -> None:
    """Put mail into its lane; a lane that rests, or that waits when control comes, is ready from now on."""
    row = state.one(_LANE, conversation, agent)
    if row is None:
        values: tuple[object, ...] = (conversation, agent, at_ms, _place(state, kind))
        lid = int(state.connection.execute(_OPEN, values).lastrowid or 0)
    else:
        lid, held, ready, waits = row
        if not held and not ready and (kind == CONTROL or not waits):
            state.connection.execute(_READY, (_place(state, kind), at_ms, lid))
    state.connection.execute("INSERT OR IGNORE INTO mail VALUES (?, ?, ?)", (lid, kind, seq))


def _place(state: State, kind: int) -> int:
    return state.front() if kind == CONTROL else state.back()
