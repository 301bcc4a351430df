"""A simulated crowd that replaces answers: messages, regenerated and edited ones, sent again while workers crash.

The oracle reads the log alone. Each accepted request has one message and names one run, which had ended and was the
last visible one while nothing waited; no run is replaced twice; every message is answered once; and what a later run
would get as its input has exactly the messages that were not replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Lanes
from magent2.bus.retry import retry_call
from magent2.errors import ConversationBusy, IdConflict, NotSupersedable
from magent2.mail.delivery import SendOptions
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.envelope import MessageEnvelope
from magent2.sessions import superseding
from magent2.sessions.history import read_history
from magent2.sessions.store import post_message
from magent2.sessions.superseding import Replacement, visible_runs
from magent2.worker.service import WorkerService
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus, ProcessFault
from tests.simulation.plain_runner import FAILS, MailFaults, PlainRunner
from tests.simulation.preloaded_bus import PreloadedBus, database_image, leave_empty
from tests.simulation.virtual_loop import LoopClock, VirtualLoop, run_on_virtual_loop
from tests.support.audit import whole_log

AGENT = "Ada"
CONVERSATIONS = ("one", "two")
CLIENTS, STEPS = 3, 6
WORKERS, FAULTS_MAX, FAULT_CALLS_MAX = 2, 4, 60
LEASE_S = 6.0
PAUSE_MAX_S = 6.0  # between two steps of a client; a run takes about as long
QUIET_S = 600.0  # until every crash is over and all mail is answered
RETRY = RetryPolicy(first_s=0.25, max_s=8.0, jitter=0.5, give_up_after_s=300.0)
ENDS = ("finished", "failed", "stopped")


@dataclass
class Replaced:
    """What happened, and what is wrong with it."""

    findings: list[str]
    counts: Counter[str]


@dataclass
class ReplacementWorld:
    seed: int
    loop: VirtualLoop
    clock: LoopClock
    bus: Engine
    rng: random.Random = field(init=False)
    recorder: EngineRecorder = field(init=False)
    accepted: dict[str, str] = field(default_factory=dict)  # ids of accepted requests to replace → conversation
    messages: dict[str, str] = field(default_factory=dict)  # ids of accepted plain messages → conversation
    buses: list[FaultyBus] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)  # copies of a request that differed from each other
    faults_left: int = FAULTS_MAX

    def __post_init__(self) -> None:
        self.rng = random.Random(f"replacing {self.seed}")
        self.recorder = EngineRecorder(self.bus, self.loop.time, (AGENT,))

    async def run(self) -> Replaced:
        for _ in range(WORKERS):
            self._hire()
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))
        for bus in self.buses:
            bus.fault = None
        await asyncio.sleep(QUIET_S)
        findings = self._findings()
        for bus in self.buses:
            bus.over = True
        for task in self.tasks:
            task.cancel()
        return Replaced(findings, self.recorder.counts)

    # --- workers

    def _hire(self) -> None:
        fault = None
        if self.faults_left:
            self.faults_left -= 1
            kind: Literal["crash", "freeze"] = self.rng.choice(("crash", "freeze"))
            fault = ProcessFault(
                kind,
                self.rng.randint(1, FAULT_CALLS_MAX),
                self.rng.random() < 0.5,
                self.rng.uniform(0.5, 2.0) * LEASE_S,
            )
        bus = FaultyBus(self.recorder, self.rng, fault, self._on_fault)
        self.buses.append(bus)
        runner = PlainRunner(MailFaults(bus, self.rng, lambda *_: None))
        name = f"w{len(self.buses)}"
        service = WorkerService(bus, {AGENT: runner}, lease_s=LEASE_S, worker=name, retry=RETRY, chance=self.rng.random)
        service.now_ms = self.clock.wall_ms
        self.tasks.append(asyncio.create_task(service.run()))

    def _on_fault(self, fault: ProcessFault) -> None:
        self.recorder.counts[fault.kind] += 1
        if fault.kind == "crash":
            self.loop.call_later(self.rng.uniform(0, LEASE_S), self._hire)

    # --- clients

    async def _client(self, client: int) -> None:
        bus = FaultyBus(self.recorder, self.rng, loses_appends=True)
        for step in range(STEPS):
            await asyncio.sleep(self.rng.uniform(0, PAUSE_MAX_S))
            conversation, name = self.rng.choice(CONVERSATIONS), f"{client}-{step}"
            sends = [self._send(bus, conversation, f"m{name}")] if self.rng.random() < 0.4 else []
            rivals = [
                self._request(bus, conversation, f"r{name}-{rival}") for rival in range(self.rng.choice((0, 1, 3)))
            ]
            await asyncio.gather(*sends, *rivals)

    async def _request(self, bus: FaultyBus, conversation: str, name: str) -> None:
        """Ask for another answer, with one to three copies of the request at once."""
        text = f"edited {name}" if self.rng.random() < 0.5 else None
        wanted = Replacement(conversation, name, "user:ann", text)
        copies = self.rng.choice((1, 2, 3))
        taken = await asyncio.gather(*(self._replace(bus, wanted) for _ in range(copies)))
        if any(taken):
            self.accepted[name] = conversation
            self.recorder.counts["edited" if text else "regenerated"] += 1

    async def _send(self, bus: FaultyBus, conversation: str, name: str) -> None:
        metadata = {FAILS: self.rng.choice((0, 0, 1))}
        envelope = MessageEnvelope(
            id=name,
            conversation_id=conversation,
            sender="user:ann",
            recipient=f"agent:{AGENT}",
            content=f"message {name}",
            metadata=metadata,
        )
        await retry_call(lambda: post_message(Log(bus), envelope), "client")
        self.messages[name] = conversation

    async def _replace(self, bus: FaultyBus, wanted: Replacement) -> bool:
        await asyncio.sleep(self.rng.choice((0.0, self.rng.uniform(0, 0.02))))
        try:
            # By its module: a test may have broken it.
            await retry_call(lambda: superseding.replace_answer(Log(bus), wanted, SendOptions()), "client")
        except (ConversationBusy, NotSupersedable) as refused:
            self.recorder.counts[type(refused).__name__] += 1
            return False
        except IdConflict as error:
            self.conflicts.append(str(error))
            return False
        return True

    # --- the oracle

    def _findings(self) -> list[str]:
        findings = [*self.conflicts, *(f"mail waits: {lane}" for lane in run_lanes(self.bus))]
        for conversation in CONVERSATIONS:
            findings += (f"{conversation}: {finding}" for finding in self._of_conversation(conversation))
        return findings

    def _of_conversation(self, conversation: str) -> list[str]:
        events = [record.payload for record in whole_log(self.bus, f"stream:{conversation}")]
        chat = Counter(record.id for record in whole_log(self.bus, f"chat:{conversation}") if record.id[0] in "mr")
        replaced = [event for event in events if event.get("event") == "superseded"]
        wanted = {name for name, place in {**self.messages, **self.accepted}.items() if place == conversation}
        findings = [f"message {name} is there {number} times" for name, number in chat.items() if number > 1]
        findings += [f"accepted message {name} is missing" for name in wanted - set(chat)]
        requests = Counter(event["replaced_by"] for event in replaced)
        findings += [
            f"{name} has replaced {requests[name]} runs" for name in chat if name[0] == "r" and requests[name] != 1
        ]
        runs = Counter(event["run_id"] for event in replaced)
        findings += [f"run {name} was replaced {number} times" for name, number in runs.items() if number > 1]
        ends = Counter(event["envelope_id"] for event in events if is_end(event))
        findings += [f"message {name} has {ends[name]} ends" for name in chat if ends[name] != 1]
        for place, event in enumerate(events):
            if event.get("event") == "superseded":
                findings += self._when_replaced(event, events[:place])
        return findings + self._input(conversation, events, {event["envelope_id"] for event in replaced})

    def _when_replaced(self, event: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> list[str]:
        """What was wrong in the moment in which an answer was replaced."""
        sent = [one["message_id"] for one in before if one.get("event") == "user_message"]
        ended = [one["envelope_id"] for one in before if is_end(one)]
        gone = {one["envelope_id"] for one in before if one.get("event") == "superseded"}
        visible = [name for name in ended if name not in gone]
        findings = [f"replaced while {name} waited" for name in sent if name not in ended]
        if not visible or visible[-1] != event["envelope_id"]:
            findings.append(f"{event['envelope_id']} was replaced, and the last answer was {visible[-1:]}")
        return findings

    def _input(self, conversation: str, events: Sequence[Mapping[str, Any]], replaced: set[str]) -> list[str]:
        """Compare what the history shows with what was sent and not replaced."""
        history = run_sync(self.bus, read_history, conversation)
        shown = [str(run.envelope["id"]) for run in visible_runs(history)]
        sent = [event["message_id"] for event in events if event.get("event") == "user_message"]
        wanted = [name for name in sent if name not in replaced]
        return [] if sorted(shown) == sorted(wanted) else [f"the history shows {shown}, not {wanted}"]


def is_end(event: Mapping[str, Any]) -> bool:
    return event.get("event") == "run" and event.get("status") in ENDS


def run_lanes(bus: Engine) -> list[object]:
    return list(bus.call(Lanes(AGENT)))


def simulate_replacing(seed: int) -> Replaced:
    """Run the world of this seed."""
    loop = VirtualLoop(seed)
    clock = LoopClock(loop)
    bus = PreloadedBus(database_image(leave_empty), clock)
    try:
        return run_on_virtual_loop(loop, ReplacementWorld(seed, loop, clock, bus).run())
    finally:
        bus.close()
