"""The approvals that the run of one lane waits for: asked for, looked for, and given up when their time is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.retry import retry_call
from magent2.runner.context import RunContext
from magent2.sessions.approvals import APPROVAL_MAX_S, Approval, expire_approval, now_ms
from magent2.worker.approvals import Overdue, Waiting, decision_records, plan_paused, with_decisions
from magent2.worker.lane_plan import Answer
from magent2.worker.run_events import RunEvents
from magent2.worker.settlement import Ending, Outcome, Taken


class LaneApprovals:
    """Lets the lane go while calls of its run wait for a person, and lets the run go on once all are decided on."""

    def __init__(self, bus: Engine, writer: LaneWriter, ending: Ending) -> None:
        self.max_s = APPROVAL_MAX_S
        self.now_ms: Callable[[], int] = now_ms  # by the clock on the wall
        self._bus = bus
        self._writer = writer
        self._owner = writer.owner
        self._ending = ending

    async def ask(self, plan: Answer, mail: Taken, report: RunEvents, context: RunContext) -> Outcome:
        """Ask a person, and let the lane go meanwhile."""
        expires_ms = self.now_ms() + round(self.max_s * 1000)
        calls = [
            Approval(
                report.run_id, report.agent, call.turn, call.id, call.name, call.speaker, call.arguments, expires_ms
            )
            for call in context.waiting
        ]
        return await self._ending.paused(plan, mail, report, calls, self.max_s)

    async def look(self, plan: Answer, mail: Taken, report: RunEvents, context: RunContext) -> Outcome | None:
        """What has become of a run that waits; nothing when it is to go on."""
        letters: dict[str, Mapping[str, Any]] = {
            letter.envelope.id: letter.envelope.model_dump() for letter in plan.spent.decisions
        }
        now = self.now_ms()
        while isinstance(paused := plan_paused(context.run, letters, now), Overdue):
            for call in paused.calls:
                letters[call.decision_id] = await self._expire(call)
        if isinstance(paused, Waiting):
            return await self._ending.still_paused(plan, mail, report, paused)
        refs = tuple(letter.record.ref for letter in plan.spent.decisions)
        await self._writer.commit(*decision_records(report, paused.decided), mail=refs)
        context.run = with_decisions(context.run, report, paused.decided)
        return None

    async def _expire(self, call: Approval) -> Mapping[str, Any]:
        """The letter that counts: that nobody has decided in time, unless somebody was quicker by a moment."""
        conversation = self._owner.conversation
        return await retry_call(lambda: expire_approval(Log(self._bus), conversation, call), self._owner.token)
