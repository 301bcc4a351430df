"""Schemas for what happens in a session: messages, events, steering, receipts and approvals."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import KEY_MAX_CHARS, ApiModel, RequestedId, example
from magent2.models.json_types import JsonObject
from magent2.models.run_options import OutputSchema

DECISION_REASON_MAX_CHARS = 2000

# What happens to a message to a conversation in which another one waits or is being answered
WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]

EVENT_EXAMPLE: JsonObject = {
    "session_id": "s-1", "seq": 2, "type": "message", "message_id": "m-1", "token_seq": None, "role": "user",
    "agent_id": None, "text": "weather in Oslo", "final": True, "reason": None, "data": {"sender": "user:local"},
    "timestamp_ms": 1790000000000,
}  # fmt: skip

TOOL_CALL_EXAMPLE: JsonObject = {
    "tool_call_id": "call-1", "name": "weather", "agent_id": "general", "args": {"city": "Oslo"}, "status": "success",
    "result": "In Oslo it is …", "error": None, "duration_ms": 1,
}  # fmt: skip

TRANSCRIPT_EXAMPLE: JsonObject = {
    "seq": 9, "message_id": "run-5f…/1", "role": "assistant", "agent_id": "general", "text": "In Oslo it is …",
    "reply_to": "msg-8c…", "timestamp_ms": 1790000000000, "compaction": None,
}  # fmt: skip

APPROVAL_EXAMPLE: JsonObject = {
    "session_id": "s-1", "call_id": "call-1", "tool": "refund", "args": {"order": "7"}, "agent_id": "support",
    "run_id": "run-5f…", "turn": 0, "status": "pending", "expires_at": "2026-01-02T03:04:05Z", "decided_by": None,
    "reason": None,
}  # fmt: skip


class SendResponse(ApiModel):
    """The message was accepted. Follow the conversation's stream after `seq` to see the reply."""

    status: Literal["ok"]
    topic: str
    envelope_id: str
    seq: int
    notice: str | None = Field(
        default=None, description="a warning for the sender, for example that no worker serves the agent; else absent"
    )


class MessageRequest(ApiModel):
    """Send a user message to a session."""

    model_config = example(session_id="s-1", user_input="weather in Oslo", client_message_id="m-1")

    session_id: RequestedId
    user_input: str = Field(description="may be empty if the message has attachments")
    attachments: list[str] = Field(
        default_factory=list, description="the ids of uploaded files, which the agent gets with the text"
    )
    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="idempotency key: the message is accepted once per key, and a repeat gets the same response",
    )
    wait: bool = Field(default=True, description="wait up to a minute for the reply; else respond with 202 at once")
    when_busy: WhenBusy = Field(
        default="queue",
        description="if another message waits or is being answered: wait for its end (`queue`), join its run"
        " (`steer`), stop its run first (`interrupt`), or refuse this message with 409 `busy` (`reject`)",
    )
    output_schema: OutputSchema | None = Field(
        default=None, description="the JSON schema that the answer matches, in place of the agent's own"
    )


class ApiEvent(ApiModel):
    """An event of a session."""

    model_config = example(**EVENT_EXAMPLE)

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
    data: JsonObject
    timestamp_ms: int


class ApiEventPage(ApiModel):
    """Events of a session, in order."""

    model_config = example(session_id="s-1", events=[EVENT_EXAMPLE], next_since=2, has_more=True)

    session_id: str
    events: list[ApiEvent]
    next_since: int
    has_more: bool


class RecordPage(ApiModel):
    """Events of a session as they were recorded, in order (`format=record`)."""

    model_config = example(
        conversation_id="s-1",
        events=[{"event": "token", "conversation_id": "s-1", "text": "it is ", "index": 2, "seq": 8}],
        next_since=8,
        has_more=False,
    )

    conversation_id: str
    events: list[JsonObject] = Field(description="each event as it was recorded, with its `seq`")
    next_since: int
    has_more: bool


class ToolCall(ApiModel):
    """A tool call of a run and its result."""

    model_config = example(**TOOL_CALL_EXAMPLE)

    tool_call_id: str | None
    name: str | None
    agent_id: str | None
    args: JsonObject
    status: str
    result: str | None
    error: str | None
    duration_ms: int | None


class MessageResponse(ApiModel):
    """The reply to a message. `message_id` is the reply's id; `reply_to` is the id of the message that it answers."""

    model_config = example(
        final_output="In Oslo it is …", message_id="run-5f…/1", reply_to="msg-8c…", session_id="s-1", seq=2,
        events=[EVENT_EXAMPLE], usage={"total_tokens": 42}, tool_calls=[TOOL_CALL_EXAMPLE],
    )  # fmt: skip

    final_output: str
    message_id: str | None
    reply_to: str
    session_id: str
    seq: int = Field(description="of the message that is answered")
    events: list[ApiEvent]
    usage: JsonObject | None = Field(description="tokens of the run that answered")
    tool_calls: list[ToolCall]


class AcceptedResponse(ApiModel):
    """The message was accepted and its run is not finished (202). Follow the session after `seq` to see the reply."""

    model_config = example(status="in_progress", session_id="s-1", message_id="msg-8c…", seq=2)

    status: Literal["accepted", "in_progress"]
    session_id: str
    message_id: str
    seq: int
    notice: str | None = Field(
        default=None, description="a warning for the sender, for example that no worker serves the agent; else absent"
    )


class CompactionInfo(ApiModel):
    """What a compaction covers: all runs up to `through_run`, or of that run the turns up to `through_turn`.

    `model` has made the summary. `tokens_…` are estimates of the size of the request.
    """

    reason: Literal["size", "runs", "refused"]
    model: str | None = None
    run_id: str | None = Field(default=None, description="the run before whose model call it was made")
    through_run: str
    through_turn: int | None = None
    tokens_before: int
    tokens_after: int


class TranscriptMessage(ApiModel):
    """A message of a transcript, or a compaction: its role is `system`, and its text the summary.

    The text of a compaction is empty if its summary could not be made.
    """

    model_config = example(**TRANSCRIPT_EXAMPLE)

    seq: int
    message_id: str | None
    role: str
    agent_id: str | None
    text: str
    reply_to: str | None
    timestamp_ms: int
    compaction: CompactionInfo | None = None


class Transcript(ApiModel):
    """The messages and compactions of a session, without tokens and tool steps."""

    model_config = example(session_id="s-1", messages=[TRANSCRIPT_EXAMPLE], next_since=9, has_more=False)

    session_id: str
    messages: list[TranscriptMessage]
    next_since: int
    has_more: bool


class SteerRequest(ApiModel):
    """Send a message to runs that are in progress."""

    model_config = example(text="in Celsius, please", client_message_id="s-1", require_active=True)

    text: str = Field(min_length=1)
    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="idempotency key: the message is accepted once per key",
    )
    target: str | None = Field(default=None, description="an agent; if omitted, every agent with a run in progress")
    require_active: bool = Field(default=False, description="refuse the message if no run is in progress")


class SteerResponse(ApiModel):
    """The message was accepted. `receipt_id` identifies its receipt; `seq` is its position in the session."""

    model_config = example(status="accepted", session_id="s-1", receipt_id="msg-8c…", seq=12)

    status: Literal["accepted"] = "accepted"
    session_id: str
    receipt_id: str
    seq: int
    notice: str | None = Field(default=None, description="why the message may have to wait")


class AgentReceipt(ApiModel):
    """The status of a message at one agent."""

    agent_id: str
    run_id: str
    turn: int | None = Field(
        description="the turn whose model request contained the message; null if a separate run answers it"
    )
    status: Literal["seen", "answered", "dead"]
    reason: str | None = None


class MessageReceipt(ApiModel):
    """The status of a message. `status` is that of the most advanced agent; `waiting` agents have not seen it yet."""

    model_config = example(
        session_id="s-1", receipt_id="msg-8c…", status="seen", waiting=0,
        receipts=[{"agent_id": "general", "run_id": "run-5f…", "turn": 2, "status": "seen", "reason": None}],
    )  # fmt: skip

    session_id: str
    receipt_id: str
    status: Literal["accepted", "seen", "answered", "dead"]
    waiting: int
    receipts: list[AgentReceipt]


class RetryRequest(ApiModel):
    """Answer a message again."""

    model_config = example(message_id="msg-8c…")

    message_id: str = Field(min_length=1, max_length=NAME_MAX_CHARS, description="of the message or of its reply")


class RegenerateRequest(ApiModel):
    """Answer the last message again."""

    model_config = example(client_message_id="r-1")

    client_message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=KEY_MAX_CHARS,
        description="idempotency key: the answer is replaced once per key, and a repeat gets the same response",
    )


class EditRequest(RegenerateRequest):
    """Replace the last message of a person by another text, and answer that."""

    model_config = example(message_id="msg-8c…", text="weather in Bergen", client_message_id="e-1")

    message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=NAME_MAX_CHARS,
        description="of the message that is replaced; another one than the last is refused",
    )
    text: str


class DecisionRequest(ApiModel):
    """Approve or reject a tool call."""

    model_config = example(decision="reject", reason="too dear")

    decision: Literal["approve", "reject"]
    reason: str | None = Field(
        default=None, max_length=DECISION_REASON_MAX_CHARS, description="of a rejection; the model receives it"
    )


class ApprovalInfo(ApiModel):
    """A tool call that needs approval, and the decision. `args` are the arguments as the model wrote them."""

    model_config = example(**APPROVAL_EXAMPLE)

    session_id: str
    call_id: str
    tool: str
    args: JsonObject
    agent_id: str
    run_id: str
    turn: int
    status: Literal["pending", "approved", "rejected", "expired"]
    expires_at: datetime
    decided_by: str | None
    reason: str | None


class ApprovalList(ApiModel):
    """The tool calls of a session that need or needed approval, oldest first."""

    model_config = example(session_id="s-1", approvals=[APPROVAL_EXAMPLE])

    session_id: str
    approvals: list[ApprovalInfo]


class PendingApprovalPage(ApiModel):
    """The tool calls of the caller's sessions that wait for approval, most recently active session first."""

    model_config = example(approvals=[APPROVAL_EXAMPLE], next=None)

    approvals: list[ApprovalInfo]
    next: str | None = Field(description="pass it as `before` to get the next page; null on the last page")
