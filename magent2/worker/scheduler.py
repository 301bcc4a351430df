"""The scheduler: sends the messages of schedules, in whichever worker claims the lane of a schedule.

Each schedule has a lane of an agent name that is internal to the runtime. The lane becomes due at the next slot. The
worker that claims it makes one append, fenced by the lane: the message of the slot, whose id follows from schedule and
slot, the new head of the schedule, and the release of the lane until the slot after it. So a slot fires once over any
number of workers, crashes and lost replies.

Slots are times of the wall clock of the store, which stamps heads: the scheduler sets the head and reads its stamp. The
clocks of workers do not matter. A clock that is set back repeats no slot, because a schedule only goes forward; one
that is set forward makes the slots in between due, and the policy for missed slots decides. Durations are measured by
the log clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from magent2.background import keep_running
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import Append, HeadIs, Later, SetHead, Settle, Write
from magent2.bus.records import ClaimedLane
from magent2.bus.retry import PERMANENT_ERRORS, retry_call, retry_on_conflict, retry_while_unavailable
from magent2.directory.agents import AGENTS
from magent2.directory.entity import look_up_entity
from magent2.errors import (
    ConditionFailed,
    Fenced,
    InvalidInput,
    Refused,
    TopicDeleted,
    UnknownAgent,
    UnknownSchedule,
)
from magent2.failures import Failure, text_for_users
from magent2.mail.lane_loop import LaneHandler, LaneLoop, UnreadableMail
from magent2.mail.registration import register_agent
from magent2.models.address import SCHEDULER, chat_topic, control_topic, schedule_topic
from magent2.models.json_types import JsonObject
from magent2.sessions.queue_depth import QUEUE_MAX_MESSAGES, QueueLimit
from magent2.sessions.schedules.firing import ended_fields, fired, plan_message, refused, skipped
from magent2.sessions.schedules.planning import End, Fire, Skipped, Wait, next_step, wait_s
from magent2.sessions.schedules.store import (
    LAST_ERROR_MAX_CHARS,
    Schedule,
    first_slot,
    get_schedule,
    lane_mail,
    slot_message_id,
)
from magent2.worker.sweeper import RetryingLog

if TYPE_CHECKING:
    from magent2.telemetry.metrics import RunMetrics

log = logging.getLogger(__name__)

CONCURRENCY = 16  # schedules that one worker looks at at a time
SCHEDULE_LANES = schedule_topic("")


class Scheduler(LaneHandler[ClaimedLane]):
    """Fires the slots of schedules. Any number of workers may run one."""

    def __init__(
        self,
        bus: Engine,
        *,
        worker: str,
        lease_s: float,
        metrics: RunMetrics | None = None,
        queue_max_messages: int = QUEUE_MAX_MESSAGES,
    ) -> None:
        self.worker = worker
        self._bus = bus
        self._metrics = metrics
        self._queues = QueueLimit(bus, queue_max_messages)
        self._lane_loop = LaneLoop(bus, self, worker=worker, concurrency=CONCURRENCY, lease_s=lease_s, drain_s=0.0)

    async def run(self) -> None:
        """Fire slots until cancelled."""
        await self._lane_loop.run()

    @property
    def agents(self) -> tuple[str, ...]:
        return (SCHEDULER,)

    @property
    def topics(self) -> tuple[str, ...]:
        return chat_topic(SCHEDULER), control_topic(SCHEDULER)

    async def start(self) -> None:
        await retry_call(lambda: register_agent(Log(self._bus), SCHEDULER, {"hidden": True}), self.worker)

    def create_work(self, lane: ClaimedLane) -> ClaimedLane:
        return lane

    async def work_on(self, work: ClaimedLane) -> bool:
        """Look at the schedule of the lane, fire a slot if one is due, and give the lane back until the next one."""
        if not work.owner.conversation.startswith(SCHEDULE_LANES):
            raise UnreadableMail(work.mail[0], "this agent is internal: it fires schedules and answers no messages")
        look = _Look(self._bus, work, self.worker, self._queues, self._metrics)
        await retry_on_conflict(look.take, f"schedule {work.owner.conversation!r}")
        return True

    def burials(self, lane: ClaimedLane, work: ClaimedLane | None, failure: Failure) -> Iterable[Settle]:
        """Report the failure and replace the mail instead of giving it up: without mail no further slot would fire."""
        conversation = lane.owner.conversation
        if not conversation.startswith(SCHEDULE_LANES) or not lane.mail:
            return super().burials(lane, work, failure)
        mail, schedule_id = lane.mail[0], conversation.removeprefix(SCHEDULE_LANES)
        is_command = mail.topic == control_topic(SCHEDULER)
        records = () if is_command else (lane_mail(schedule_id, f"lane-{schedule_id}-{mail.seq}"),)
        error = SetHead(conversation, {"last_error": failure.cause[:LAST_ERROR_MAX_CHARS]})
        settle = Settle(owner=lane.owner, mail=(mail.ref,), records=records)
        return replace(settle, heads=(error,)), settle


class _Look:
    """One look at a schedule by the owner of its lane."""

    def __init__(
        self, bus: Engine, lane: ClaimedLane, worker: str, queues: QueueLimit, metrics: RunMetrics | None
    ) -> None:
        self._bus = bus
        self._lane = lane
        self._worker = worker
        self._queues = queues
        self._metrics = metrics
        self._log = RetryingLog(bus, worker)
        self._writer = LaneWriter(bus, lane.owner)
        self._commands = tuple(mail.ref for mail in lane.mail if mail.topic == control_topic(SCHEDULER))

    async def take(self) -> None:
        """Do what is due and give the lane up. Raises `ConditionFailed` if a person changes the schedule meanwhile."""
        try:
            schedule = await get_schedule(self._log, self._lane.owner.conversation.removeprefix(SCHEDULE_LANES))
        except UnknownSchedule:
            await self._settle(Write())
            return
        if schedule.status == "ended":
            await self._settle(Write())
        elif schedule.status == "paused":
            await self._drop_commands()
            await self._give_back(None, Write(conditions=(schedule.unchanged,)))
        else:
            await self._take_active(*await self._stamped(schedule))

    async def _stamped(self, schedule: Schedule) -> tuple[Schedule, int]:
        """Return the schedule with its next slot, and the time of the store.

        Setting a head stamps it. The next slot is part of it from the first look on, so that a slot which becomes due
        between two looks is not forgotten.
        """
        if schedule.next_ms is None:
            schedule = replace(schedule, next_ms=await first_slot(self._log, schedule))
        await self._drop_commands(
            SetHead(schedule.topic, {"next_ms": schedule.next_ms}), conditions=(schedule.unchanged,)
        )
        (info,) = await self._log.describe(schedule.topic)
        return schedule, info.active_ms

    async def _drop_commands(self, *heads: SetHead, conditions: tuple[HeadIs, ...] = ()) -> None:
        """Remove commands from the lane: a lane that has one does not wait."""
        if self._commands or heads:
            await self._writer.commit(mail=self._commands, heads=heads, conditions=conditions)
            self._commands = ()

    async def _take_active(self, schedule: Schedule, now_ms: int) -> None:
        match next_step(schedule, now_ms, self._lane.clock_ms):
            case Wait() as wait:
                await self._wait(schedule, wait, now_ms)
            case End(reason, gap):
                ended = Write(heads=(SetHead(schedule.topic, ended_fields(reason)),))
                await self._settle(ended.merge(skipped(schedule, gap), Write(conditions=(schedule.unchanged,))))
                self._count_skipped(gap)
            case Fire() as fire:
                await self._fire(schedule, fire, now_ms)

    async def _wait(self, schedule: Schedule, wait: Wait, now_ms: int) -> None:
        fields: JsonObject = {"next_ms": wait.next_ms}
        if schedule.timing.in_s is not None and schedule.due_clock_ms is None:
            fields["due_clock_ms"] = self._lane.clock_ms + wait.next_ms - now_ms
        waits = Write(heads=(SetHead(schedule.topic, fields),), conditions=(schedule.unchanged,))
        await self._give_back(wait.delay_s, waits.merge(skipped(schedule, wait.skipped)))
        self._count_skipped(wait.skipped)

    async def _fire(self, schedule: Schedule, fire: Fire, now_ms: int) -> None:
        """Send the message of a slot, or record why it was refused. Then the schedule goes on with its next slot.

        A schedule whose session was deleted ends: no later slot could be sent either.
        """
        message_id = slot_message_id(schedule.schedule_id, fire.slot_ms)
        try:
            await self._check_recipient(schedule)
            message = await plan_message(self._log, schedule, message_id, fire.slot_ms)
            await self._after_slot(schedule, fire, now_ms, fired(schedule, fire), message)
            outcome = "fired"
        except (ConditionFailed, Fenced):
            raise
        except (InvalidInput, Refused, TopicDeleted) as error:
            reason = text_for_users(error) or type(error).__name__
            failed = refused(schedule, fire, reason, for_good=isinstance(error, TopicDeleted))
            await self._after_slot(schedule, fire, now_ms, failed)
            outcome = "failed"
            log.warning("the message of a schedule was refused", extra={"schedule_id": schedule.schedule_id})
        if self._metrics is not None:
            self._metrics.count_slots(outcome, late_s=fire.late_s)
        self._count_skipped(fire.skipped)

    async def _check_recipient(self, schedule: Schedule) -> None:
        await self._queues.admit(schedule.session_id)
        if schedule.agent is None:
            return
        entry = await look_up_entity(self._log, AGENTS, schedule.agent)
        if entry is not None and entry.state.removed:
            raise UnknownAgent(f"the agent {schedule.agent!r} was removed")

    async def _after_slot(
        self, schedule: Schedule, fire: Fire, now_ms: int, recorded: Write, message: Append | None = None
    ) -> None:
        """Write the message, what the schedule records about it, and the release of the lane, in one append."""
        whole = Write(conditions=(schedule.unchanged,)).merge(*(() if message is None else (message,)), recorded)
        if any(head.topic == schedule.topic and head.fields.get("status") == "ended" for head in whole.heads):
            await self._settle(whole)
        else:
            await self._give_back(wait_s(fire.next_ms or now_ms, now_ms), whole)

    async def _settle(self, write: Write) -> None:
        await self._run(
            Settle(
                owner=self._lane.owner,
                mail=tuple(mail.ref for mail in self._lane.mail),
                records=write.records,
                conditions=write.conditions,
                heads=write.heads,
            )
        )

    async def _give_back(self, delay_s: float | None, write: Write) -> None:
        await self._run(
            Later(
                owner=self._lane.owner,
                delay_s=delay_s,
                refund=True,
                records=write.records,
                conditions=write.conditions,
                heads=write.heads,
            )
        )

    async def _run(self, operation: Later | Settle) -> None:
        await retry_while_unavailable(self._bus, operation, self._worker)

    def _count_skipped(self, gap: Skipped | None) -> None:
        if gap is not None and self._metrics is not None:
            self._metrics.count_slots("skipped", gap.count)


async def keep_firing(
    bus: Engine,
    worker: str,
    lease_s: float,
    metrics: RunMetrics | None = None,
    queue_max_messages: int = QUEUE_MAX_MESSAGES,
) -> None:
    """Run the scheduler of a worker until cancelled, and start it again after a failure.

    It has a lease of its own, because a lease says which agents its worker claims.
    """
    name = f"scheduler-{worker}"

    def scheduler() -> Scheduler:
        return Scheduler(bus, worker=name, lease_s=lease_s, metrics=metrics, queue_max_messages=queue_max_messages)

    await keep_running(name, lambda: scheduler().run(), fatal=PERMANENT_ERRORS)
