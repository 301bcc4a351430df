"""Schemas for sessions. The API says session, the concept is a conversation; both words name the same thing."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import ApiModel, RequestedId, example
from magent2.models.json_types import JsonObject

TITLE_MAX_CHARS = 200
MODEL_MAX_CHARS = 200
OVERLAY_MAX_CHARS = 64 << 10

SUMMARY_EXAMPLE: JsonObject = {
    "session_id": "s-1", "title": "Oslo", "last_text": "and in Bergen?", "active_agent_id": "general",
    "scenario_id": "default", "run_status": "finished", "approvals": 0, "client_calls": 0, "last_seq": 9,
    "last_active_ms": 1790000000000, "owner": "user:local",
}  # fmt: skip

CONVERSATION_EXAMPLE: JsonObject = {
    "conversation_id": "s-1", "last_seq": 9, "active_agent": "general", "title": "Oslo", "run_status": "finished",
    "last_active_at": "2026-11-16T12:00:00Z", "usage": None, "last_run_usage": {"total_tokens": 42},
}  # fmt: skip


class Conversation(ApiModel):
    """A session as it is stored, with its last run (`format=record`)."""

    model_config = example(**CONVERSATION_EXAMPLE)

    conversation_id: str
    last_seq: int
    active_agent: str | None
    title: str | None
    run_status: str | None
    last_active_at: datetime
    usage: JsonObject | None = Field(description="tokens of all runs that finished; null in a list")
    last_run_usage: JsonObject | None = Field(default=None, description="tokens of the last run that finished")


class ConversationPage(ApiModel):
    """Sessions as they are stored, most recently active first (`format=record`)."""

    model_config = example(conversations=[CONVERSATION_EXAMPLE], next=None)

    conversations: list[Conversation]
    next: str | None = Field(description="pass it as `before` to get the next page; null on the last page")


class StopResponse(ApiModel):
    """The stop was sent to the agent (`format=record`)."""

    model_config = example(status="accepted", agent="general", envelope_id="0f4c…", seq=1)

    status: Literal["accepted"] = "accepted"
    agent: str
    envelope_id: str
    seq: int


class SessionRequest(ApiModel):
    """Create a session with these settings, or change them.

    Omitted fields keep their value. An empty text clears one.
    """

    model_config = example(agent_name="general", instructions="Answer in one sentence.", scenario_id="default")

    session_id: RequestedId | None = Field(default=None, max_length=NAME_MAX_CHARS, description="generated if omitted")
    agent_name: str | None = Field(default=None, description="the active agent; the scenario's root agent if omitted")
    instructions: str | None = Field(
        default=None, max_length=OVERLAY_MAX_CHARS, description="replaces the agent's own instructions in this session"
    )
    model: str | None = Field(default=None, max_length=MODEL_MAX_CHARS)
    scenario_id: str | None = None
    overlay: str | None = Field(
        default=None,
        max_length=OVERLAY_MAX_CHARS,
        description="appended to the instructions of every agent in this session",
    )


class SessionSettings(ApiModel):
    """The settings of a session."""

    model_config = example(
        session_id="s-1",
        agent_name="general",
        model=None,
        tools=["WebSearchTool", "echo_context", "weather"],
        overlay=None,
    )

    session_id: str
    agent_name: str
    model: str | None
    tools: list[str]
    overlay: str | None


class LastRun(ApiModel):
    """The last run of a session."""

    model_config = example(status="finished", agent_id="general", message_id="msg-8c…")

    status: str
    agent_id: str | None
    message_id: str | None = Field(description="of the message that the run answers")


class SessionInfo(ApiModel):
    """The current state of a session."""

    model_config = example(
        session_id="s-1", active_agent_id="general", scenario_id="default", title="Oslo", state="idle", last_seq=9,
        last_run={"status": "finished", "agent_id": "general", "message_id": "msg-8c…"}, last_active_ms=1790000000000,
        owner="user:local", overlay=None, usage={"total_tokens": 42},
    )  # fmt: skip

    session_id: str
    active_agent_id: str | None
    scenario_id: str | None
    title: str | None
    state: Literal["idle", "running"]
    last_seq: int
    last_run: LastRun | None
    last_active_ms: int
    owner: str | None
    overlay: str | None = None
    usage: JsonObject | None = Field(default=None, description="tokens of all runs that finished")


SessionState = Literal["waiting", "running", "failed"]


class SessionSummary(ApiModel):
    """A session as an entry of a list."""

    model_config = example(**SUMMARY_EXAMPLE)

    session_id: str
    title: str | None = Field(description="the title that was set; else the first message")
    last_text: str | None = Field(description="the last message, truncated")
    active_agent_id: str | None
    scenario_id: str | None
    run_status: str | None
    approvals: int = Field(description="number of tool calls of the last run that wait for approval")
    client_calls: int = Field(
        default=0, description="number of calls of the last run that wait for an output of the client's tools"
    )
    budget: str | None = Field(default=None, description="kind of the budget that the last run waits for")
    last_seq: int
    last_active_ms: int
    owner: str | None


class SessionList(ApiModel):
    """Sessions, most recently active first."""

    model_config = example(sessions=[SUMMARY_EXAMPLE], next=None)

    sessions: list[SessionSummary]
    next: str | None = Field(description="pass it as `before` to get the next page; null on the last page")


class SessionCounts(ApiModel):
    """How many sessions wait for an approval, are running, or have failed, by their last run."""

    model_config = example(waiting=1, running=2, failed=0, complete=True)

    waiting: int
    running: int
    failed: int
    complete: bool = Field(description="false if only the most recently active 5000 sessions were counted")


class SessionUsage(ApiModel):
    """Token usage of a session, in total and by agent."""

    model_config = example(
        session_id="s-1", usage={"total_tokens": 42}, runs=2, by_agent={"general": {"total_tokens": 42}}
    )

    session_id: str
    usage: JsonObject = Field(description="tokens of all runs that finished")
    runs: int
    by_agent: dict[str, JsonObject]


class TitleRequest(ApiModel):
    """Set the title of a session."""

    model_config = example(title="A trip to Oslo")

    title: str = Field(max_length=TITLE_MAX_CHARS, description="an empty text removes the title")


class StopRequest(ApiModel):
    """Stop the run of a session, at once or after the current turn."""

    model_config = example(mode="now")

    mode: Literal["now", "after_turn"] = "now"
    agent: str | None = Field(default=None, description="the agent to stop; the agent that runs if omitted")
    sender: str | None = Field(default=None, description="for administrators: send the command as this sender")


class SessionStopResponse(ApiModel):
    """The stop was sent to the agent."""

    model_config = example(status="accepted", session_id="s-1", agent_id="general", mode="now", receipt_id="0f4c…")

    status: Literal["accepted"] = "accepted"
    session_id: str
    agent_id: str
    mode: str
    receipt_id: str = Field(description="the id of this stop in the `message_received` event")
