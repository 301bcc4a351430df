"""The shapes of answers, as the OpenAPI document shows them."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from magent2.models.envelope import MessageEnvelope

PROBLEM_TYPE = "application/problem+json"


class ProblemDocument(BaseModel):
    """What went wrong (RFC 9457). `code` is stable; `detail` is for people and names the next step."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str


class Sent(BaseModel):
    """Accepted. `seq` is that of the message in the conversation's stream: follow after it to see the answer."""

    status: Literal["ok"]
    topic: str
    envelope_id: str
    seq: int
    notice: str | None = Field(default=None, description="present only when the sender should know something")


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    status: Literal["ready"] = "ready"
    engine: str


class Conversation(BaseModel):
    """A conversation as a list shows it."""

    conversation_id: str
    last_seq: int
    active_agent: str | None
    title: str | None
    run_status: str | None
    last_active_at: datetime
    usage: dict[str, Any] | None


class ConversationList(BaseModel):
    conversations: list[Conversation]
    next: str | None = Field(description="give it back as `before` to go on")


class EventPage(BaseModel):
    conversation_id: str
    events: list[dict[str, Any]] = Field(description="each as it was recorded, with its `seq`")
    next_since: int
    has_more: bool


class StopRequest(BaseModel):
    """Whom to stop: the conversation's active agent, unless one is named."""

    agent: str | None = None
    sender: str = "user:local"


class Stopping(BaseModel):
    status: Literal["accepted"] = "accepted"
    agent: str
    envelope_id: str
    seq: int


class LaneCounts(BaseModel):
    ready: int = 0
    held: int = 0
    later: int = 0
    parked: int = 0


class Agent(BaseModel):
    """An agent that is known, or served now. `lanes`: conversations with mail for it; `pending`: that mail."""

    name: str
    alive: bool
    workers: list[str]
    lanes: LaneCounts
    pending: int


class AgentList(BaseModel):
    agents: list[Agent]


class Letter(BaseModel):
    """Mail that nobody could answer."""

    agent: str
    seq: int
    conversation_id: str
    reason: str
    attempts: int
    buried_at: datetime
    envelope_id: str
    text: str | None


class LetterList(BaseModel):
    letters: list[Letter]
    next: int | None = Field(description="give it back as `after` to go on")


class Done(BaseModel):
    status: Literal["ok"] = "ok"


FRAME: dict[str, Any] = {
    "type": "object",
    "description": "one event of the stream; `data` is JSON",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
SENT: dict[str, Any] = {"model": Sent, "description": "Accepted, now or before"}
EVENTS: dict[str, Any] = {
    "description": "Server-sent events: `id` is the seq, `event` the kind, `data` the record as JSON",
    "content": {"text/event-stream": {"schema": FRAME}},
}


def envelope_body() -> dict[str, Any]:
    schema = MessageEnvelope.model_json_schema()
    schema["required"].remove("sender")  # whoever sends, when it is left out
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that a route knows."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": schema}}}
        for status in statuses
    }
