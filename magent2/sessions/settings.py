"""Settings of a session: its scenario, instructions and models of its agents, and an overlay for all of them.

Settings are records of the history, which a worker reads before each run anyway. Each record is complete, so the last
one counts. The same append adds an event to the stream that names the changed settings but not their values, because
readers of the stream may not see instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs, SetHead
from magent2.bus.records import NewRecord, TopicInfo
from magent2.bus.retry import retry_on_conflict
from magent2.errors import NameTaken, TopicDeleted
from magent2.mail.headers import ACTIVE_AGENT, OWNER
from magent2.models.address import agent_topic, check_conversation_id, check_name, history_topic, stream_topic
from magent2.models.events import SessionEvent
from magent2.models.json_types import JsonMapping
from magent2.models.principal import Principal
from magent2.sessions.history import AgentSettings, History, RecordedSettings, read_history, settings_record
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

    def applied(self, settings: RecordedSettings) -> RecordedSettings:
        """The settings after this change. A change of scenario removes the settings of the old scenario's agents."""
        same = settings.get("scenario_id") in (None, self.scenario_id)
        agents = dict(settings.get("agents") or {}) if same else {}
        before = agents.pop(self.agent, AgentSettings())
        own = AgentSettings()
        if instructions := before.get("instructions") if self.instructions is None else self.instructions:
            own["instructions"] = instructions
        if model := before.get("model") if self.model is None else self.model:
            own["model"] = model
        if own:
            agents[self.agent] = own
        after: RecordedSettings = {"scenario_id": self.scenario_id, "agents": agents}
        if overlay := settings.get("overlay") if self.overlay is None else self.overlay:
            after["overlay"] = overlay
        return after


@dataclass(frozen=True, slots=True)
class ConfigureResult:
    """The settings after the call, whether the session is new, and the names of the changed settings."""

    settings: RecordedSettings
    created: bool
    changed: tuple[str, ...]
    active_agent: str | None = None


async def configure_session(log: Log, session_id: str, principal: Principal, change: SessionChange) -> ConfigureResult:
    """Create a session with these settings, or change them from its next run on. Writes nothing if they are set.

    The principal owns a new session. Raises `NameTaken` for a session of another owner or the name of an agent.
    """
    check_conversation_id(session_id, "session id")
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
        owner = principal.name if new else None
        await log.append(_append(session_id, history, after, changed, active, owner, head))
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
    after: RecordedSettings,
    changed: tuple[str, ...],
    active: str | None,
    owner: str | None,
    head: JsonMapping,
) -> Append:
    """The append that makes the change. `owner` is that of a new session; `head` is the session's head before it."""
    topic = stream_topic(session_id)
    fields = {ACTIVE_AGENT: active, "scenario_id": after["scenario_id"]}
    facts = {"changed": list(changed), **fields}
    conditions: tuple[Condition, ...] = (LastSeqIs(history_topic(session_id), history.last),)
    if owner is not None:
        event = SessionEvent(conversation_id=session_id, status="created", data=facts)
        change = NewRecord(topic, event_payload(event), id=CREATED_ID, digest=owner)
        conditions += (LastSeqIs(topic, 0), LastSeqIs(agent_topic(session_id), 0), HeadIs(topic, OWNER, None))
        fields[OWNER] = owner
    else:
        change = NewRecord(topic, event_payload(SessionEvent(conversation_id=session_id, status="updated", data=facts)))
        conditions += tuple(HeadIs(topic, name, head.get(name)) for name in (OWNER, ACTIVE_AGENT))
    return Append(
        records=(change, settings_record(session_id, after)), conditions=conditions, heads=(SetHead(topic, fields),)
    )


def changed_settings(before: RecordedSettings, after: RecordedSettings) -> tuple[str, ...]:
    """The names of the settings that differ: `scenario_id`, `overlay`, `desk.instructions`."""
    found = [name for name in ("scenario_id", "overlay") if before.get(name) != after.get(name)]
    old, new = before.get("agents") or {}, after.get("agents") or {}
    for agent in sorted({*old, *new}):
        said, says = old.get(agent) or {}, new.get(agent) or {}
        found += [f"{agent}.{name}" for name in ("instructions", "model") if said.get(name) != says.get(name)]
    return tuple(found)
