"""A simulated week of schedules: three workers that crash and freeze, a bus that loses replies, a clock that jumps.

The oracle knows every slot of every schedule by itself, from the wall clock of the world. It does not ask the
scheduler. Each message of a slot must be there once, for a slot of the schedule, in order; and every slot that passed
while the clock ran without a jump must have fired, or have been skipped by the policy of the schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.mail import lane_loop
from magent2.models.address import schedule_runs_topic
from magent2.sessions.schedules import planning
from magent2.sessions.schedules.store import Schedule, create_schedule, get_schedule, slot_message_id
from magent2.sessions.schedules.timing import Timing
from magent2.sessions.store import create_session
from magent2.worker.scheduler import keep_firing
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus, ProcessFault
from tests.simulation.preloaded_bus import PreloadedBus, database_image, leave_empty
from tests.simulation.virtual_loop import LoopClock, VirtualLoop, run_on_virtual_loop
from tests.support.audit import whole_log

WEEK_DAYS = 7
DAY_S, HOUR_S = 86_400.0, 3600.0
WORKERS = 3
LEASE_S = 600.0
CLAIM_S, LOOK_S = 900.0, 3600.0  # in place of 30 s and 10 minutes, so that a week is short
FAULTS_PER_DAY = 8
FAULT_CALLS_MAX = 20
OWNER = "user:ann"
# The week has the night of 29 March 2026, on which Berlin sets its clocks forward.
BEGIN_MS = 1_774_396_800_000  # 2026-03-25T00:00Z
TIMINGS = (
    ("hourly", Timing(cron="7 * * * *"), "all"),
    ("hourly-once", Timing(cron="37 * * * *"), "once"),
    ("hourly-skip", Timing(cron="17 * * * *"), "skip"),
    ("berlin", Timing(cron="30 2 * * *", timezone="Europe/Berlin"), "all"),
    ("often", Timing(cron="*/20 9-17 * * *", timezone="America/New_York"), "all"),
    ("in", Timing(in_s=30 * HOUR_S), "once"),
    ("at", Timing(at_ms=BEGIN_MS + round(50.5 * HOUR_S * 1000)), "once"),
)


@dataclass
class ScheduleWeek:
    """What happened in a week, and what is wrong with it."""

    findings: list[str]
    counts: Counter[str]


@dataclass
class World:
    seed: int
    days: int
    loop: VirtualLoop
    clock: LoopClock
    bus: Engine
    rng: random.Random = field(init=False)
    recorder: EngineRecorder = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    buses: list[FaultyBus] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of the wall clock, without a jump in between
    hired: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(f"week {self.seed}")
        self.recorder = EngineRecorder(self.bus, self.loop.time, ())

    async def run(self) -> ScheduleWeek:
        self._create()
        for _ in range(WORKERS):
            self._hire()
        self._plan_faults()
        begun_ms = self.clock.wall_ms()
        *pauses, last = self._pauses()
        for pause_s in pauses:
            await asyncio.sleep(pause_s)
            self.ranges.append((begun_ms, self.clock.wall_ms()))
            self._jump()
            begun_ms = self.clock.wall_ms()
        await asyncio.sleep(last)
        for bus in self.buses:
            bus.fault = None
        await asyncio.sleep(2 * LOOK_S + 2 * LEASE_S)  # whatever a crash has left is taken over
        self.ranges.append((begun_ms, self.clock.wall_ms()))
        findings = self._findings()
        self.over = True
        for bus in self.buses:
            bus.over = True
        for task in self.tasks:
            task.cancel()
        return ScheduleWeek(findings, self.recorder.counts)

    def _pauses(self) -> list[float]:
        """As many parts as days, of any length, between which the clock jumps."""
        cuts = sorted(self.rng.uniform(0, self.days * DAY_S) for _ in range(self.days - 1))
        return [later - earlier for earlier, later in zip([0.0, *cuts], [*cuts, self.days * DAY_S], strict=True)]

    def _create(self) -> None:
        for name, timing, missed in TIMINGS:
            run_sync(self.bus, create_session, name, OWNER, {"active_agent": "Ada"})
            schedule = Schedule(
                schedule_id=name,
                owner=OWNER,
                session_id=name,
                sender=OWNER,
                principal=OWNER,
                timing=timing,
                missed=missed,  # type: ignore[arg-type]
            )
            run_sync(self.bus, create_schedule, schedule, "hello", 100)

    # --- workers

    def _hire(self) -> None:
        if self.over:
            return
        self.hired += 1
        bus = FaultyBus(self.recorder, self.rng, None, self._on_fault, loses_appends=True)
        self.buses.append(bus)
        self.tasks.append(asyncio.create_task(keep_firing(bus, f"w{self.hired}", LEASE_S)))

    def _plan_faults(self) -> None:
        for _ in range(FAULTS_PER_DAY * self.days):
            self.loop.call_later(self.rng.uniform(0, self.days * DAY_S), self._break_a_worker)

    def _break_a_worker(self) -> None:
        """Let a worker crash or freeze before or after one of its next operations."""
        alive = [bus for bus in self.buses if not bus.dead and bus.fault is None]
        if alive:
            bus = self.rng.choice(alive)
            kind: Literal["crash", "freeze"] = self.rng.choice(("crash", "freeze"))
            at, after = bus.calls + self.rng.randint(1, FAULT_CALLS_MAX), self.rng.random() < 0.5
            bus.fault = ProcessFault(kind, at, after, self.rng.uniform(0.5, 3.0) * LEASE_S)

    def _on_fault(self, fault: ProcessFault) -> None:
        self.recorder.counts[fault.kind] += 1
        for bus in self.buses:
            if bus.fault is fault:
                bus.fault = None
        if fault.kind == "crash":
            self.loop.call_later(self.rng.uniform(0, LEASE_S), self._hire)

    def _jump(self) -> None:
        seconds = self.rng.uniform(-DAY_S, DAY_S)
        self.clock.jump_s(seconds)
        self.recorder.counts["clock set forward" if seconds > 0 else "clock set back"] += 1

    # --- the oracle

    def _findings(self) -> list[str]:
        findings: list[str] = []
        for name, timing, missed in TIMINGS:
            schedule = run_sync(self.bus, get_schedule, name)
            slots = self._slots(timing, schedule)
            sent = [record.payload["id"] for record in whole_log(self.bus, f"chat:{name}")]
            wanted = {slot_message_id(name, slot): slot for slot in slots}
            findings += [f"{name}: message {one} belongs to no slot" for one in sent if one not in wanted]
            findings += [f"{name}: a slot fired {n} times" for n in Counter(sent).values() if n > 1]
            order = [wanted[one] for one in sent if one in wanted]
            findings += [f"{name}: slots out of order"] * (order != sorted(order))
            findings += self._forgotten(name, schedule, slots, set(order))
            if timing.cron is None and self.days == WEEK_DAYS and schedule.status != "ended":
                findings.append(f"{name}: has not ended")
            self.recorder.counts[f"fired {missed}"] += len(sent)
        return findings

    def _slots(self, timing: Timing, schedule: Schedule) -> list[int]:
        """All slots up to the latest time that the wall clock has shown."""
        last_ms = max(end for _, end in self.ranges)
        found = []
        for slot in timing.slots(0 if timing.cron is None else schedule.created_ms, schedule.created_ms):
            if slot > last_ms:
                break
            found.append(slot)
        if timing.in_s is not None:  # measured by another clock, so it may be due although the wall clock is behind
            return [schedule.created_ms + round(timing.in_s * 1000)]
        return found

    def _forgotten(self, name: str, schedule: Schedule, slots: list[int], fired: set[int]) -> list[str]:
        """Slots that are past and neither fired nor were skipped by the policy."""
        runs = [record.payload for record in whole_log(self.bus, schedule_runs_topic(name))]
        gaps = [(one["slot"], one["before"]) for one in runs if one["outcome"] == "skipped"]
        skipped = {slot for slot in slots if any(_ms(first) <= slot < _ms(before) for first, before in gaps)}
        self.recorder.counts["skipped"] += len(skipped)
        settled_ms = self.ranges[-1][1] - round((LOOK_S + 2 * LEASE_S) * 1000)
        past = [slot for slot in slots if slot <= settled_ms and schedule.timing.in_s is None]
        findings = [f"{name}: slot {slot} was forgotten" for slot in past if slot not in fired and slot not in skipped]
        findings += [f"{name}: slot {slot} fired and was skipped" for slot in fired & skipped]
        if schedule.missed == "all":
            findings += [f"{name}: slot {slot} was skipped by the policy all" for slot in skipped]
        return findings


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def simulate_week(seed: int, days: int = WEEK_DAYS, wrap: Callable[[Engine], Engine] | None = None) -> ScheduleWeek:
    """Run the week of this seed, or fewer days."""
    loop = VirtualLoop(seed)
    clock = LoopClock(loop)
    clock.jump_s((BEGIN_MS - clock.wall_ms()) / 1000)
    bus: Engine = PreloadedBus(database_image(leave_empty), clock)
    before = lane_loop.SWEEP_S, planning.LOOK_EVERY_S
    lane_loop.SWEEP_S, planning.LOOK_EVERY_S = CLAIM_S, LOOK_S
    try:
        return run_on_virtual_loop(loop, World(seed, days, loop, clock, bus if wrap is None else wrap(bus)).run())
    finally:
        lane_loop.SWEEP_S, planning.LOOK_EVERY_S = before
        bus.close()
