"""Lane intake: sorts new mail of an agent's two inboxes into the lanes of its conversations."""

from __future__ import annotations

from collections.abc import Iterable

from magent2.bus.operations import INTAKE_MAX
from magent2.bus.sqlite_engine.connection import LANE_PREFIX, SEQ_MASK, WriteConnection, rid_of
from magent2.models.address import chat_topic, control_topic

CONTROL, CHAT = 0, 1  # kinds of mail as stored in `mail.chat`; control sorts first

_SELECT_LANE = (
    "SELECT lid, owner IS NOT NULL, ready IS NOT NULL, due_ms IS NOT NULL OR parked FROM lanes"
    " WHERE conversation = ? AND agent = ?"
)
_INSERT_LANE = "INSERT INTO lanes (conversation, agent, since_ms, ready, principal) VALUES (?, ?, ?, ?, ?)"
_MAKE_READY = (
    "UPDATE lanes SET ready = ?, principal = ?, due_ms = NULL, parked = 0,"
    " since_ms = iif(idle_ms IS NULL, since_ms, ?), idle_ms = NULL WHERE lid = ?"
)


def sort_inboxes(db: WriteConnection, agents: Iterable[str]) -> bool:
    """Move new mail of these agents into lanes; return whether some is left for the next claim."""
    more = False
    for agent in agents:
        cursors = intake_cursors(db, agent)
        before = list(cursors)
        for kind, topic in ((CONTROL, control_topic(agent)), (CHAT, chat_topic(agent))):
            if db.topic(topic).last > cursors[kind]:
                cursors[kind] = _sort_inbox(db, agent, kind, topic, cursors[kind])
                more = more or db.topic(topic).last > cursors[kind]
        if cursors != before:
            save_intake_cursors(db, agent, cursors)
    return more


def intake_cursors(db: WriteConnection, agent: str) -> list[int]:
    """Return the seqs up to which the agent's inboxes are sorted, indexed by `CONTROL` and `CHAT`."""
    cursors = db.inboxes.get(agent)
    if cursors is None:
        row = db.one("SELECT control, chat FROM inboxes WHERE agent = ?", agent)
        cursors = db.inboxes[agent] = list(row or (0, 0))
    return cursors


def save_intake_cursors(db: WriteConnection, agent: str, cursors: list[int]) -> None:
    db.inboxes[agent] = cursors
    db.execute("INSERT OR REPLACE INTO inboxes VALUES (?, ?, ?)", (agent, cursors[CHAT], cursors[CONTROL]))


def _sort_inbox(db: WriteConnection, agent: str, kind: int, name: str, cursor: int) -> int:
    """Sort up to `INTAKE_MAX` records of one inbox; return the new cursor."""
    topic = db.topic(name)
    rows = db.all(
        "SELECT rid, lane, at_ms, payload IS NULL FROM records WHERE rid > ? AND rid <= ? ORDER BY rid LIMIT ?",
        rid_of(topic.tid, cursor),
        rid_of(topic.tid, topic.last),
        INTAKE_MAX,
    )
    mail = [
        (_lane_for_mail(db, agent, lane.removeprefix(LANE_PREFIX), kind, at_ms), kind, rid & SEQ_MASK)
        for rid, lane, at_ms, erased in rows
        if lane and not erased
    ]
    db.executemany("INSERT OR IGNORE INTO mail VALUES (?, ?, ?)", mail)
    return topic.last if len(rows) < INTAKE_MAX else rows[-1][0] & SEQ_MASK


def _lane_for_mail(db: WriteConnection, agent: str, conversation: str, kind: int, at_ms: int) -> int:
    """Return the lane that new mail belongs to, and make the lane ready if this mail is a reason to.

    A lane that is held or ready stays so. A lane that waits for its delay or is parked becomes ready only for control
    mail, which goes ahead of everything; an idle lane becomes ready for any mail.
    """
    order = db.next_front if kind == CONTROL else db.next_back
    row = db.one(_SELECT_LANE, conversation, agent)
    if row is None:
        values = (conversation, agent, at_ms, order(), db.principal_of(conversation))
        return int(db.execute(_INSERT_LANE, values).lastrowid or 0)
    lid, held, ready, waits = row
    if not held and not ready and (kind == CONTROL or not waits):
        db.execute(_MAKE_READY, (order(), db.principal_of(conversation), at_ms, lid))
    return int(lid)
