"""Contract v1, frozen: the envelope and the three events of a run.

New fields are optional or live elsewhere; JSON of this shape always parses.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field


def _new_id() -> str:
    return str(uuid.uuid4())


def _now() -> datetime:
    return datetime.now(UTC)


def _as_utc(moment: datetime) -> datetime:
    """A time without a zone is taken as UTC, one with another zone is converted."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


UtcTime = Annotated[datetime, AfterValidator(_as_utc)]


class MessageEnvelope(BaseModel):
    """An addressed message."""

    id: str = Field(default_factory=_new_id)
    conversation_id: str
    sender: str
    recipient: str
    type: Literal["message", "control"] = "message"
    content: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: UtcTime = Field(default_factory=_now)


class BaseStreamEvent(BaseModel):
    """What every event of a run has."""

    id: str = Field(default_factory=_new_id)
    conversation_id: str
    created_at: UtcTime = Field(default_factory=_now)


class TokenEvent(BaseStreamEvent):
    """A piece of text as the model streams it: a draft, superseded by the output."""

    event: Literal["token"] = "token"
    text: str
    index: int


class ToolStepEvent(BaseStreamEvent):
    """A tool was called, or has answered."""

    event: Literal["tool_step"] = "tool_step"
    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    result_summary: str | None = None
    status: Literal["start", "success", "error"] | None = None
    error: str | None = None
    duration_ms: int | None = None
    tool_call_id: str | None = None


class OutputEvent(BaseStreamEvent):
    """The final text of a run."""

    event: Literal["output"] = "output"
    text: str
    usage: dict[str, Any] | None = None
