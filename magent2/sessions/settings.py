"""How a session is held: its scenario, what its agents are told instead of their own words, and what all are told.

Settings lie in the history, which a worker reads before each run anyway. Each record is whole, so the last one counts.
The same append tells the stream what has changed, by name: instructions are nobody's business but the agents'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magent2.bus.delivery import ACTIVE_AGENT
from magent2.bus.flow import Flow
from magent2.bus.operations import Append, At, Condition, Describe, HeadIs, SetHead
from magent2.bus.records import NewRecord, TopicInfo
from magent2.errors import ConditionFailed, NameTaken, TopicDeleted
from magent2.models.address import agent_topic, check_name, history_topic, stream_topic
from magent2.models.events import SessionEvent
from magent2.sessions.history import History, reading_history, settings_record
from magent2.sessions.store import CREATED_ID
from magent2.sessions.stream import event_payload

TRIES_MAX = 8  # how often the history may move on under one change


@dataclass(frozen=True, slots=True)
class Change:
    """What somebody wants to be so. What is None stays as it is; an empty text takes back what was said before."""

    agent: str
    scenario_id: str
    instructions: str | None = None
    model: str | None = None
    overlay: str | None = None

    def applied(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with this change. Another scenario has other agents: what was said to the old ones goes."""
        same = settings.get("scenario_id") in (None, self.scenario_id)
        agents = {name: dict(said) for name, said in (settings.get("agents") or {}).items()} if same else {}
        said = agents.pop(self.agent, {}) | _given(instructions=self.instructions, model=self.model)
        said = {name: text for name, text in said.items() if text}
        overlay = settings.get("overlay", "") if self.overlay is None else self.overlay
        return {
            "scenario_id": self.scenario_id,
            "agents": {**agents, **({self.agent: said} if said else {})},
            **({"overlay": overlay} if overlay else {}),
        }


@dataclass(frozen=True, slots=True)
class Configured:
    """The settings as they are now, whether the session is new, and what this call has changed."""

    settings: Mapping[str, Any]
    created: bool
    changed: tuple[str, ...]


def configuring(
    session_id: str, owner: str, change: Change, fields: Mapping[str, Any] | None = None
) -> Flow[Configured]:
    """Create a session that is held so, or hold one so from its next run on; no change writes nothing.

    `fields` go on the head of a new session. Whose session it is, the caller has checked.
    """
    check_name(session_id, "session id")
    check_name(owner, "owner")
    history: History | None = None
    for _ in range(TRIES_MAX):
        state: tuple[TopicInfo, ...] = yield Describe((stream_topic(session_id), agent_topic(session_id)))
        if state[0].deleted:
            raise TopicDeleted(f"session {session_id!r} was deleted")
        if state[1].last:
            raise NameTaken(f"{session_id!r} is an agent; give the session another id")
        created = not state[0].last and not state[0].head
        history = yield from reading_history(session_id, history)
        after = change.applied(history.settings)
        changed = changes(history.settings, after)
        if not changed and not created:
            return Configured(after, False, ())
        head = {"owner": owner, ACTIVE_AGENT: change.agent, **(fields or {})} if created else {}
        try:
            yield _append(session_id, history, after, changed, {**head, "scenario_id": change.scenario_id}, created)
        except ConditionFailed:
            continue  # a run has written meanwhile, or somebody was quicker
        return Configured(after, created, changed)
    raise ConditionFailed(f"session {session_id!r} keeps changing; try again")


def _append(
    session_id: str,
    history: History,
    after: Mapping[str, Any],
    changed: tuple[str, ...],
    head: dict[str, Any],
    new: bool,
) -> Append:
    topic = stream_topic(session_id)
    facts = {"changed": list(changed), "scenario_id": after["scenario_id"]}
    event = SessionEvent(conversation_id=session_id, status="created" if new else "updated", data=facts)
    told = NewRecord(topic, event_payload(event), **({"id": CREATED_ID, "digest": head["owner"]} if new else {}))
    conditions: tuple[Condition, ...] = (At(history_topic(session_id), history.last),)
    if new:
        conditions += (At(topic, 0), At(agent_topic(session_id), 0), HeadIs(topic, "owner", None))
    return Append(
        records=(told, settings_record(session_id, after)), conditions=conditions, heads=(SetHead(topic, head),)
    )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, by name: `scenario_id`, `overlay`, `desk.instructions`."""
    found = [name for name in ("scenario_id", "overlay") if before.get(name) != after.get(name)]
    old, new = before.get("agents") or {}, after.get("agents") or {}
    for agent in sorted({*old, *new}):
        said, says = old.get(agent) or {}, new.get(agent) or {}
        found += [f"{agent}.{name}" for name in ("instructions", "model") if said.get(name) != says.get(name)]
    return tuple(found)


def _given(**texts: str | None) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}
