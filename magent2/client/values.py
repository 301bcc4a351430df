"""What a gateway's answers become. Fields that this release does not know are passed over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

V = TypeVar("V")


def known_fields(kind: type[V], data: Mapping[str, Any]) -> V:
    """A dataclass from the fields that it has."""
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in data.items() if name in names})


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the log has. `seq` is where its answer is looked for; `notice` what the sender should know."""

    conversation_id: str
    envelope_id: str
    seq: int
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run has answered. `seq` is the cursor behind it."""

    text: str
    usage: Mapping[str, Any] | None
    seq: int
    run_id: str | None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a conversation. `seq` is the cursor to go on from, also for `gap` and `end`, which no log holds."""

    seq: int
    kind: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        return str(self.data.get("text") or "")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool that was run by hand has said; `error` is why it failed, if it did."""

    session_id: str
    tool: str
    agent_id: str
    result: str
    error: str | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    """A stop that is on its way to the agent."""

    agent: str
    envelope_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Steered:
    """Something said to runs under way. `receipt_id` is how to ask what became of it."""

    conversation_id: str
    receipt_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that waits for a person, `pending`, or was `approved`, `rejected` or `expired`."""

    call_id: str
    tool: str
    args: Mapping[str, Any]
    agent_id: str
    run_id: str
    turn: int
    status: str
    expires_at: str
    decided_by: str | None = None
    reason: str | None = None

    @property
    def args_text(self) -> str:
        return json.dumps(self.args, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AgentReceipt:
    """One agent has it: in a turn of a run, or, without a `turn`, as what a run of its own answers."""

    agent_id: str
    run_id: str
    turn: int | None
    status: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a message: `accepted`, `seen`, `answered` or `dead`; `waiting` agents have not seen it yet."""

    receipt_id: str
    status: str
    waiting: int
    receipts: tuple[AgentReceipt, ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Receipt:
        receipts = tuple(known_fields(AgentReceipt, row) for row in data["receipts"])
        return known_fields(cls, {**data, "receipts": receipts})


@dataclass(frozen=True, slots=True)
class Conversation:
    conversation_id: str
    last_seq: int
    active_agent: str | None = None
    title: str | None = None
    run_status: str | None = None
    last_active_at: str | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Most recently active first; `next` is the `before` of the page after, if there is one."""

    conversations: tuple[Conversation, ...]
    next: str | None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> ConversationPage:
        return cls(tuple(known_fields(Conversation, row) for row in data["conversations"]), data.get("next"))


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order; `next_since` is the `since` of the page after."""

    events: tuple[StreamEvent, ...]
    next_since: int
    has_more: bool

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> EventPage:
        events = (StreamEvent(row["seq"], str(row.get("event", "")), row) for row in data["events"])
        return cls(tuple(events), data["next_since"], data["has_more"])


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that is known. `alive`: a worker serves it now; `pending`: messages that wait or are being answered."""

    name: str
    alive: bool
    workers: tuple[str, ...] = ()
    lanes: Mapping[str, int] = field(default_factory=dict)
    pending: int = 0

    @classmethod
    def parse_all(cls, data: Mapping[str, Any]) -> tuple[AgentInfo, ...]:
        return tuple(known_fields(cls, {**row, "workers": tuple(row.get("workers", ()))}) for row in data["agents"])


@dataclass(frozen=True, slots=True)
class Letter:
    """Mail that nobody could answer."""

    agent: str
    seq: int
    conversation_id: str
    reason: str
    attempts: int
    buried_at: str
    envelope_id: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Oldest first; `next` is the `after` of the page after, if there is one."""

    letters: tuple[Letter, ...]
    next: str | int | None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> LetterPage:
        return cls(tuple(known_fields(Letter, row) for row in data["letters"]), data.get("next"))
