"""The shapes of `/api`, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from magent2.gateway.schemas import example
from magent2.models.address import NAME_MAX_CHARS

TITLE_MAX_CHARS = 200
MODEL_MAX_CHARS = 200
KEY_MAX_CHARS = 200
OVERLAY_MAX_CHARS = 64 << 10


class SessionRequest(BaseModel):
    """How a session is to be held. What is left out stays as it is; an empty text takes back what was said before."""

    model_config = example(agent_name="general", instructions="Answer in one sentence.", scenario_id="default")

    session_id: str | None = Field(default=None, max_length=NAME_MAX_CHARS, description="one is made when left out")
    agent_name: str | None = Field(default=None, description="who has the session; the scenario's root when left out")
    instructions: str | None = Field(
        default=None, max_length=OVERLAY_MAX_CHARS, description="in place of the agent's own, in this session"
    )
    model: str | None = Field(default=None, max_length=MODEL_MAX_CHARS)
    scenario_id: str | None = None
    overlay: str | None = Field(
        default=None, max_length=OVERLAY_MAX_CHARS, description="said to every agent of the session, after its own"
    )


class SessionMade(BaseModel):
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


class MessageRequest(BaseModel):
    model_config = example(session_id="s-1", user_input="weather in Oslo", client_message_id="m-1")

    session_id: str
    user_input: str
    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="the message happens once per key; a repeat gets the same answer",
    )
    wait: bool = Field(default=True, description="for the answer, at most a minute; else 202 at once")


EVENT: dict[str, Any] = {
    "session_id": "s-1", "seq": 2, "type": "message", "message_id": "m-1", "token_seq": None, "role": "user",
    "agent_id": None, "text": "weather in Oslo", "final": True, "reason": None, "data": {"sender": "user:local"},
    "timestamp_ms": 1790000000000,
}  # fmt: skip


class Event(BaseModel):
    """One record of a session."""

    model_config = example(**EVENT)

    session_id: str
    seq: int
    type: str
    message_id: str | None
    token_seq: int | None
    role: str | None
    agent_id: str | None
    text: str | None
    final: bool | None
    reason: str | None
    data: dict[str, Any]
    timestamp_ms: int


CALL: dict[str, Any] = {
    "tool_call_id": "call-1", "name": "weather", "agent_id": "general", "args": {"city": "Oslo"}, "status": "success",
    "result": "In Oslo it is …", "error": None, "duration_ms": 1,
}  # fmt: skip


class ToolCall(BaseModel):
    model_config = example(**CALL)

    tool_call_id: str | None
    name: str | None
    agent_id: str | None
    args: dict[str, Any]
    status: str
    result: str | None
    error: str | None
    duration_ms: int | None


class Answer(BaseModel):
    """What came of a message. `message_id` is the answer's; the question's is `reply_to`."""

    model_config = example(
        final_output="In Oslo it is …", message_id="run-5f…/1", reply_to="msg-8c…", session_id="s-1", seq=2,
        events=[EVENT], usage={"total_tokens": 42}, tool_calls=[CALL],
    )  # fmt: skip

    final_output: str
    message_id: str | None
    reply_to: str
    session_id: str
    seq: int = Field(description="of the question")
    events: list[Event]
    usage: dict[str, Any] | None
    tool_calls: list[ToolCall]


class Accepted(BaseModel):
    """The run goes on: follow the session after `seq`. `message_id` is the question's."""

    model_config = example(status="in_progress", session_id="s-1", message_id="msg-8c…", seq=2)

    status: Literal["accepted", "in_progress"]
    session_id: str
    message_id: str
    seq: int
    notice: str | None = Field(default=None, description="present only when the sender should know something")


class Events(BaseModel):
    model_config = example(session_id="s-1", events=[EVENT], next_since=2, has_more=True)

    session_id: str
    events: list[Event]
    next_since: int
    has_more: bool


class LastRun(BaseModel):
    model_config = example(status="finished", agent_id="general", message_id="msg-8c…")

    status: str
    agent_id: str | None
    message_id: str | None = Field(description="of the message that it answers")


class SessionShown(BaseModel):
    """A session as it stands."""

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
    usage: dict[str, Any] | None = None


ITEM: dict[str, Any] = {
    "session_id": "s-1", "title": "Oslo", "last_text": "and in Bergen?", "active_agent_id": "general",
    "scenario_id": "default", "run_status": "finished", "approvals": 0, "last_seq": 9,
    "last_active_ms": 1790000000000, "owner": "user:local",
}  # fmt: skip


class SessionItem(BaseModel):
    """A session as a list shows it."""

    model_config = example(**ITEM)

    session_id: str
    title: str | None = Field(description="as it was given; else the first message")
    last_text: str | None = Field(description="the last message, cut short")
    active_agent_id: str | None
    scenario_id: str | None
    run_status: str | None
    approvals: int = Field(description="how many calls of its last run wait for a person")
    last_seq: int
    last_active_ms: int
    owner: str | None


class SessionList(BaseModel):
    model_config = example(sessions=[ITEM], next=None)

    sessions: list[SessionItem]
    next: str | None = Field(description="give it back as `before` to go on")


LINE: dict[str, Any] = {
    "seq": 9, "message_id": "run-5f…/1", "role": "assistant", "agent_id": "general", "text": "In Oslo it is …",
    "reply_to": "msg-8c…", "timestamp_ms": 1790000000000,
}  # fmt: skip


class TranscriptMessage(BaseModel):
    model_config = example(**LINE)

    seq: int
    message_id: str | None
    role: str
    agent_id: str | None
    text: str
    reply_to: str | None
    timestamp_ms: int


class Transcript(BaseModel):
    model_config = example(session_id="s-1", messages=[LINE], next_since=9, has_more=False)

    session_id: str
    messages: list[TranscriptMessage]
    next_since: int
    has_more: bool


class Usage(BaseModel):
    """What the models of a session have used, in all and by agent."""

    model_config = example(
        session_id="s-1", usage={"total_tokens": 42}, runs=2, by_agent={"general": {"total_tokens": 42}}
    )

    session_id: str
    usage: dict[str, Any]
    runs: int
    by_agent: dict[str, dict[str, Any]]


class TitleRequest(BaseModel):
    model_config = example(title="A trip to Oslo")

    title: str = Field(max_length=TITLE_MAX_CHARS, description="an empty one takes it back")


class SessionStopRequest(BaseModel):
    model_config = example(mode="now")

    mode: Literal["now", "after_turn"] = "now"


class SessionStopping(BaseModel):
    model_config = example(status="accepted", session_id="s-1", agent_id="general", mode="now", receipt_id="0f4c…")

    status: Literal["accepted"] = "accepted"
    session_id: str
    agent_id: str
    mode: str
    receipt_id: str = Field(description="the id by which the `message_received` event names this stop")


class SteerRequest(BaseModel):
    model_config = example(text="in Celsius, please", client_message_id="s-1", require_active=True)

    text: str = Field(min_length=1)
    client_message_id: str | None = Field(
        default=None, min_length=1, max_length=KEY_MAX_CHARS, description="it is said once per key"
    )
    target: str | None = Field(default=None, description="an agent; else every one that has a run under way")
    require_active: bool = Field(default=False, description="refuse it when no run is under way")


class Steered(BaseModel):
    """Accepted. `seq` is that of the message in the session; `receipt_id` is how to ask what became of it."""

    model_config = example(status="accepted", session_id="s-1", receipt_id="msg-8c…", seq=12)

    status: Literal["accepted"] = "accepted"
    session_id: str
    receipt_id: str
    seq: int
    notice: str | None = Field(default=None, description="why it may have to wait")


class AgentReceipt(BaseModel):
    agent_id: str
    run_id: str
    turn: int | None = Field(description="of the answer that has seen it; none when a run of its own answers it")
    status: Literal["seen", "answered", "dead"]
    reason: str | None = None


class ReceiptShown(BaseModel):
    """What became of a message. `status` is that of the agent that is furthest; `waiting` have not seen it yet."""

    model_config = example(
        session_id="s-1", receipt_id="msg-8c…", status="seen", waiting=0,
        receipts=[{"agent_id": "general", "run_id": "run-5f…", "turn": 2, "status": "seen", "reason": None}],
    )  # fmt: skip

    session_id: str
    receipt_id: str
    status: Literal["accepted", "seen", "answered", "dead"]
    waiting: int
    receipts: list[AgentReceipt]


class RetryRequest(BaseModel):
    model_config = example(message_id="msg-8c…")

    message_id: str = Field(min_length=1, max_length=NAME_MAX_CHARS, description="of the message, or of its answer")
