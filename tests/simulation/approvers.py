"""Simulated approvers: they approve or reject tool calls, two at once, too late, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from magent2.bus.log import Log
from magent2.bus.retry import retry_call
from magent2.errors import AlreadyDecided, TopicDeleted, UnknownCall
from magent2.sessions.approvals import Approval, ApprovalDecision, decide_approval
from tests.simulation.call_oracle import NOT_MADE, TOOL_FAILED
from tests.simulation.calls import has_bug, result_of
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus

APPROVAL_MAX_S = 5.0
DECISION_MAX_S = 6.0  # after the request; some decisions come too late
ANSWERS: tuple[tuple[ApprovalDecision, ...], ...] = (
    ("approve",),
    ("approve",),
    ("reject",),
    ("reject",),
    ("approve", "reject"),
    ("approve", "reject"),
    (),
)

Payload = Mapping[str, Any]


class Approvers:
    def __init__(self, recorder: EngineRecorder, rng: random.Random, bus: Callable[[], FaultyBus]) -> None:
        self.told: dict[str, list[Approval]] = {}  # decisions on each call, as returned to the approvers
        self.failures: list[str] = []
        self._recorder = recorder
        self._rng = rng
        self._new_bus = bus
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, pause: Payload) -> None:
        """Schedule decisions for a run that has paused."""
        for call in pause["calls"]:
            for number, decision in enumerate(self._rng.choice(ANSWERS)):
                work = self._decide(pause["conversation_id"], call["call_id"], decision, f"user:d{number}")
                self._tasks.append(asyncio.create_task(work))

    async def _decide(self, conversation: str, call: str, decision: ApprovalDecision, by: str) -> None:
        await asyncio.sleep(self._rng.uniform(0, DECISION_MAX_S))
        bus, counts = self._new_bus(), self._recorder.counts
        try:
            found = await retry_call(lambda: decide_approval(Log(bus), conversation, call, decision, by), by)
        except AlreadyDecided:
            counts["decided already"] += 1
        except (UnknownCall, TopicDeleted):
            counts["decided too late"] += 1
        except Exception as error:  # noqa: BLE001  any other error is a finding
            self.failures.append(f"{by} could not decide on {call}: {error!r}")
        else:
            self.told.setdefault(call, []).append(found)

    async def done(self) -> None:
        await asyncio.gather(*self._tasks)


# --- the audit


def approval_findings(run: Sequence[Payload], events: Sequence[Payload], approvers: Approvers) -> Iterator[str]:
    """Each call was requested once and has one recorded decision, which equals the one returned to an approver."""
    status = next((mark["status"] for mark in run if mark["kind"] == "end"), "")
    results = {mark["call_id"]: str(mark["output"]) for mark in run if mark["kind"] == "tool"}
    decisions = [mark for mark in run if mark["kind"] == "decision"]
    told = Counter((event["tool_call_id"], event["status"]) for event in events if event["event"] == "approval")
    for call in (call["call_id"] for mark in run if mark["kind"] == "pause" for call in mark["calls"]):
        found = [mark for mark in decisions if mark["call_id"] == call]
        if len(found) > 1 or (status == "finished" and len(found) != 1):
            yield f"on {call} there are the decisions {found}, and the run has {status}"
        wanted = Counter([(call, "requested"), *((call, mark["status"]) for mark in found)])
        if +Counter({key: count for key, count in told.items() if key[0] == call}) != wanted:
            yield f"of {call} was told {dict(told)}, it should be {dict(wanted)}"
        for mark in found:
            yield from _decision_findings(call, mark, results.get(call), approvers.told.get(call, ()))


def _decision_findings(call: str, mark: Payload, result: str | None, told: Sequence[Approval]) -> Iterator[str]:
    for approval in told:
        if (approval.status, approval.decided_by) != (mark["status"], mark["by"]):
            yield f"{call} is {mark['status']} by {mark['by']}, and an approver got {approval}"
    if result is None:
        return
    if mark["status"] != "approved":
        made = result.startswith(NOT_MADE)
    else:
        made = TOOL_FAILED in result if has_bug(call) else result == result_of(call)
    if not made:
        yield f"{call} was {mark['status']}, and its result is {result!r}"
