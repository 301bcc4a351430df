"""Settings of a session: its scenario, instructions and models of its agents, and an overlay for all of them.

Settings are records of the history, which a worker reads before each run anyway. Each record is complete, so the last
one counts. The same append adds an event to the stream that names the changed settings but not their values, because
readers of the stream may not see instructions.
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
    """A requested change. A field that is None stays as it is; an empty text removes the setting.

    `agent` is the agent that instructions and model are for; with `takes_over` it also becomes the active agent.
    """

    agent: str
    scenario_id: str
    instructions: str | None = None
    model: str | None = None
    overlay: str | None = None
    takes_over: bool = False

    def applied(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings after this change. A change of scenario removes the settings of the old scenario's agents."""
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
    """The settings after the call, whether the session is new, and the names of the changed settings."""

    settings: Mapping[str, Any]
    created: bool
    changed: tuple[str, ...]
    active_agent: str | None = None


async def configure_session(log: Log, session_id: str, principal: Principal, change: SessionChange) -> ConfigureResult:
    """Create a session with these settings, or change them from its next run on. Writes nothing if they are set.

    The principal owns a new session. Raises `NameTaken` for a session of another owner or the name of an agent.
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
    """Check that the id can be a session of the principal."""
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
    """The append that makes the change. `head` is the session's head before it; None for a new session."""
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
    """The names of the settings that differ: `scenario_id`, `overlay`, `desk.instructions`."""
    found = [name for name in ("scenario_id", "overlay") if before.get(name) != after.get(name)]
    old, new = before.get("agents") or {}, after.get("agents") or {}
    for agent in sorted({*old, *new}):
        said, says = old.get(agent) or {}, new.get(agent) or {}
        found += [f"{agent}.{name}" for name in ("instructions", "model") if said.get(name) != says.get(name)]
    return tuple(found)


def _given(**texts: str | None) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}
