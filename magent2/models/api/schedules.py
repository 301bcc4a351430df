"""Schemas of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import KEY_MAX_CHARS, ApiModel, RequestedId, StrictRequest, example
from magent2.models.api.messages import WhenBusy
from magent2.models.json_types import JsonObject

Missed: TypeAlias = Literal["skip", "once", "all"]  # what to do with slots that were missed

SCHEDULE_ID_MAX_CHARS = 128
INSTANT_MAX_CHARS = 64
TIMEZONE_MAX_CHARS = 64
SCHEDULE_RUNS_MAX = 1_000_000  # the largest `max_runs`

REQUEST_EXAMPLE: JsonObject = {
    "session_id": "s-1", "text": "What is new today?", "cron": "0 9 * * 1-5", "timezone": "Europe/Berlin",
}  # fmt: skip
SCHEDULE_EXAMPLE: JsonObject = {
    "schedule_id": "news", "kind": "message", "owner": "user:ann", "session_id": "s-1", "agent": None,
    "title": "What is new today?", "at": None, "in_s": None, "cron": "0 9 * * 1-5", "timezone": "Europe/Berlin",
    "missed": "once", "when_busy": "queue", "until": None, "max_runs": None, "status": "active",
    "next_at": "2026-11-18T08:00:00Z", "runs": 3, "failures": 0, "skipped": 0, "last_at": "2026-11-17T08:00:00Z",
    "last_message_id": "slot-5f…", "last_error": None, "end_reason": None,
}  # fmt: skip
SLOT_EXAMPLE: JsonObject = {
    "outcome": "fired", "at": "2026-11-17T08:00:01Z", "slot": "2026-11-17T08:00:00Z", "message_id": "slot-5f…",
    "error": None, "count": None,
}  # fmt: skip


class ScheduleRequest(StrictRequest):
    """A message that is sent later, or again and again. Exactly one of `at`, `in` and `cron` says when.

    With the same `schedule_id`, a repeat creates nothing: the response has the schedule that exists.
    """

    model_config = ConfigDict(**StrictRequest.model_config, **example(**REQUEST_EXAMPLE))

    text: str = Field(description="the message")
    session_id: RequestedId | None = Field(
        default=None,
        max_length=NAME_MAX_CHARS,
        description="the session that gets it; without one, `agent` is needed and the schedule gets its own session",
    )
    agent: str | None = Field(
        default=None, max_length=NAME_MAX_CHARS, description="the agent that answers; default: the active agent"
    )
    at: str | None = Field(
        default=None,
        max_length=INSTANT_MAX_CHARS,
        description="an instant, as `2026-03-29T09:00:00+02:00`; without an offset it is a local time of `timezone`",
    )
    # Strict: `true` is not a second.
    in_: Annotated[float, Field(strict=True)] | str | None = Field(
        default=None, alias="in", description="a duration from now: seconds, or as `90s`, `15m`, `1h30m`, `2d`"
    )
    cron: str | None = Field(default=None, description="minute, hour, day of month, month, day of week")
    timezone: str | None = Field(
        default=None, max_length=TIMEZONE_MAX_CHARS, description="IANA name, as `Europe/Berlin`; default: UTC"
    )
    missed: Missed = Field(default="once", description="what to do with slots for which no worker was there in time")
    when_busy: WhenBusy = "queue"
    until: str | None = Field(
        default=None, max_length=INSTANT_MAX_CHARS, description="no slot after this instant; of the same form as `at`"
    )
    max_runs: int | None = Field(
        default=None, ge=1, le=SCHEDULE_RUNS_MAX, description="the schedule ends after so many slots"
    )
    schedule_id: RequestedId | None = Field(
        default=None, max_length=SCHEDULE_ID_MAX_CHARS, description="generated if omitted"
    )


class ScheduleInfo(ApiModel):
    """A schedule."""

    model_config = example(**SCHEDULE_EXAMPLE)

    schedule_id: str
    kind: Literal["message", "reminder"] = Field(description="`reminder`: an agent set it in its own conversation")
    owner: str
    session_id: str
    agent: str | None
    title: str = Field(description="the text, shortened")
    at: datetime | None
    in_s: float | None
    cron: str | None
    timezone: str
    missed: Missed
    when_busy: WhenBusy
    until: datetime | None
    max_runs: int | None
    status: Literal["active", "paused", "ended"]
    next_at: datetime | None = Field(description="the next slot; null if it is paused or has ended")
    runs: int = Field(description="slots whose message was sent or refused")
    failures: int = Field(description="of them, those that were refused")
    skipped: int = Field(description="slots that were missed and not sent")
    last_at: datetime | None = Field(description="the last slot that was sent or refused")
    last_message_id: str | None
    last_error: str | None = Field(description="why the last message was refused; null after one that was sent")
    end_reason: str | None


class SlotInfo(ApiModel):
    """What became of a slot: `fired`, `failed`, `skipped` (with others up to `count`), or `sent` by hand."""

    model_config = example(**SLOT_EXAMPLE)

    outcome: str
    at: datetime
    slot: datetime | None = None
    message_id: str | None = None
    error: str | None = None
    count: int | None = None


class ScheduleDetail(ScheduleInfo):
    """A schedule with its text and its last slots, newest first."""

    model_config = example(
        **SCHEDULE_EXAMPLE, text="What is new today?", created_at="2026-11-12T10:00:00Z", recent=[SLOT_EXAMPLE]
    )

    text: str | None = Field(description="null if it was erased with its session")
    created_at: datetime
    recent: list[SlotInfo]


class ScheduleList(ApiModel):
    """Schedules, most recently changed first."""

    model_config = example(schedules=[SCHEDULE_EXAMPLE], next=None)

    schedules: list[ScheduleInfo]
    next: str | None = Field(description="pass it as `before` to get the next page; null on the last page")


class RunScheduleRequest(StrictRequest):
    """Send the message of a schedule now."""

    model_config = ConfigDict(**StrictRequest.model_config, **example(client_message_id="k-1"))

    client_message_id: str | None = Field(
        default=None, min_length=1, max_length=KEY_MAX_CHARS, description="makes it idempotent: a repeat sends nothing"
    )
