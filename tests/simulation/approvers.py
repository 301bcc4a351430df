"""Simulated approvers: they approve or reject tool calls, two at once, too late, or not at all.

Clients whose tools a run calls send outputs in the same ways: twice, two at once with different ones, call by call.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from magent2.bus.log import Log
from magent2.bus.retry import retry_call
from magent2.errors import AlreadyDecided, TopicDeleted, UnknownCall
from magent2.sessions.approvals import Approval, ApprovalDecision, answer_call, decide_approval, find_client_calls
from tests.simulation.call_oracle import NO_OUTPUT, NOT_MADE, TOOL_FAILED
from tests.simulation.calls import PICK, has_bug, kind_of, output_of, result_of
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
CLIENTS: tuple[tuple[str, ...], ...] = (("c1",), ("c1", "c1"), ("c1", "c2"), ())  # who sends the outputs of a turn
ASKING = ("approval", "client_call")  # events about calls that wait
ANSWERED = {"approved": "answered", "expired": "expired"}  # status of such an event for a decision with an output

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
        """Schedule decisions, and outputs of the client's tools, for a run that has paused."""
        brought = [call["call_id"] for call in pause["calls"] if call.get("client")]
        for client in self._rng.choice(CLIENTS) if brought else ():
            self._tasks.append(asyncio.create_task(self._answer(pause["conversation_id"], brought, client)))
        for call in (call for call in pause["calls"] if not call.get("client")):
            for number, decision in enumerate(self._rng.choice(ANSWERS)):
                work = self._decide(pause["conversation_id"], call["call_id"], decision, f"user:d{number}")
                self._tasks.append(asyncio.create_task(work))

    async def _decide(self, conversation: str, call: str, decision: ApprovalDecision, by: str) -> None:
        await asyncio.sleep(self._rng.uniform(0, DECISION_MAX_S))
        await self._try(f"{by} on {call}", lambda log: decide_approval(log, conversation, call, decision, by))

    async def _try(self, what: str, decide: Callable[[Log], Awaitable[Approval]]) -> None:
        bus, counts = self._new_bus(), self._recorder.counts
        try:
            found = await retry_call(lambda: decide(Log(bus)), what)
        except AlreadyDecided:
            counts["decided already"] += 1
        except (UnknownCall, TopicDeleted):
            counts["decided too late"] += 1
        except Exception as error:  # noqa: BLE001  any other error is a finding
            self.failures.append(f"no decision of {what}: {error!r}")
        else:
            self.told.setdefault(found.call_id, []).append(found)

    async def _answer(self, conversation: str, calls: Sequence[str], client: str) -> None:
        """Send the outputs of all calls of a turn, one after the other, as a client that is sometimes slow."""
        await asyncio.sleep(self._rng.uniform(0, DECISION_MAX_S))
        for call in calls:
            await self._try(f"{client} on {call}", self._output(conversation, call, client))
            await asyncio.sleep(self._rng.choice((0.0, self._rng.random())))

    def _output(self, conversation: str, call_id: str, client: str) -> Callable[[Log], Awaitable[Approval]]:
        async def send(log: Log) -> Approval:
            waiting = await find_client_calls(log, conversation)
            call = next((one for one in waiting if one.call_id == call_id), None)
            if call is None:
                raise UnknownCall(call_id)
            return await answer_call(log, conversation, call, output_of(call_id, client), f"user:{client}")

        return send

    async def done(self) -> None:
        await asyncio.gather(*self._tasks)


# --- the audit


def approval_findings(run: Sequence[Payload], events: Sequence[Payload], approvers: Approvers) -> Iterator[str]:
    """Each call was requested once and has one recorded decision, which equals the one returned to an approver."""
    status = next((mark["status"] for mark in run if mark["kind"] == "end"), "")
    results = {mark["call_id"]: str(mark["output"]) for mark in run if mark["kind"] == "tool"}
    decisions = [mark for mark in run if mark["kind"] == "decision"]
    told = Counter((event["tool_call_id"], event["status"]) for event in events if event["event"] in ASKING)
    asked = {call["call_id"]: call for mark in run if mark["kind"] == "pause" for call in mark["calls"]}
    for call, request in asked.items():
        found = [mark for mark in decisions if mark["call_id"] == call]
        if len(found) > 1 or (status == "finished" and len(found) != 1):
            yield f"on {call} there are the decisions {found}, and the run has {status}"
        ended = [ANSWERED.get(mark["status"]) if request.get("client") else mark["status"] for mark in found]
        wanted = Counter([(call, "requested"), *((call, end) for end in ended)])
        if +Counter({key: count for key, count in told.items() if key[0] == call}) != wanted:
            yield f"of {call} was told {dict(told)}, it should be {dict(wanted)}"
        for mark in found:
            yield from _decision_findings(call, mark, results.get(call), approvers.told.get(call, ()))


def _decision_findings(call: str, mark: Payload, result: str | None, told: Sequence[Approval]) -> Iterator[str]:
    for approval in told:
        if (approval.status, approval.decided_by, approval.output) != (mark["status"], mark["by"], mark.get("output")):
            yield f"{call} is {mark['status']} by {mark['by']}, and an approver got {approval}"
    if result is not None and not _is_result_of(call, mark, result):
        yield f"{call} was {mark['status']}, and its result is {result!r}"


def _is_result_of(call: str, mark: Payload, result: str) -> bool:
    """Whether a result follows from the decision on its call."""
    if kind_of(call) == PICK:
        return bool(result == mark.get("output", NO_OUTPUT))
    if mark["status"] != "approved":
        return result.startswith(NOT_MADE)
    return TOOL_FAILED in result if has_bug(call) else result == result_of(call)
