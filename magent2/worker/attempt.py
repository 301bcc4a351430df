"""One attempt at a run: what it is given to work with, and the record that says it has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.records import ClaimedLane, MailRef
from magent2.bus.retry import retry_call
from magent2.errors import Fenced, UnknownAgent
from magent2.mail.headers import HOPS, KIND, PRINCIPAL, RUNNING, STEER, TRACE
from magent2.runner.context import RunContext, Steer
from magent2.sessions.history import HistoryCache, RunRecord, run_id_of
from magent2.telemetry.observation import ObservedRun, RunAttributes, RunObserver
from magent2.tools.interface import WaitHook
from magent2.worker.cancellation import InterruptReason, RunCancellation
from magent2.worker.control_feed import LaneSteers
from magent2.worker.lane_plan import ParsedMail
from magent2.worker.retry import Quarantine
from magent2.worker.run_events import TALK, RunEvents, input_receipt
from magent2.worker.runner_adapter import Runner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunServices:
    """What all runs of one worker share."""

    histories: HistoryCache
    quarantine: Quarantine = field(default_factory=Quarantine)
    waits: tuple[WaitHook, ...] = ()  # what each gives up while it waits for an answer


@dataclass(slots=True)
class RunAttempt:
    """An attempt at whatever run is due in a claimed lane. What it finds out of earlier attempts it keeps."""

    bus: Engine
    claimed: ClaimedLane
    runner: Runner
    shared: RunServices
    writer: LaneWriter
    cancellation: RunCancellation
    steers: LaneSteers | None
    observer: RunObserver | None
    release: str
    observed: ObservedRun | None = None
    failures: int = 0  # of earlier attempts; the others were cut short

    @property
    def crashes(self) -> int:
        return max(0, self.claimed.attempt - 1 - self.failures)

    def report(self, parsed: ParsedMail) -> RunEvents:
        agent, conversation = self.claimed.owner.agent, self.claimed.owner.conversation
        run_id = run_id_of(agent, conversation, parsed.envelope.id)
        kind = str(parsed.record.headers.get(KIND) or TALK)
        return RunEvents(conversation, agent, run_id, self.claimed.attempt, parsed.envelope.id, kind)

    async def context(self, parsed: ParsedMail, run_id: str) -> RunContext | None:
        """What is known of the run; `None` when its agent has left the team after the mail was claimed."""
        owner = self.claimed.owner
        history = await retry_call(lambda: self.shared.histories.read(owner.conversation), owner.token)
        headers = parsed.record.headers
        known = history.runs.get(run_id)
        envelope = parsed.envelope.model_dump(mode="json")
        run = known or RunRecord(run_id, owner.agent, envelope, {}, history.last)
        self.failures = run.retries
        context = RunContext(
            envelope=parsed.envelope,
            agent=owner.agent,
            attempt=self.claimed.attempt + run.returns,
            bus=self.bus,
            writer=self.writer,
            history=history,
            run=run,
            hops=_number(headers.get(HOPS)),
            principal=str(headers[PRINCIPAL]) if headers.get(PRINCIPAL) else None,
            kind=str(headers.get(KIND) or TALK),
            between_turns=self.cancellation.between_turns,
            waits=self.shared.waits,
        )
        if (steers := self.steers) is not None:
            context.steers = lambda: self._look(steers, parsed.record.ref)
        if known is None:
            try:
                run.spec = spec_of(self.runner, context)
            except UnknownAgent as error:
                log.warning("mail waits for an agent that left", extra={"agent": context.agent, "error": str(error)})
                return None
        if self.observer is not None:
            self.observed = context.observed = _observe(self.observer, parsed, context)
        return context

    async def begin(self, context: RunContext, report: RunEvents, parsed: ParsedMail) -> None:
        """The first attempt writes the start of the run, every other that it begins again.

        A steer that no turn has seen is mail like all mail by now, and has its receipt here.
        """
        run = context.run
        if run.run in context.history.runs:
            await self.writer.put(report.run("restarted"), heads=report.head(RUNNING))
            return
        trace = None if context.observed is None else context.observed.traceparent
        start = context.key.start(run.envelope, run.spec, run.seen, trace, self.release)
        steered = parsed.record.headers.get(STEER)
        receipts = [input_receipt(report.conversation, parsed, report.fields)] if steered else []
        await self.writer.put(start, report.run("started"), *receipts, heads=report.head(RUNNING))

    async def _look(self, steers: LaneSteers, own: MailRef) -> Sequence[Steer]:
        """Return the steers for the run. A run that has lost its lane is fenced here and ends."""
        try:
            return await steers.look(own)
        except Fenced:
            self.cancellation.cancel(InterruptReason.LOST)
            await asyncio.get_running_loop().create_future()
            raise


def spec_of(runner: Runner, context: RunContext) -> dict[str, Any]:
    """How the runner would do this run as things stand: pinned with its start, so that every attempt does the same."""
    ask = getattr(runner, "spec_for", None)
    return dict(ask(context) if callable(ask) else getattr(runner, "spec", {}))


def _observe(observer: RunObserver, parsed: ParsedMail, context: RunContext) -> ObservedRun:
    cause = parsed.record.headers.get(TRACE)
    facts = RunAttributes(
        agent=context.agent,
        conversation=context.conversation_id,
        run_id=context.run_id,
        attempt=context.attempt,
        envelope_id=parsed.envelope.id,
        kind=context.kind,
        cause=cause if isinstance(cause, str) else None,
        first=context.run.trace,
    )
    return observer.start_run(facts, parsed.record.at_ms)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
