"""`set_reminder`, `list_reminders`, `cancel_reminder`: an agent has itself woken later in its own conversation.

A reminder is a schedule of the conversation. It is set with the result of the call, in the same append, and its id
follows from the call: a run that is taken over sets one reminder only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pydantic import Field

from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, UnknownSchedule
from magent2.mail.headers import OWNER
from magent2.models.address import stream_topic
from magent2.models.api.schedules import SCHEDULE_RUNS_MAX
from magent2.models.json_types import JsonObject
from magent2.models.principal import ADMIN
from magent2.roster.limits import LimitValues
from magent2.sessions.schedules.firing import instant
from magent2.sessions.schedules.store import (
    SCHEDULE_TEXT_MAX_CHARS,
    SCHEDULES_PER_PRINCIPAL_MAX,
    Schedule,
    get_schedule,
    plan_end,
    plan_schedule,
    schedule_text,
    schedules_in,
    shown_next_ms,
)
from magent2.sessions.schedules.timing import INTERVAL_MIN_S, Timing, TimingInput
from magent2.sessions.store import short_title
from magent2.tools.definition import ToolAnswer, ToolDefinition, ToolExecutionContext
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.registry import tool
from magent2.tools.sending import Arguments, Payload, SendingTool, SendResult, definition_of

SENDER = "system"  # of a reminder; an agent gets no mail from itself
REMINDERS_SHOWN_MAX = 50
CANCELLED = "the agent cancelled it"


class ReminderArguments(Arguments):
    text: str = Field(
        description="What to be reminded of. You get it as a message in this conversation.",
        min_length=1,
        max_length=SCHEDULE_TEXT_MAX_CHARS,
    )
    after: str | None = Field(default=None, description='A duration from now, such as "90s", "15m", "2h" or "3d".')
    at: str | None = Field(
        default=None,
        description='An instant, such as "2026-03-29T09:00:00+02:00". Without an offset, a time of `timezone`.',
    )
    cron: str | None = Field(
        default=None, description='For a repeated reminder: "minute hour day-of-month month day-of-week".'
    )
    timezone: str | None = Field(default=None, description='IANA time zone, such as "Europe/Berlin". Default: UTC.')
    max_runs: int | None = Field(
        default=None, ge=1, le=SCHEDULE_RUNS_MAX, description="End a repeated reminder after so many."
    )


class ReminderPayload(Payload):
    conversation_id: str
    agent: str
    owner: str
    text: str
    timing: JsonObject
    max_runs: int | None = None


class SetReminder(SendingTool[ReminderArguments, ReminderPayload]):
    name = "set_reminder"
    description = (
        "Set a reminder: you get its text as a message in this conversation, once or repeatedly."
        " Give exactly one of after, at and cron. Cancel it with cancel_reminder."
    )
    arguments = ReminderArguments
    payload = ReminderPayload

    def __init__(self, limits: Callable[[], LimitValues] = LimitValues) -> None:
        """`limits` returns those of schedules in force; the defaults apply to what it leaves out."""
        self._limits = limits

    async def prepare(self, log: Log, arguments: ReminderArguments, context: ToolExecutionContext) -> ReminderPayload:
        if not arguments.text.strip():
            raise InvalidInput("text must be non-empty")
        given = [value for value in (arguments.after, arguments.at, arguments.cron) if value is not None]
        if len(given) != 1:
            raise InvalidInput("give exactly one of after, at and cron")
        wanted = TimingInput(arguments.at, arguments.after, arguments.cron, arguments.timezone)
        interval_min_s = self._limits().get("schedule_interval_min_s", INTERVAL_MIN_S)
        timing = wanted.parse(round(time.time() * 1000), interval_min_s)
        run = context.run
        (stream,) = await log.describe(stream_topic(run.conversation_id))
        return ReminderPayload(
            conversation_id=run.conversation_id,
            agent=run.agent,
            owner=str(stream.head.get(OWNER) or run.principal or ADMIN.name),
            text=arguments.text.strip(),
            timing=timing.fields(),
            max_runs=arguments.max_runs,
        )

    async def perform(
        self, log: Log, payload: ReminderPayload, context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        schedule = Schedule(
            schedule_id=reminder_id(mark.id),
            kind="reminder",
            owner=payload.owner,
            session_id=payload.conversation_id,
            agent=payload.agent,
            sender=SENDER,
            principal=context.run.principal,
            timing=Timing.of(payload.timing),
            title=short_title(payload.text),
            max_runs=payload.max_runs,
        )
        count_max = self._limits().get("schedules_per_principal_max", SCHEDULES_PER_PRINCIPAL_MAX)
        return await plan_schedule(log, schedule, payload.text, count_max)

    def target(self, payload: ReminderPayload) -> str:
        return "reminder"

    def answer(self, payload: ReminderPayload, result: SendResult) -> ToolAnswer:
        return {"ok": True, "reminder_id": reminder_id(result.id), "held": result.held}


def reminder_id(send_id: str) -> str:
    """Return the schedule id of a reminder. It follows from the call, so every attempt sets the same one."""
    return "reminder-" + send_id.removeprefix("send-")


class CancelArguments(Arguments):
    reminder_id: str = Field(description="The reminder_id that set_reminder or list_reminders returned.", min_length=1)


class CancelPayload(Payload):
    conversation_id: str
    reminder_id: str


class CancelReminder(SendingTool[CancelArguments, CancelPayload]):
    name = "cancel_reminder"
    description = "Cancel a reminder of this conversation."
    arguments = CancelArguments
    payload = CancelPayload

    async def prepare(self, log: Log, arguments: CancelArguments, context: ToolExecutionContext) -> CancelPayload:
        payload = CancelPayload(conversation_id=context.run.conversation_id, reminder_id=arguments.reminder_id)
        await _open_reminder(log, payload)
        return payload

    async def perform(self, log: Log, payload: CancelPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        return plan_end(await _open_reminder(log, payload), CANCELLED)

    def target(self, payload: CancelPayload) -> str:
        return "reminder"

    def answer(self, payload: CancelPayload, result: SendResult) -> ToolAnswer:
        return {"ok": True, "reminder_id": payload.reminder_id, "held": result.held}


async def _open_reminder(log: Log, payload: CancelPayload) -> Schedule:
    """Return a reminder of the conversation that has not ended. Raises `UnknownSchedule`."""
    unknown = UnknownSchedule(f"this conversation has no reminder {payload.reminder_id[:80]!r}; see list_reminders")
    try:
        schedule = await get_schedule(log, payload.reminder_id)
    except (UnknownSchedule, InvalidInput):
        raise unknown from None
    own = schedule.kind == "reminder" and schedule.session_id == payload.conversation_id
    if not own or schedule.status == "ended":
        raise unknown
    return schedule


@tool
def list_reminders(context: RunFacts) -> ToolAnswer:
    """List the reminders that are set in this conversation."""
    return {"reminders": run_sync(context.bus, _reminders, context.conversation_id)}


async def _reminders(log: Log, conversation: str) -> Sequence[ToolAnswer]:
    (stream,) = await log.describe(stream_topic(conversation))
    found = await schedules_in(log, conversation, stream.head.get(OWNER))
    active = [one for one in found if one.kind == "reminder" and one.status != "ended"]
    return [await _shown(log, one) for one in active[:REMINDERS_SHOWN_MAX]]


async def _shown(log: Log, reminder: Schedule) -> ToolAnswer:
    next_ms = shown_next_ms(reminder)
    return {
        "reminder_id": reminder.schedule_id,
        "text": await schedule_text(log, reminder.schedule_id),
        "next": None if next_ms is None else instant(next_ms),
        "cron": reminder.timing.cron,
        "status": reminder.status,
    }


def reminder_tools(limits: Callable[[], LimitValues] = LimitValues) -> tuple[ToolDefinition, ToolDefinition]:
    """The tools that set and cancel reminders. `limits` returns the limits in force."""
    return definition_of(SetReminder(limits)), definition_of(CancelReminder())
