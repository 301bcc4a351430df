"""Schemas for the team: agents, scenarios, tools and routing."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from magent2.models.api.base import KEY_MAX_CHARS, ApiModel, RequestedId, example
from magent2.models.api.messages import EVENT_EXAMPLE, ApiEvent
from magent2.models.json_types import JsonObject

AGENT_EXAMPLE: JsonObject = {
    "name": "general", "role": "Answers general questions.", "model": None, "voice": "alloy",
    "tools": ["weather"], "mcp": ["files"], "mcp_tools": {"files": None}, "handoffs": ["sales", "support"],
    "subagents": [], "scenarios": ["default"], "alive": True,
}  # fmt: skip

SCENARIO_EXAMPLE: JsonObject = {
    "id": "default", "title": "", "root": "general", "supervisor": "supervisor", "agents": ["supervisor", "general"],
}  # fmt: skip

TOOL_EXAMPLE: JsonObject = {
    "name": "weather", "kind": "custom", "description": "The weather in a city.",
    "params_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "agents": ["general"],
}  # fmt: skip

TOOL_STATUS_EXAMPLE: JsonObject = {
    "name": "FileSearchTool", "enabled": False, "available": False, "missing": ["FILE_SEARCH_VECTOR_STORES"],
    "reason": "not set up: FILE_SEARCH_VECTOR_STORES",
}  # fmt: skip


class RouteRequest(ApiModel):
    """Choose the agent that answers a message."""

    model_config = example(scenario_id="default", session_id="s-1", last_user_text="the printer is broken")

    scenario_id: str | None = Field(default=None, description="the session's scenario if omitted")
    session_id: RequestedId | None = None
    last_user_text: str | None = Field(default=None, description="the session's last message if omitted")


class RouteResponse(ApiModel):
    """The chosen agent and the reason.

    `by` names what decided. `fallback` says why the supervisor's decision was not used, if it was asked.
    """

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


class SwitchRequest(ApiModel):
    """Make an agent the active agent of a session."""

    model_config = example(session_id="s-1", agent_name="sales")

    session_id: RequestedId
    agent_name: str


class SwitchResponse(ApiModel):
    """The active agent of a session after a switch."""

    model_config = example(changed=True, active_agent_id="sales", seq=10)

    changed: bool
    active_agent_id: str
    seq: int = Field(description="of the handoff event; of the last event if nothing changed")


class TeamAgent(ApiModel):
    """An agent of the team."""

    model_config = example(**AGENT_EXAMPLE)

    name: str
    role: str
    model: str | None
    voice: str | None
    tools: list[str] = Field(description="all tools that the agent may use")
    mcp: list[str] = Field(description="MCP servers of which the agent may use all tools")
    mcp_tools: dict[str, list[str] | None] = Field(
        description="tools of MCP servers that the agent may use, by server; null: all that the server has"
    )
    handoffs: list[str]
    subagents: list[str] = Field(description="agents that it may start for a task")
    scenarios: list[str]
    output_schema: JsonObject | None = Field(default=None, description="the JSON schema that its answers match")
    alive: bool | None = Field(description="whether a worker serves it now; null if unknown")


class TeamAgentList(ApiModel):
    """All agents of the team."""

    model_config = example(agents=[AGENT_EXAMPLE])

    agents: list[TeamAgent]


class ScenarioInfo(ApiModel):
    """A scenario: its root agent, its supervisor and its agents."""

    model_config = example(**SCENARIO_EXAMPLE)

    id: str
    title: str
    root: str
    supervisor: str | None
    agents: list[str]


class ScenarioList(ApiModel):
    """All scenarios of the team."""

    model_config = example(scenarios=[SCENARIO_EXAMPLE], default="default")

    scenarios: list[ScenarioInfo]
    default: str


class ToolInfo(ApiModel):
    """A tool and the agents that may use it."""

    model_config = example(**TOOL_EXAMPLE)

    name: str
    kind: Literal["custom", "builtin", "mcp"]
    description: str | None
    params_schema: JsonObject | None = Field(description="null if only the worker or the model provider knows it")
    agents: list[str] = Field(description="agents that list this tool")


class ToolList(ApiModel):
    """All tools of the team."""

    model_config = example(tools=[TOOL_EXAMPLE])

    tools: list[ToolInfo]


class BuiltinToolStatus(ApiModel):
    """Whether a builtin tool can be used.

    `enabled` is the setting; `available` says whether the tool would work; `missing` lists settings that it needs.
    """

    model_config = example(**TOOL_STATUS_EXAMPLE)

    name: str
    enabled: bool
    available: bool
    missing: list[str]
    reason: str | None


class ToolsStatus(ApiModel):
    """Status of all builtin tools."""

    model_config = example(model_kind="openai", builtins=[TOOL_STATUS_EXAMPLE])

    model_kind: str = Field(description="the kind of model provider, which the status depends on")
    builtins: list[BuiltinToolStatus]


class ToolRunRequest(ApiModel):
    """Run a tool manually, without a model."""

    model_config = example(session_id="s-1", tool="weather", args={"city": "Oslo"}, client_message_id="call-1")

    session_id: RequestedId
    tool: str = Field(min_length=1, max_length=200)
    args: JsonObject = Field(default_factory=dict)
    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="idempotency key: the tool runs once per key, and a repeat gets the same result",
    )


class ToolRunResponse(ApiModel):
    """The result of a tool that was run manually."""

    model_config = example(
        session_id="s-1", tool="weather", agent_id="general", status="success", result="…", error=None,
        message_id="msg-8c…", duration_ms=1, events=[EVENT_EXAMPLE],
    )  # fmt: skip

    session_id: str
    tool: str
    agent_id: str
    status: Literal["success", "error"]
    result: str
    error: str | None
    message_id: str
    duration_ms: int | None
    events: list[ApiEvent]
