"""Events of contract v1.1, in addition to the three of v1. Each has a schema in `docs/schemas/`.

Events of v1 keep their fields. `RunFields` are added to their JSON as optional fields, which a v1 reader ignores.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from magent2.models.budgets import BudgetKind
from magent2.models.envelope import BaseStreamEvent
from magent2.models.files import FileAttachment
from magent2.models.json_types import JsonObject


class RunFields(BaseModel):
    """The run that an event belongs to.

    `message_id` is shared by the tokens of a turn and the text that contains them. `reply_to` is the message that a
    text answers. `run_kind` marks runs that are not part of the dialogue: `tool` for a tool that was run manually,
    `route` for a routing decision.
    """

    run_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    turn: int | None = None
    message_id: str | None = None
    reply_to: str | None = None
    run_kind: str | None = None


class UserMessageEvent(BaseStreamEvent):
    """The conversation received a message."""

    event: Literal["user_message"] = "user_message"
    message_id: str
    sender: str
    recipient: str
    text: str | None = None
    client_message_id: str | None = None
    steer: bool | None = None  # it was sent to a run in progress
    attachments: list[FileAttachment] | None = None


class SessionEvent(BaseStreamEvent):
    """The conversation was created, changed or deleted."""

    event: Literal["session"] = "session"
    status: Literal["created", "updated", "deleted"]
    data: JsonObject = Field(default_factory=dict)


class RunEvent(BaseStreamEvent, RunFields):
    """A run started, ended, or restarted after its worker was lost."""

    event: Literal["run"] = "run"
    status: Literal["started", "finished", "failed", "stopped", "restarted"]
    envelope_id: str
    reason: str | None = None
    history_left_out: int | None = None  # number of oldest runs that were not in the model's input


class MessageEvent(BaseStreamEvent, RunFields):
    """Text of a turn that also called tools, or a message that an agent sent during its run."""

    event: Literal["message"] = "message"
    text: str
    attachments: list[JsonObject] = Field(default_factory=list)


class ReceivedMessage(BaseModel):
    """A steer or stop that was handled. `id` identifies it everywhere; `seq` is its position in its inbox.

    The `outcome` of a steer is `seen` (it was in the model's input of this turn) or `input` (a separate run answers
    it). The `outcome` of a stop is `stopped`, `too_late` (the run had already ended), `not_meant` (it was for another
    run) or `nothing_to_stop`.
    """

    id: str
    source: str
    seq: int
    outcome: Literal["seen", "input", "stopped", "too_late", "not_meant", "nothing_to_stop"]
    text: str | None = None
    command: str | None = None

    def render(self) -> str:
        """Return the text, as a message inside a run does."""
        return self.text or ""


class ReceiptEvent(BaseStreamEvent, RunFields):
    """The receipt of steers and stops. Each is in exactly one receipt for each agent that it was sent to.

    A run without a log emits `magent2.events.MessageReceivedEvent` instead.
    """

    event: Literal["message_received"] = "message_received"
    messages: list[ReceivedMessage]


class HandoffEvent(BaseStreamEvent, RunFields):
    """Another agent takes over."""

    event: Literal["handoff"] = "handoff"
    source: str | None = None
    target: str
    reason: str | None = None


class BlockEvent(BaseStreamEvent, RunFields):
    """A Python block ended: its code, its output, and the outcome of the messages that it held.

    `held` counts the messages that waited for the end of the block, `sent` and `failed` their outcomes. `failures` has
    a line for each failed message. A block that did not succeed sent none of them; `reason` is the kind of its failure.
    """

    event: Literal["block"] = "block"
    code: str
    output: str
    status: Literal["success", "error"]
    reason: str | None = None
    held: int = 0
    sent: int = 0
    failed: int = 0
    failures: list[str] = Field(default_factory=list)
    duration_ms: int | None = None
    tool_call_id: str | None = None


class ApprovalEvent(BaseStreamEvent, RunFields):
    """A tool call waits for approval until `expires_at`, or was decided on.

    Long `args` are truncated. The approvals of the conversation have them in full.
    """

    event: Literal["approval"] = "approval"
    status: Literal["requested", "approved", "rejected", "expired"]
    tool_call_id: str
    name: str
    args: JsonObject = Field(default_factory=dict)
    expires_at: AwareDatetime
    decided_by: str | None = None
    reason: str | None = None


class ClientCallEvent(BaseStreamEvent, RunFields):
    """A tool of the client was called. The run waits for the output until `expires_at`, or ends if that is not set.

    The calls of one turn have an event each, `index` of `count`. `usage` is that of the run so far.
    """

    event: Literal["client_call"] = "client_call"
    status: Literal["requested", "answered", "expired"]
    envelope_id: str
    tool_call_id: str
    name: str
    arguments: str
    index: int = 0
    count: int = 1
    expires_at: AwareDatetime | None = None
    usage: JsonObject | None = None


class SubagentEvent(BaseStreamEvent, RunFields):
    """A run started another agent for a task. `subagent_id` is the conversation of that agent."""

    event: Literal["subagent"] = "subagent"
    subagent_id: str
    name: str  # of the agent
    task: str
    envelope_id: str


class SentByRun(BaseModel):
    """A message that a run has sent: its id, and the tool that sent it."""

    id: str
    tool: str


class SupersededEvent(BaseStreamEvent, RunFields):
    """The answer of a run was replaced: the message `replaced_by` is answered instead. Views leave the run out.

    `envelope_id` is the message that the run answered, `messages` that one and the steers that the run has seen; they
    are left out too. `sends` are the messages that it has sent: they stay.
    """

    event: Literal["superseded"] = "superseded"
    envelope_id: str
    replaced_by: str
    messages: list[str]
    sends: list[SentByRun] = Field(default_factory=list)


class CompactedEvent(BaseStreamEvent, RunFields):
    """The model gets a summary in place of the oldest part of the conversation, from this turn on and in later runs.

    The summary covers everything up to the run `through_run`, or up to its turn `through_turn`. It is not set if it
    could not be made: then the model gets a note that the part is missing. The messages stay on the log. `tokens_…` are
    estimates of the size of the request. `reason`: the request was over the limit of tokens (`size`) or of runs
    (`runs`), or the model had refused it (`refused`).
    """

    event: Literal["compacted"] = "compacted"
    reason: Literal["size", "runs", "refused"]
    summary: str | None = None
    model: str | None = None
    tokens_before: int
    tokens_after: int
    through_run: str
    through_turn: int | None = None


class McpServerEvent(BaseStreamEvent, RunFields):
    """An MCP server cannot be used, so the agent continues without its tools. `reason` says why."""

    event: Literal["mcp_server"] = "mcp_server"
    server: str
    status: Literal["unavailable"] = "unavailable"
    reason: str


class BudgetUse(BaseModel):
    """How much of a budget is used. `name` is the run, conversation or user that it is for; money is in US dollars."""

    budget: BudgetKind
    name: str = ""
    tokens: int
    tokens_limit: int | None = None
    calls: int
    calls_limit: int | None = None
    cost_usd: float
    cost_usd_limit: float | None = None


class BudgetEvent(BaseStreamEvent, RunFields):
    """Most of a budget is used (`warning`), or all of it (`reached`): then the run is paused.

    It goes on when the budget is raised, or by itself at `resumes_at` if that is set: a new day begins. It does not
    expire. `subagent_id` is the conversation of the subagent whose run is paused, if it is one.
    """

    event: Literal["budget"] = "budget"
    status: Literal["warning", "reached"]
    budgets: list[BudgetUse]
    message: str
    resumes_at: AwareDatetime | None = None
    subagent_id: str | None = None


class ErrorEvent(BaseStreamEvent, RunFields):
    """An attempt failed. It is retried in `retry_in_s` seconds, or not at all if that is not set."""

    event: Literal["error"] = "error"
    code: str
    message: str
    retry_in_s: float | None = None


class GapEvent(BaseStreamEvent):
    """The log does not have the record at the reader's cursor: removed by retention, or lost by a Redis server.

    The next event comes after `floor`.
    """

    event: Literal["gap"] = "gap"
    cursor: str
    floor: int


class EndEvent(BaseStreamEvent):
    """The stream ended. `reason` says why."""

    event: Literal["end"] = "end"
    reason: Literal["deleted", "revoked", "drain", "max_events"]
