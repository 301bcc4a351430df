"""Contract v1, frozen: the envelope and the three events of a run.

JSON of these models stays valid in all later releases. New fields are optional, or are in contract v1.1.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from magent2.models.json_types import JsonObject


def _new_id() -> str:
    return str(uuid.uuid4())


def _now() -> datetime:
    return datetime.now(UTC)


def _as_utc(value: datetime) -> datetime:
    """Convert a time to UTC. A time without a zone is taken as UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


UtcTime = Annotated[datetime, AfterValidator(_as_utc)]


def utc_timestamp() -> str:
    """Return the current time as pydantic writes it in JSON: `2026-01-31T12:00:00.000001Z`."""
    # Written for every token, so the text up to the second is cached.
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_to_the_second(seconds)}.{nanoseconds // 1000:06d}Z"


@lru_cache(maxsize=2)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class MessageEnvelope(BaseModel):
    """An addressed message."""

    id: str = Field(default_factory=_new_id)
    conversation_id: str
    sender: str
    recipient: str
    type: Literal["message", "control"] = "message"
    content: str | None = None
    metadata: JsonObject = Field(default_factory=dict)
    created_at: UtcTime = Field(default_factory=_now)


class BaseStreamEvent(BaseModel):
    """The fields of every event."""

    id: str = Field(default_factory=_new_id)
    conversation_id: str
    created_at: UtcTime = Field(default_factory=_now)


class TokenEvent(BaseStreamEvent):
    """A piece of text as the model streams it. The output event replaces all of them."""

    event: Literal["token"] = "token"
    text: str
    index: int


class ToolStepEvent(BaseStreamEvent):
    """A tool was called, or returned its result."""

    event: Literal["tool_step"] = "tool_step"
    name: str
    args: JsonObject = Field(default_factory=dict)
    result_summary: str | None = None
    status: Literal["start", "success", "error"] | None = None
    error: str | None = None
    duration_ms: int | None = None
    tool_call_id: str | None = None


class OutputEvent(BaseStreamEvent):
    """The final text of a run."""

    event: Literal["output"] = "output"
    text: str
    usage: JsonObject | None = None
