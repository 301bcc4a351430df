"""The message of a slot, and the append that sends it together with what the schedule records about it."""

from __future__ import annotations

from datetime import UTC, datetime

from magent2.bus.log import Log
from magent2.bus.operations import Append, SetHead, Write
from magent2.bus.records import NewRecord
from magent2.errors import TopicDeleted
from magent2.mail.delivery import SendOptions, plan_delivery
from magent2.models.address import schedule_runs_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import ErrorEvent
from magent2.models.json_types import JsonObject
from magent2.sessions.busy import plan_if_allowed
from magent2.sessions.schedules.planning import Fire, Skipped
from magent2.sessions.schedules.store import LAST_ERROR_MAX_CHARS, Schedule, schedule_text, slot_message_id
from magent2.sessions.steering import plan_steer
from magent2.sessions.store import with_user_message
from magent2.sessions.stream import stream_record

REMINDER_PREFIX = "Reminder: "  # tells an agent that the message is not from a person
SCHEDULE = "schedule"  # metadata field of mail: the schedule that sent it, and its slot


def instant(ms: int) -> str:
    """Return an instant as JSON has it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def message_of(
    schedule: Schedule, text: str, message_id: str, slot_ms: int | None = None
) -> tuple[MessageEnvelope, SendOptions]:
    """Return the message of a schedule, and how it is sent."""
    facts: JsonObject = {"schedule_id": schedule.schedule_id}
    if slot_ms is not None:
        facts["slot"] = instant(slot_ms)
    envelope = MessageEnvelope(
        id=message_id,
        conversation_id=schedule.session_id,
        sender=schedule.sender,
        recipient=f"chat:{schedule.session_id}" if schedule.agent is None else f"agent:{schedule.agent}",
        content=f"{REMINDER_PREFIX}{text}" if schedule.kind == "reminder" else text,
        metadata={SCHEDULE: facts},
    )
    return envelope, SendOptions(principal=schedule.principal, default_agent=schedule.default_agent)


async def plan_message(log: Log, schedule: Schedule, message_id: str, slot_ms: int) -> Append:
    """Return the append that sends the message of a slot now. Raises what refuses it.

    The text is gone with the session, so `TopicDeleted` is raised if there is none.
    """
    text = await schedule_text(log, schedule.schedule_id)
    if text is None:
        raise TopicDeleted(f"session {schedule.session_id!r} was deleted")
    envelope, options = message_of(schedule, text, message_id, slot_ms)
    steers = schedule.when_busy == "steer"
    # The event has an id of the message, so it is the same event in every plan.
    shown = with_user_message(envelope, options, steer=steers, record_id=f"shown:{message_id}")
    if schedule.when_busy == "steer":
        return await plan_steer(log, envelope, shown)
    if schedule.when_busy == "queue":
        return await plan_delivery(log, envelope, shown)
    return await plan_if_allowed(log, envelope, shown, schedule.when_busy)


def fired(schedule: Schedule, fire: Fire) -> Write:
    """Return what the schedule records about a slot whose message is sent in the same append."""
    message_id = slot_message_id(schedule.schedule_id, fire.slot_ms)
    facts: JsonObject = {"outcome": "fired", "slot": instant(fire.slot_ms), "message_id": message_id}
    fields: JsonObject = {"last_message_id": message_id, "last_error": None}
    return _after_slot(schedule, fire, facts, fields)


def refused(schedule: Schedule, fire: Fire, error: str, *, for_good: bool) -> Write:
    """Return what the schedule records about a slot whose message was refused. `for_good`: it ends with it.

    The session is told of the first of several refused slots. An event for each would fill the stream of a session that
    takes no messages.
    """
    text = error[:LAST_ERROR_MAX_CHARS]
    facts: JsonObject = {"outcome": "failed", "slot": instant(fire.slot_ms), "error": text}
    fields: JsonObject = {"last_error": text, "failures": schedule.failures + 1}
    if for_good:
        fire = Fire(fire.slot_ms, None, fire.late_s, fire.skipped)
        fields["end_reason"] = text
    recorded = _after_slot(schedule, fire, facts, fields)
    if for_good or schedule.last_error is not None:
        return recorded
    event = ErrorEvent(
        conversation_id=schedule.session_id,
        agent=schedule.agent or "",
        code="schedule_refused",
        message=f"schedule {schedule.schedule_id!r} did not send its message: {text}",
    )
    return recorded.merge(Write(records=(stream_record(event),)))


def _after_slot(schedule: Schedule, fire: Fire, facts: JsonObject, fields: JsonObject) -> Write:
    topic = schedule_runs_topic(schedule.schedule_id)
    record = NewRecord(topic, facts, f"slot-{fire.slot_ms}", digest=f"slot-{fire.slot_ms}")
    changes: JsonObject = {"runs": schedule.runs + 1, "last_slot_ms": fire.slot_ms, "next_ms": fire.next_ms}
    if fire.next_ms is None:
        changes |= ended_fields("it has fired its last slot")
    head = SetHead(schedule.topic, {**changes, **fields})
    return Write(records=(record,), heads=(head,)).merge(skipped(schedule, fire.skipped))


def skipped(schedule: Schedule, gap: Skipped | None) -> Write:
    """Return what the schedule records about slots that were missed and do not fire."""
    if gap is None:
        return Write()
    facts: JsonObject = {
        "outcome": "skipped",
        "slot": instant(gap.first_ms),
        "before": instant(gap.before_ms),
        "count": gap.count,
        **({"more": True} if gap.more else {}),
    }
    record_id = f"skipped-{gap.first_ms}"
    record = NewRecord(schedule_runs_topic(schedule.schedule_id), facts, record_id, digest=record_id)
    return Write(records=(record,), heads=(SetHead(schedule.topic, {"skipped": schedule.skipped + gap.count}),))


def ended_fields(reason: str) -> JsonObject:
    """Return the head fields of a schedule that has ended."""
    return {"status": "ended", "end_reason": reason, "next_ms": None}
