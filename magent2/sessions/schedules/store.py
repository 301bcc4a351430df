"""Schedules on the log: create, find, list, pause, resume and delete them.

A schedule is a topic. Its head is what lists show and what the scheduler of the workers decides by. Its first record
has the text of the message; this record counts as a copy of the session, so it is erased with the session. Each change
by a person is a record too, and raises `version`, on which every append of the scheduler is conditional. The slots that
fired, failed or were skipped are records of a second topic, of which retention keeps the last.

The lane of a schedule belongs to the internal agent `SCHEDULER`. It has one piece of mail, which stays until the
schedule has ended; see `worker/scheduler.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from magent2.bus.log import Log
from magent2.bus.operations import (
    HEAD_MAX_BYTES,
    Append,
    Condition,
    Delete,
    HeadIs,
    LastSeqIs,
    SetHead,
    head_size,
)
from magent2.bus.records import NewRecord, Record, TopicInfo, digest_of
from magent2.bus.retention import forget_records
from magent2.bus.retry import retry_on_conflict
from magent2.errors import (
    ConditionFailed,
    IdConflict,
    LimitError,
    NameTaken,
    ScheduleEnded,
    TopicDeleted,
    UnknownSchedule,
)
from magent2.mail.headers import OWNER, SCHEDULED
from magent2.models.address import (
    SCHEDULER,
    chat_topic,
    check_name,
    checked_topic,
    control_topic,
    schedule_runs_topic,
    schedule_topic,
    stream_topic,
)
from magent2.models.api.messages import WhenBusy
from magent2.models.api.schedules import SCHEDULE_ID_MAX_CHARS, Missed
from magent2.models.json_types import JsonObject
from magent2.sessions.schedules.timing import Timing

SCHEDULES_PER_PRINCIPAL_MAX = 200  # active and paused ones
SCHEDULE_TEXT_MAX_CHARS = 20_000
LAST_ERROR_MAX_CHARS = 300  # of the last error, in the head
HEAD_ROOM_BYTES = 1024  # of a head, for what the scheduler writes into it
SCHEDULES_PAGE = 100
# Schedules of one owner that are looked at to count the open ones, as a multiple of the limit. Those that have ended
# stay for 30 days: a program that creates thousands a day would make each creation slower (0.35 s with 10,000).
COUNTED_PER_LIMIT = 10
SCHEDULES_COUNT_PAGE, SCHEDULES_COUNTED_MAX = 1000, 10_000  # for metrics
LATE_AFTER_S = 60.0  # a slot that is later than this was missed, and the policy for missed slots decides
SLOTS_KEPT = 100  # of a schedule, with what became of them
SESSION_DELETED = "its session was deleted"  # why a schedule has ended
DEFINITION_ID = "created"  # id of the first record

ScheduleStatus: TypeAlias = Literal["active", "paused", "ended"]
# Who set it: a person or program by the API, or an agent in its own conversation.
ScheduleKind: TypeAlias = Literal["message", "reminder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, from the head of its topic.

    `session_id` gets the messages; with `agent`, that agent answers them. `sender` signs them, `principal` is the owner
    whose rights they have; `None` is trusted code. `default_agent` answers if the session has no active agent.
    `created_ms` is 0 if only the head was read, and `next_ms` is `None` until a worker has looked at the schedule.
    """

    schedule_id: str
    owner: str
    session_id: str
    sender: str
    timing: Timing
    title: str = ""
    kind: ScheduleKind = "message"
    agent: str | None = None
    principal: str | None = None
    default_agent: str | None = None
    missed: Missed = "once"
    when_busy: WhenBusy = "queue"
    max_runs: int | None = None
    status: ScheduleStatus = "active"
    version: int = 1
    next_ms: int | None = None
    due_clock_ms: int | None = None  # of a duration: when it is over, by the log clock
    runs: int = 0  # slots whose message was sent or refused
    failures: int = 0  # of them, those that were refused
    skipped: int = 0  # slots that were missed and did not fire
    last_slot_ms: int | None = None
    last_message_id: str | None = None
    last_error: str | None = None
    end_reason: str | None = None
    created_ms: int = 0
    active_ms: int = field(default=0, compare=False)  # when the head was last set

    @classmethod
    def of(cls, info: TopicInfo) -> Schedule:
        """Return the schedule of a topic. The log does not check the types of a head: this module has written it."""
        head = dict(info.head)
        timing = Timing.of(cast("JsonObject", head.pop("timing", {})))
        names = {name for name in cls.__dataclass_fields__ if name in head}
        given = {name: head[name] for name in names}
        return cls(
            schedule_id=checked_topic(info.topic)[1],
            timing=timing,
            active_ms=info.active_ms,
            **given,
        )

    @property
    def topic(self) -> str:
        return schedule_topic(self.schedule_id)

    @property
    def unchanged(self) -> HeadIs:
        """The condition that no person has changed the schedule since it was read."""
        return HeadIs(self.topic, "version", self.version)

    def definition(self) -> JsonObject:
        """Return the head fields that the creator chose."""
        given: JsonObject = {
            "owner": self.owner,
            "session_id": self.session_id,
            "sender": self.sender,
            "timing": self.timing.fields(),
            "title": self.title,
            "kind": self.kind,
            "agent": self.agent,
            "principal": self.principal,
            "default_agent": self.default_agent,
            "missed": self.missed,
            "when_busy": self.when_busy,
            "max_runs": self.max_runs,
        }
        return {name: value for name, value in given.items() if value is not None}


# --- creating


async def plan_schedule(log: Log, schedule: Schedule, text: str, limit: int = SCHEDULES_PER_PRINCIPAL_MAX) -> Append:
    """Return the append that creates a schedule of an existing session. Raises `LimitError` if the owner has too many.

    Its conditions: the session still has the owner that was found, and the id is new or that of the same schedule.
    """
    check_schedule_id(schedule.schedule_id)
    (stream, known) = await log.describe(stream_topic(schedule.session_id), schedule.topic)
    if stream.deleted:
        raise TopicDeleted(f"session {schedule.session_id!r} was deleted")
    if known.deleted:
        raise NameTaken(f"a schedule {schedule.schedule_id!r} was deleted, and ids are never used again; take another")
    definition = schedule.definition()
    record = NewRecord(
        schedule.topic,
        # As a copy of the conversation, the engine erases it with the conversation.
        {"conversation_id": schedule.session_id, "text": text, "definition": definition},
        DEFINITION_ID,
        digest=digest_of({"text": text, **definition}),
    )
    if known.last:  # a repeat, or another schedule under this id: the engine compares the two
        return Append(records=(record,))
    await check_schedule_count(log, schedule.owner, limit)
    head = SetHead(schedule.topic, {**definition, "status": "active", "version": 1})
    size = head_size(head.texts)
    if size > HEAD_MAX_BYTES - HEAD_ROOM_BYTES:
        raise LimitError(
            f"the names in a schedule take {size} bytes, the limit is {HEAD_MAX_BYTES - HEAD_ROOM_BYTES};"
            " use shorter names"
        )
    owner: Condition = HeadIs(stream_topic(schedule.session_id), OWNER, stream.head.get(OWNER))
    return Append(
        records=(record, lane_mail(schedule.schedule_id)),
        conditions=(owner, LastSeqIs(schedule.topic, 0)),
        heads=(head, SetHead(stream_topic(schedule.session_id), {SCHEDULED: True})),
    )


async def create_schedule(
    log: Log, schedule: Schedule, text: str, limit: int = SCHEDULES_PER_PRINCIPAL_MAX
) -> tuple[Schedule, bool]:
    """Create a schedule, once per id. Return it as it is now, and whether it existed before.

    Raises `NameTaken` if another owner has the id, `IdConflict` for another schedule under the same id, `LimitError`.
    """

    async def attempt() -> bool:
        append = await plan_schedule(log, schedule, text, limit)
        return (await log.append(append)).repeat

    try:
        repeat = await retry_on_conflict(attempt, f"session {schedule.session_id!r}")
    except (ConditionFailed, IdConflict) as error:
        (info,) = await log.describe(schedule.topic)
        if info.head and info.head.get(OWNER) != schedule.owner:
            raise NameTaken(f"schedule id {schedule.schedule_id!r} is taken; take another") from error
        raise
    return await get_schedule(log, schedule.schedule_id), repeat


def check_schedule_id(schedule_id: str) -> str:
    """Return the id. Raises `AddressError` or `LimitError` if it cannot be used."""
    check_name(schedule_id, "schedule id")
    if len(schedule_id) > SCHEDULE_ID_MAX_CHARS:
        raise LimitError(f"a schedule id has at most {SCHEDULE_ID_MAX_CHARS} characters, not {len(schedule_id)}")
    return schedule_id


async def check_schedule_count(log: Log, owner: str, limit: int) -> None:
    """Raise `LimitError` if the owner has as many schedules as the limit allows. Those that have ended do not count.

    Counts among those that changed last. An active one changes at every look of a worker, so it is always one of them.
    """
    open_ones = looked_at = 0
    before = None
    while True:
        page = await log.topics(schedule_topic(""), owner, before, SCHEDULES_PAGE)
        looked_at += len(page.topics)
        open_ones += sum(info.head.get("status") != "ended" for info in page.topics)
        if open_ones >= limit:
            raise LimitError(f"{owner!r} has {open_ones} schedules, the limit is {limit}; delete one first")
        if page.next is None or looked_at >= max(limit * COUNTED_PER_LIMIT, SCHEDULES_PAGE):
            return
        before = page.next


def lane_mail(schedule_id: str, record_id: str | None = None) -> NewRecord:
    """Return the mail that keeps the lane of a schedule in existence."""
    lane = schedule_topic(schedule_id)
    payload = {"conversation_id": lane, "sender": "system"}
    return NewRecord(chat_topic(SCHEDULER), payload, record_id or f"lane-{schedule_id}", digest=lane)


def wake_mail(schedule_id: str, version: int) -> NewRecord:
    """Return the command that makes a worker look at a schedule now, although its lane waits."""
    lane = schedule_topic(schedule_id)
    payload = {"conversation_id": lane, "sender": "system"}
    return NewRecord(control_topic(SCHEDULER), payload, f"wake-{schedule_id}-{version}", digest=lane)


# --- reading


async def find_schedule(log: Log, schedule_id: str) -> Schedule | None:
    """Return a schedule, or `None` if there is none."""
    (info,) = await log.describe(schedule_topic(check_schedule_id(schedule_id)))
    return Schedule.of(info) if info.head and not info.deleted else None


async def get_schedule(log: Log, schedule_id: str) -> Schedule:
    """Return a schedule with the time of its creation. Raises `UnknownSchedule`."""
    schedule = await find_schedule(log, schedule_id)
    created = None if schedule is None else await log.find(schedule.topic, DEFINITION_ID)
    if schedule is None or created is None:
        raise unknown_schedule(schedule_id)
    return replace(schedule, created_ms=created.at_ms)


def unknown_schedule(schedule_id: str) -> UnknownSchedule:
    return UnknownSchedule(f"there is no schedule {schedule_id[:80]!r}; list them with `magent2 schedules ls`")


async def schedule_text(log: Log, schedule_id: str) -> str | None:
    """Return the text of a schedule's message; `None` if it was erased with its session."""
    created = await log.find(schedule_topic(schedule_id), DEFINITION_ID)
    return None if created is None or created.erased else str(created.payload.get("text", ""))


async def first_slot(log: Log, schedule: Schedule) -> int | None:
    """Return the first slot after the last change by a person: after the creation, or after the schedule was resumed.

    The record of the change says when that was, by the clock of the store. So all workers find the same slot, and a
    crash between two looks loses none. An instant that passed while the schedule was created is due at once.
    """
    since = schedule.created_ms if schedule.timing.cron is not None else 0
    if schedule.version > 1:
        change = await log.find(schedule.topic, _change_id(schedule.version))
        since = since if change is None else change.at_ms
    return schedule.timing.next_slot(since, schedule.created_ms)


def shown_next_ms(schedule: Schedule) -> int | None:
    """Return the next slot for a list. Before a worker has looked at the schedule, it follows from the last change."""
    if schedule.status != "active" or schedule.next_ms is not None:
        return schedule.next_ms if schedule.status == "active" else None
    since = schedule.active_ms if schedule.timing.cron is not None or schedule.version > 1 else 0
    return schedule.timing.next_slot(since, schedule.created_ms or schedule.active_ms)


async def list_schedules(
    log: Log, owner: str | None, before: tuple[int, str] | None = None, limit: int = SCHEDULES_PAGE
) -> tuple[list[Schedule], tuple[int, str] | None]:
    """Return one page of schedules, most recently changed first, and the position of the next page."""
    page = await log.topics(schedule_topic(""), owner, before, limit)
    return [Schedule.of(info) for info in page.topics if info.head], page.next


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """Schedules by state. `due`: a slot has come. `late`: it came more than a minute ago, so no worker fires it."""

    active: int = 0
    paused: int = 0
    due: int = 0
    late: int = 0


async def count_schedules(log: Log, now_ms: int) -> ScheduleCounts:
    """Count the schedules that have not ended, at most `SCHEDULES_COUNTED_MAX` of all."""
    found: list[Schedule] = []
    before: tuple[int, str] | None = None
    while len(found) < SCHEDULES_COUNTED_MAX:
        page, before = await list_schedules(log, None, before, SCHEDULES_COUNT_PAGE)
        found += page
        if before is None:
            break
    active = [one.next_ms for one in found if one.status == "active"]
    due = [next_ms for next_ms in active if next_ms is not None and next_ms <= now_ms]
    late = sum(now_ms - next_ms > LATE_AFTER_S * 1000 for next_ms in due)
    return ScheduleCounts(len(active), sum(one.status == "paused" for one in found), len(due), late)


async def schedules_in(log: Log, session_id: str, owner: str | None = None) -> list[Schedule]:
    """Return all schedules of a session. `owner` is the owner of the session, if it has one."""
    found: list[Schedule] = []
    before = None
    while True:
        page, before = await list_schedules(log, owner, before)
        found += [schedule for schedule in page if schedule.session_id == session_id]
        if before is None:
            return found


async def recent_runs(log: Log, schedule_id: str, limit: int) -> Sequence[Record]:
    """Return the last slots of a schedule and what became of them, newest first."""
    page = await log.read(schedule_runs_topic(schedule_id), None, limit)
    return tuple(reversed(page.records))


# --- changing


async def pause_schedule(log: Log, schedule_id: str) -> Schedule:
    """Pause a schedule. Its slots do not fire until it is resumed, and those in between never do."""
    return await _set_status(log, schedule_id, "active", "paused")


async def resume_schedule(log: Log, schedule_id: str) -> Schedule:
    """Resume a paused schedule, from its next slot on."""
    return await _set_status(log, schedule_id, "paused", "active")


async def _set_status(log: Log, schedule_id: str, before: ScheduleStatus, after: ScheduleStatus) -> Schedule:
    """Change the status. A repeat changes nothing; a schedule that has ended is refused."""

    async def attempt() -> None:
        schedule = await get_schedule(log, schedule_id)
        if schedule.status == "ended":
            raise ScheduleEnded(f"schedule {schedule_id[:80]!r} has ended; create another")
        if schedule.status != before:
            return
        version = schedule.version + 1
        record = NewRecord(schedule.topic, {"status": after}, _change_id(version))
        fields: JsonObject = {"status": after, "version": version, "next_ms": None}
        wake = () if after == "paused" else (wake_mail(schedule_id, version),)
        await log.append(
            Append(
                records=(record, *wake),
                conditions=(schedule.unchanged, HeadIs(schedule.topic, "status", before)),
                heads=(SetHead(schedule.topic, fields),),
            )
        )

    await retry_on_conflict(attempt, f"schedule {schedule_id[:80]!r}")
    return await get_schedule(log, schedule_id)


def _change_id(version: int) -> str:
    return f"change-{version}"


# --- deleting


async def delete_schedule(log: Log, schedule_id: str, *, scrub: bool = True) -> None:
    """Delete a schedule, with its lane. A message that it has sent stays."""
    topics = (schedule_topic(schedule_id), schedule_runs_topic(schedule_id))
    await log.run(Delete(topics, conversation=schedule_topic(schedule_id), scrub=scrub))


async def delete_schedules_of(log: Log, owner: str) -> list[str]:
    """Delete all schedules of an owner, and return their ids."""
    deleted: list[str] = []
    while page := (await list_schedules(log, owner))[0]:
        for schedule in page:
            await delete_schedule(log, schedule.schedule_id)
            deleted.append(schedule.schedule_id)
    return deleted


async def end_schedules_in(log: Log, session_id: str, owner: str | None, reason: str) -> None:
    """End the schedules of a session, and remove the text of their messages."""
    for schedule in await schedules_in(log, session_id, owner):
        created = await log.find(schedule.topic, DEFINITION_ID)
        if created is not None and not created.erased:
            await forget_records(log, schedule.topic, (created.seq,))
        await _end(log, schedule.schedule_id, reason)


async def _end(log: Log, schedule_id: str, reason: str) -> None:
    async def attempt() -> None:
        schedule = await find_schedule(log, schedule_id)
        if schedule is None or (schedule.status == "ended" and not schedule.title):
            return
        error = None if schedule.status == "ended" else reason
        await log.append(plan_end(schedule, reason, {"title": None, **({"last_error": error} if error else {})}))

    await retry_on_conflict(attempt, f"schedule {schedule_id!r}")


def plan_end(schedule: Schedule, reason: str, fields: JsonObject | None = None) -> Append:
    """Return the append that ends a schedule. Its lane becomes due, and a worker removes it."""
    version = schedule.version + 1
    changes: JsonObject = {"status": "ended", "version": version, "next_ms": None, **(fields or {})}
    if schedule.status != "ended":
        changes["end_reason"] = reason
    record = NewRecord(schedule.topic, {"status": "ended"}, _change_id(version))
    return Append(
        records=(record, wake_mail(schedule.schedule_id, version)),
        conditions=(schedule.unchanged,),
        heads=(SetHead(schedule.topic, changes),),
    )


# --- ids


def slot_message_id(schedule_id: str, slot_ms: int) -> str:
    """Return the id of the message of a slot. One slot is one id, so the log takes it once."""
    return _derived_id("slot-", schedule_id, str(slot_ms))


def run_message_id(schedule_id: str, key: str) -> str:
    """Return the id of a message that a person sends now instead of at a slot."""
    return _derived_id("run-", schedule_id, key)


def _derived_id(prefix: str, *parts: str) -> str:
    return prefix + hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()
