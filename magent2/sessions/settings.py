"""How a session is held: its scenario, what its agents are told instead of their own words, and what all are told.

Settings lie in the history, which a worker reads before each run anyway. Each record is whole, so the last one counts.
The same append tells the stream what has changed, by name: instructions are nobody's business but the agents'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs, SetHead
from magent2.bus.records import NewRecord, TopicInfo
from magent2.bus.retry import retry_on_conflict
from magent2.errors import NameTaken, TopicDeleted
from magent2.mail.headers import ACTIVE_AGENT
from magent2.models.address import agent_topic, check_name, history_topic, stream_topic
from magent2.models.events import SessionEvent
from magent2.models.principal import Principal
from magent2.sessions.history import History, read_history, settings_record
from magent2.sessions.stream import event_payload

CREATED_ID = "session-created"


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What somebody wants to be so. What is None stays as it is; an empty text takes back what was said before.

    `agent` is whom instructions and model are for; `takes_over`, that it is to have the conversation from now on.
    """

    agent: str
    scenario_id: str
    instructions: str | None = None
    model: str | None = None
    overlay: str | None = None
    takes_over: bool = False

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
class ConfigureResult:
    """The settings as they are now, whether the session is new, and what this call has changed."""

    settings: Mapping[str, Any]
    created: bool
    changed: tuple[str, ...]
    active_agent: str | None = None


async def configure_session(log: Log, session_id: str, principal: Principal, change: SessionChange) -> ConfigureResult:
    """Create a session that is held so, or hold one so from its next run on; no change writes nothing.

    A new session is the principal's own; one that is somebody else's is refused.
    """
    check_name(session_id, "session id")
    check_name(principal.name, "owner")
    topic = stream_topic(session_id)
    history: History | None = None

    async def attempt() -> ConfigureResult:
        nonlocal history
        state = await log.describe(topic, agent_topic(session_id))
        _check_free(session_id, state, principal)
        head = state[0].head
        new = not state[0].last and not head
        history = await read_history(log, session_id, history)
        after = change.applied(history.settings)
        before = head.get(ACTIVE_AGENT)
        active = change.agent if new or change.takes_over else before
        moved = () if new or active == before else (ACTIVE_AGENT,)
        changed = (*moved, *changed_settings(history.settings, after))
        if not changed and not new:
            return ConfigureResult(after, False, (), active)
        wanted = {ACTIVE_AGENT: active, "scenario_id": change.scenario_id, **({"owner": principal.name} if new else {})}
        await log.append(_append(session_id, history, after, changed, wanted, head if not new else None))
        return ConfigureResult(after, new, changed, active)

    return await retry_on_conflict(attempt, f"session {session_id!r}")


def _check_free(session_id: str, state: tuple[TopicInfo, ...], principal: Principal) -> None:
    """Whether this can be a session of the principal's."""
    own, agent = state
    if own.deleted:
        raise TopicDeleted(f"session {session_id!r} was deleted")
    if agent.last:
        raise NameTaken(f"{session_id!r} is an agent; give the session another id")
    if (own.last or own.head) and not principal.owns(own.head.get("owner")):
        raise NameTaken(f"session {session_id!r} is taken; give the session another id")


def _append(
    session_id: str,
    history: History,
    after: Mapping[str, Any],
    changed: tuple[str, ...],
    wanted: dict[str, Any],
    head: Mapping[str, Any] | None,
) -> Append:
    """The append that is the change. `head` is what the session's head said before; None for a new session."""
    topic = stream_topic(session_id)
    facts = {"changed": list(changed), "scenario_id": after["scenario_id"], ACTIVE_AGENT: wanted[ACTIVE_AGENT]}
    event = SessionEvent(conversation_id=session_id, status="created" if head is None else "updated", data=facts)
    told = NewRecord(
        topic, event_payload(event), **({"id": CREATED_ID, "digest": wanted["owner"]} if head is None else {})
    )
    conditions: tuple[Condition, ...] = (LastSeqIs(history_topic(session_id), history.last),)
    if head is None:
        conditions += (LastSeqIs(topic, 0), LastSeqIs(agent_topic(session_id), 0), HeadIs(topic, "owner", None))
    else:
        conditions += tuple(HeadIs(topic, name, head.get(name)) for name in ("owner", ACTIVE_AGENT))
    return Append(
        records=(told, settings_record(session_id, after)), conditions=conditions, heads=(SetHead(topic, wanted),)
    )


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, by name: `scenario_id`, `overlay`, `desk.instructions`."""
    found = [name for name in ("scenario_id", "overlay") if before.get(name) != after.get(name)]
    old, new = before.get("agents") or {}, after.get("agents") or {}
    for agent in sorted({*old, *new}):
        said, says = old.get(agent) or {}, new.get(agent) or {}
        found += [f"{agent}.{name}" for name in ("instructions", "model") if said.get(name) != says.get(name)]
    return tuple(found)


def _given(**texts: str | None) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}
