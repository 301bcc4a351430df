"""The shapes of `/api` that are about the team: agents, tools and routing."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from magent2.gateway.routes.api.shapes import EVENT, KEY_MAX_CHARS, Event
from magent2.gateway.schemas import example


class RouteRequest(BaseModel):
    model_config = example(scenario_id="default", session_id="s-1", last_user_text="the printer is broken")

    scenario_id: str | None = Field(default=None, description="the session's when left out")
    session_id: str | None = None
    last_user_text: str | None = Field(default=None, description="the session's last message when left out")


class Routed(BaseModel):
    """Who answers, and why. `by` is who decided; `fallback`, why the supervisor did not, when it was asked."""

    model_config = example(
        chosen_root="support", reason="support: broken", changed=True, by="keywords", fallback=None,
        scores={"general": 0, "sales": 0, "support": 3}, evidence={"support": ["broken"]},
    )  # fmt: skip

    chosen_root: str
    reason: str
    changed: bool
    by: str
    fallback: str | None
    scores: dict[str, float]
    evidence: dict[str, list[str]]


class SwitchRequest(BaseModel):
    model_config = example(session_id="s-1", agent_name="sales")

    session_id: str
    agent_name: str


class Switched(BaseModel):
    model_config = example(changed=True, active_agent_id="sales", seq=10)

    changed: bool
    active_agent_id: str
    seq: int = Field(description="of the handoff; of the last event when nothing changed")


AGENT: dict[str, Any] = {
    "name": "general", "role": "Answers what nobody else is for.", "model": None, "voice": "alloy",
    "tools": ["weather"], "mcp": [], "handoffs": ["sales", "support"], "scenarios": ["default"], "alive": True,
}  # fmt: skip


class AgentShown(BaseModel):
    model_config = example(**AGENT)

    name: str
    role: str
    model: str | None
    voice: str | None
    tools: list[str] = Field(description="the tools that it may use, and no others")
    mcp: list[str]
    handoffs: list[str]
    scenarios: list[str]
    alive: bool | None = Field(description="whether a worker serves it now; null when that is not known")


class AgentsShown(BaseModel):
    model_config = example(agents=[AGENT])

    agents: list[AgentShown]


SCENARIO: dict[str, Any] = {
    "id": "default", "title": "", "root": "general", "supervisor": "supervisor", "agents": ["supervisor", "general"],
}  # fmt: skip


class ScenarioShown(BaseModel):
    model_config = example(**SCENARIO)

    id: str
    title: str
    root: str
    supervisor: str | None
    agents: list[str]


class ScenariosShown(BaseModel):
    model_config = example(scenarios=[SCENARIO], default="default")

    scenarios: list[ScenarioShown]
    default: str


TOOL: dict[str, Any] = {
    "name": "weather", "kind": "custom", "description": "The weather in a city.",
    "params_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "agents": ["general"],
}  # fmt: skip


class ToolShown(BaseModel):
    model_config = example(**TOOL)

    name: str
    kind: Literal["custom", "builtin", "mcp"]
    description: str | None
    params_schema: dict[str, Any] | None = Field(description="null where only a worker or a provider knows it")
    agents: list[str] = Field(description="whose lists name it")


class ToolsShown(BaseModel):
    model_config = example(tools=[TOOL])

    tools: list[ToolShown]


STATUS: dict[str, Any] = {
    "name": "FileSearchTool", "enabled": False, "available": False, "missing": ["FILE_SEARCH_VECTOR_STORES"],
    "reason": "not set up: FILE_SEARCH_VECTOR_STORES",
}  # fmt: skip


class BuiltinStatus(BaseModel):
    """`enabled` is what the settings say; `available`, whether it would work; `missing`, which settings it wants."""

    model_config = example(**STATUS)

    name: str
    enabled: bool
    available: bool
    missing: list[str]
    reason: str | None


class ToolsStatus(BaseModel):
    model_config = example(model_kind="openai", builtins=[STATUS])

    model_kind: str = Field(description="what the models are reached by, on which the status depends")
    builtins: list[BuiltinStatus]


class ToolRequest(BaseModel):
    model_config = example(session_id="s-1", tool="weather", args={"city": "Oslo"}, client_message_id="call-1")

    session_id: str
    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="the tool is run once per key; a repeat gets the same result",
    )


class ToolDone(BaseModel):
    model_config = example(
        session_id="s-1", tool="weather", agent_id="general", status="success", result="…", error=None,
        message_id="msg-8c…", duration_ms=1, events=[EVENT],
    )  # fmt: skip

    session_id: str
    tool: str
    agent_id: str
    status: Literal["success", "error"]
    result: str
    error: str | None
    message_id: str
    duration_ms: int | None
    events: list[Event]
