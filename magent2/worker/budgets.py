"""Budgets of one lane: how a run pauses that has used up a budget, and what happens when its lane is claimed again.

While the run waits, its lane is released. Mail that says `resume`, which is written when a limit is raised, makes it
due; so does a stop. A daily budget makes it due by itself when the day ends. Now and then the lane becomes due anyway,
because the wall clock may have been set.
"""

from __future__ import annotations

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import LastSeqIs
from magent2.bus.records import NewRecord
from magent2.bus.retry import retry_call
from magent2.errors import ConditionFailed
from magent2.mail.headers import RUNNING
from magent2.models.address import budgets_topic, stream_topic, usage_topic
from magent2.models.events import BudgetEvent
from magent2.runner.context import RunContext
from magent2.runner.journal.metering import budget_use
from magent2.sessions.stream import stream_record
from magent2.sessions.usage.budgets import Reached, WaitingRun, day_of, left_record, wait_record
from magent2.sessions.usage.ledger import ended_record
from magent2.sessions.usage.state import BudgetState
from magent2.worker.lane_mail import LeavingMail, RunPlan
from magent2.worker.run_events import RunEvents
from magent2.worker.settlement import LaneSettlement, Outcome
from magent2.worker.webhooks import RunReports

CHECK_S = 3600.0  # longest time between two looks at a budget that a run waits for
REACHED = "the budget is used up; raise the budget or stop the run"


class LaneBudgets:
    """Releases the lane while its run waits for more budget."""

    def __init__(
        self, bus: Engine, writer: LaneWriter, settlement: LaneSettlement, state: BudgetState, reports: RunReports
    ) -> None:
        self._reports = reports
        self._log = Log(bus)
        self._writer = writer
        self._settlement = settlement
        self._state = state

    async def wait(self, plan: RunPlan, mail: LeavingMail, events: RunEvents, context: RunContext) -> Outcome | None:
        """Release the lane of a run that cannot go on. Return None if it can, because something has changed.

        That the run waits is written on the condition that no limit was set since it was read. So the call
        that raises the limit finds the run in the list of those that wait, or the run finds the new limit.
        """
        while True:
            decision = await retry_call(lambda: self._decide(context), events.run_id)
            if not isinstance(decision, Reached):
                await self._leave(events)
                return None
            try:
                await self._register(events, context, decision)
            except ConditionFailed:
                continue
            return await self._settlement.waiting_for_budget(plan, mail, events, self._delay_s(decision))

    async def _decide(self, context: RunContext) -> object:
        await self._state.refresh(self._log)
        return await self._state.decide(self._log, context.root, context.run_id)

    async def _register(self, events: RunEvents, context: RunContext, reached: Reached) -> None:
        """Record the pause and that the run waits, unless both are recorded."""
        limits, names = self._state.limits, tuple(budget.name for budget in reached.budgets)
        known = limits.waiting.get(events.run_id)
        if context.run.budgets and known is not None and known.budgets == names:
            return
        waiting = WaitingRun(events.run_id, events.agent, events.conversation, names)
        turn = len(context.run.answers)
        await self._writer.commit(
            events.key.pause(turn, events.attempt, (), names),
            wait_record(waiting),
            *await self._events(events, context, reached),
            *self._reports.budget_reached(events, [name.kind for name in names], reached.resumes_at),
            heads=events.head(RUNNING, budget=names[0].kind),
            conditions=(LastSeqIs(budgets_topic(), limits.last),),
        )
        self._state.on_reached([name.kind for name in names])

    async def _events(self, events: RunEvents, context: RunContext, reached: Reached) -> list[NewRecord]:
        """The event of the pause; for a subagent also in the conversation that a person sees."""
        ledgers = await self._state.ledgers(self._log, reached.budgets)
        today = day_of(self._state.now())
        event = BudgetEvent(
            conversation_id=events.conversation,
            status="reached",
            budgets=[budget_use(budget, ledgers[budget.name.topic], today) for budget in reached.budgets],
            message=REACHED,
            resumes_at=reached.resumes_at,
        )
        records = [stream_record(event, events.fields)]
        root = context.root.conversation
        if root != events.conversation:
            (stream,) = await self._log.describe(stream_topic(root))
            if not stream.deleted:
                shown = event.model_copy(
                    update={"id": f"{event.id}/root", "conversation_id": root, "subagent_id": events.conversation}
                )
                records.append(stream_record(shown, {"agent": events.agent}))
        return records

    async def _leave(self, events: RunEvents) -> None:
        if events.run_id in self._state.limits.waiting:
            await self._writer.put(left_record(events.run_id))

    def _delay_s(self, reached: Reached) -> float:
        if reached.resumes_at is None:
            return CHECK_S
        return min(CHECK_S, max(0.0, (reached.resumes_at - self._state.now()).total_seconds()))

    def end(self, context: RunContext) -> list[NewRecord]:
        """The records of a run that ends: its open reservations are lost, and it does not wait any more."""
        budgets = self._state.budgets(context.root)
        records = [left_record(context.run_id)] if context.run_id in self._state.limits.waiting else []
        if not budgets:
            return records
        topics = dict.fromkeys((usage_topic("user", context.root.user), *(item.name.topic for item in budgets)))
        return records + [ended_record(topic, context.run_id) for topic in topics]
