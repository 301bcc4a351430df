"""Events of contract v1.1, beside the three of v1. Every one has a schema in `docs/schemas/`.

Events of v1 keep their shape. What v1.1 knows of a run besides (`RunFields`) is added to their JSON as optional fields,
which a v1 reader passes over.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, Field

from magent2.models.envelope import BaseStreamEvent


class RunFields(BaseModel):
    """Where an event belongs. `message_id` joins the tokens of a turn to the text that will contain them.

    `reply_to` is the message that a text answers. `run_kind` is said of runs that are no part of the talk: `tool`, one
    that somebody ran by hand; `route`, a decision who answers.
    """

    run_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    turn: int | None = None
    message_id: str | None = None
    reply_to: str | None = None
    run_kind: str | None = None


class UserMessageEvent(BaseStreamEvent):
    """Mail has come into the conversation."""

    event: Literal["user_message"] = "user_message"
    message_id: str
    sender: str
    recipient: str
    text: str | None = None
    client_message_id: str | None = None
    steer: bool | None = None  # it was meant for a run under way


class SessionEvent(BaseStreamEvent):
    """The conversation itself has changed."""

    event: Literal["session"] = "session"
    status: Literal["created", "updated", "deleted"]
    data: dict[str, Any] = Field(default_factory=dict)


class RunEvent(BaseStreamEvent, RunFields):
    """A run has begun, ended, or begun again after its worker was lost."""

    event: Literal["run"] = "run"
    status: Literal["started", "finished", "failed", "stopped", "restarted"]
    envelope_id: str
    reason: str | None = None
    history_left_out: int | None = None  # how many of the oldest runs the model was not shown


class MessageEvent(BaseStreamEvent, RunFields):
    """Text of a turn that went on to call tools, or something that an agent said on the way."""

    event: Literal["message"] = "message"
    text: str
    attachments: list[dict[str, Any]] = Field(default_factory=list)


class ReceivedMessage(BaseModel):
    """Mail that has reached its end. `seq` is its number in the inbox where it lay; what joins it to all else is `id`.

    `outcome`: of a steer `seen`, the answer of this turn knows it, or `input`, a run of its own answers it; of a stop
    `stopped`, `too_late` (the run had ended first), `not_meant` (for another run) or `nothing_to_stop`.
    """

    id: str
    source: str
    seq: int
    outcome: Literal["seen", "input", "stopped", "too_late", "not_meant", "nothing_to_stop"]
    text: str | None = None
    command: str | None = None

    def render(self) -> str:
        """What was said, as a message inside a run says it."""
        return self.text or ""


class ReceiptEvent(BaseStreamEvent, RunFields):
    """The receipt of steers and of stops on the log: each is named by exactly one, for each agent that it went to.

    What a run without a log tells of its messages is `magent2.events.MessageReceivedEvent`.
    """

    event: Literal["message_received"] = "message_received"
    messages: list[ReceivedMessage]


class HandoffEvent(BaseStreamEvent, RunFields):
    """Another agent goes on."""

    event: Literal["handoff"] = "handoff"
    source: str | None = None
    target: str
    reason: str | None = None


class BlockEvent(BaseStreamEvent, RunFields):
    """A Python block has ended: what it was, what it said, and what became of the messages that it held.

    `held` counts those that waited for its end, `sent` and `failed` what became of them; `failures` has a line for each
    that failed. A block that did not succeed has sent none of them, and `reason` names the kind of its failure.
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
    """A call of a tool waits for a person, until `expires_at`; or somebody has decided on it.

    `args` are cut short where they are long; the approvals of the conversation show them whole.
    """

    event: Literal["approval"] = "approval"
    status: Literal["requested", "approved", "rejected", "expired"]
    tool_call_id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    expires_at: AwareDatetime
    decided_by: str | None = None
    reason: str | None = None


class SubagentEvent(BaseStreamEvent, RunFields):
    """A run has started another agent for a task. `subagent_id` is the conversation in which that agent works."""

    event: Literal["subagent"] = "subagent"
    subagent_id: str
    name: str  # of the agent that works there
    task: str
    envelope_id: str


class ErrorEvent(BaseStreamEvent, RunFields):
    """Something went wrong, and what happens next: tried again in `retry_in_s`, or, without it, given up."""

    event: Literal["error"] = "error"
    code: str
    message: str
    retry_in_s: float | None = None


class GapEvent(BaseStreamEvent):
    """Records between the reader's cursor and `floor` are gone; what follows comes after the floor."""

    event: Literal["gap"] = "gap"
    cursor: str
    floor: int


class EndEvent(BaseStreamEvent):
    """The stream ends here, and why."""

    event: Literal["end"] = "end"
    reason: Literal["deleted", "revoked", "drain", "max_events"]
