"""What the client returns where that is not a response of the HTTP API as it came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.models.api.messages import ApprovalInfo
from magent2.models.json_types import JsonObject

Decision: TypeAlias = Literal["approve", "reject"]

# Called with each tool call that waits for approval. Returns the decision, or `None` to leave it to another person.
ApprovalCallback: TypeAlias = Callable[[ApprovalInfo], Decision | None]
AsyncApprovalCallback: TypeAlias = Callable[[ApprovalInfo], Awaitable[Decision | None]]


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that the gateway accepted. Its reply comes after `seq` in the conversation's stream.

    `notice` is a warning for the sender, for example that no worker serves the agent.
    """

    conversation_id: str
    envelope_id: str
    seq: int
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class SteeredMessage:
    """A message that the gateway accepted for runs in progress. `receipt_id` identifies its receipt."""

    conversation_id: str
    receipt_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class MessageReply:
    """The final text of the run that answers a message, and the tokens of that run.

    `seq` is its position in the conversation's stream.
    """

    text: str
    usage: JsonObject | None
    seq: int
    run_id: str | None


@dataclass(frozen=True, slots=True)
class ConversationEvent:
    """An event of a conversation. Resume after `seq`, also after `gap` and `end`, which are not in the log."""

    seq: int
    kind: str
    data: JsonObject

    @property
    def text(self) -> str:
        return str(self.data.get("text") or "")


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a conversation, in order. Pass `next_since` as `since` to get the next page."""

    events: tuple[ConversationEvent, ...]
    next_since: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool that was run manually. `error` says why it failed, if it did."""

    session_id: str
    tool: str
    agent_id: str
    result: str
    error: str | None = None
    duration_ms: int | None = None
