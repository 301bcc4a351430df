"""The specification of a team run: its agents as one value. Pure.

It is pinned when the run starts and is the same for every attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from magent2.bus.records import canonical
from magent2.mail.headers import MESSAGE_RUN
from magent2.models.files import ContentKind
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.roster.spec import AgentSpec, Api, ContextValues, ModelSettingsValues, Roster, Scenario
from magent2.runner.providers.catalogue import OwnServer, check_choice
from magent2.sessions.history import AgentSettings, RecordedSettings


@dataclass(frozen=True, slots=True)
class TeamMember:
    """An agent of a run: its entry in the roster, changed by the settings of the session."""

    name: str
    role: str = ""
    instructions: str = ""
    model: str | None = None
    fallbacks: tuple[str, ...] = ()  # models to ask if `model` is down or refuses, in this order
    model_settings: ModelSettingsValues = field(default_factory=ModelSettingsValues)
    base_url: str | None = None
    api_key_env: str | None = None
    api: Api | None = None
    model_timeout_s: float | None = None
    input_guardrails: tuple[str, ...] = ()
    output_guardrails: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()
    approval: tuple[str, ...] = ()  # the tools that need approval
    accepts: tuple[ContentKind, ...] = ()  # the content that its model takes; by default that of its kind
    context_max: int | None = None  # tokens of a request above which it is compacted; by default by its model
    summary_model: str | None = None  # makes summaries; by default its own model does
    output_schema: JsonObject | None = None
    agent: str | None = None  # the import path of an SDK agent, whose code has its instructions and tools

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models in order; empty for the SDK's default."""
        return () if self.model is None else (self.model, *self.fallbacks)

    @property
    def own_server(self) -> OwnServer:
        return OwnServer(self.base_url, self.api_key_env, self.api, self.model_timeout_s)

    def payload(self) -> JsonObject:
        """The fields as JSON, without the name and without empty ones."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if (value or key == "output_schema") and value is not None and key != "name"
        }

    @classmethod
    def from_payload(cls, name: str, payload: JsonMapping) -> TeamMember:
        """Read what `payload` wrote. Fields that another release wrote and this one does not know are ignored."""
        known = {item.name for item in fields(cls)} - {"name"}
        values: JsonObject = {
            key: tuple(value) if isinstance(value, list) else value for key, value in payload.items() if key in known
        }
        return cls(name, **values)


@dataclass(frozen=True, slots=True)
class TeamSpec:
    """The agents that a run can reach, by name, and the instructions that all of them get (`overlay`)."""

    scenario_id: str
    members: Mapping[str, TeamMember]
    overlay: str = ""
    kind: str = MESSAGE_RUN

    def payload(self) -> JsonObject:
        """The specification as JSON, without fields that have their default value."""
        payload: JsonObject = {
            "scenario_id": self.scenario_id,
            "agents": {name: member.payload() for name, member in self.members.items()},
        }
        if self.overlay:
            payload["overlay"] = self.overlay
        if self.kind != MESSAGE_RUN:
            payload["kind"] = self.kind
        return payload

    @classmethod
    def from_payload(cls, payload: JsonMapping) -> TeamSpec:
        members = {name: TeamMember.from_payload(name, member) for name, member in payload["agents"].items()}
        return cls(payload["scenario_id"], members, payload.get("overlay", ""), payload.get("kind", MESSAGE_RUN))

    def instructions_of(self, name: str) -> str | None:
        """The agent's own instructions, then the overlay as a separate paragraph."""
        parts = (self.members[name].instructions, self.overlay)
        return "\n\n".join(text for part in parts if (text := part.strip())) or None

    @property
    def digest(self) -> str:
        return hashlib.blake2b(canonical(self.payload()).encode(), digest_size=16).hexdigest()


def resolve(
    roster: Roster,
    agent: str,
    settings: RecordedSettings,
    *,
    kind: str = MESSAGE_RUN,
    model: str | None = None,
    context: ContextValues | None = None,
) -> TeamSpec:
    """The specification of a run of this agent that starts now. `model` and `context` are for agents that name none.

    The settings of the session apply to the agents of its scenario. They do not apply to an agent of another scenario.
    """
    scenario = scenario_of(roster, agent, settings.get("scenario_id"))
    own = settings if settings.get("scenario_id") in (None, scenario.id) else RecordedSettings()
    names = reachable(scenario, agent) if kind == MESSAGE_RUN else (agent,)
    changes = own.get("agents") or {}
    for name in names:
        if chosen := (changes.get(name) or {}).get("model"):
            check_choice(roster, chosen)
    usual: ContextValues = {**roster.context, **(context or ContextValues())}
    members = {name: _member(scenario.agents[name], changes.get(name) or {}, model, usual) for name in names}
    return TeamSpec(scenario.id, members, own.get("overlay") or "", kind)


def _member(agent: AgentSpec, changes: AgentSettings, model: str | None, context: ContextValues) -> TeamMember:
    chosen = changes.get("model")
    models = (chosen,) if chosen else agent.model_names or (model,)
    return TeamMember(
        agent.name,
        role=agent.role,
        instructions=changes.get("instructions") or agent.instructions,
        model=models[0],
        fallbacks=agent.model_names[1:] if not chosen else (),
        model_settings=agent.model_settings,
        base_url=agent.base_url,
        api_key_env=agent.api_key_env,
        api=agent.api,
        model_timeout_s=agent.model_timeout_s,
        input_guardrails=agent.input_guardrails,
        output_guardrails=agent.output_guardrails,
        tools=agent.tools if agent.agent is None else (),
        handoffs=agent.handoffs,
        mcp=agent.mcp,
        approval=agent.approval,
        subagents=agent.subagents,
        accepts=agent.accepts or (),
        output_schema=agent.output_schema if isinstance(agent.output_schema, dict) else None,
        context_max=agent.context_max or context.get("context_max"),
        summary_model=agent.summary_model or context.get("summary_model"),
        agent=agent.agent,
    )


def scenario_of(roster: Roster, agent: str, wanted: str | None) -> Scenario:
    """The wanted scenario if it has the agent; else the default one, else the first one that has the agent."""
    preferred = [
        roster.scenarios[key] for key in (wanted, roster.default) if key is not None and key in roster.scenarios
    ]
    for scenario in (*preferred, *roster.scenarios.values()):
        if agent in scenario.agents:
            return scenario
    roster.agent(None, agent)  # raises an error that names the known agents
    raise AssertionError("the loop above finds every agent that the roster has")


def reachable(scenario: Scenario, start: str) -> tuple[str, ...]:
    """The agent and all agents that it can hand the conversation off to, directly or indirectly."""
    found: dict[str, None] = {}
    waiting: list[str] = [start]
    while waiting:
        name = waiting.pop(0)
        if name not in found and name in scenario.agents:
            found[name] = None
            waiting.extend(scenario.agents[name].handoffs)
    return tuple(found)
