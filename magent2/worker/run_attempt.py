"""One attempt at the run that is due in a claimed lane: its context and its start record."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from magent2.background import log_error
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import ClaimedLane, MailRef
from magent2.bus.retry import PERMANENT_ERRORS, retry_call
from magent2.errors import Fenced, UnknownAgent
from magent2.mail.dead_letters import RETRY_OF
from magent2.mail.headers import HOPS, KIND, PRINCIPAL, ROOT_CONVERSATION, ROOT_RUN, RUNNING, STEER, TRACE
from magent2.mail.retry_policy import RUN_RETRY, RetryPolicy
from magent2.models.run_options import read_run_options
from magent2.runner.circuit import Circuits
from magent2.runner.context import TALK, RunContext, Steer
from magent2.sessions.history import (
    RUNS_MAX,
    History,
    HistoryCache,
    RunRecord,
    find_runs,
    restart_records,
    run_id_of,
    snapshot_record,
)
from magent2.sessions.usage.budgets import Busy, CallRoot, Reached
from magent2.sessions.usage.state import BudgetState
from magent2.telemetry.observation import ObservedRun, RunAttributes, RunObserver
from magent2.tools.interface import WaitHook
from magent2.worker.cancellation import InterruptReason, RunCancellation
from magent2.worker.control_feed import LaneSteers
from magent2.worker.lane_mail import ParsedMail
from magent2.worker.retry import Quarantine
from magent2.worker.run_events import RunEvents, input_receipt
from magent2.worker.runner_adapter import Runner
from magent2.worker.webhooks import KnownWebhooks

log = logging.getLogger(__name__)

RUNS_UNCOMPACTED = 28  # that a history holds beyond the limit of a runner, until a run compacts them


@dataclass(frozen=True, slots=True)
class RunServices:
    """What all runs of one worker share."""

    histories: HistoryCache
    quarantine: Quarantine = field(default_factory=Quarantine)
    slot_released: Callable[[str], AbstractAsyncContextManager[None]] | None = None  # for a principal, during a wait
    retry: RetryPolicy = RUN_RETRY
    circuits: Circuits = field(default_factory=Circuits)
    chance: Callable[[], float] = random.random  # spreads the retries of runs that failed together
    budgets: BudgetState = field(default_factory=BudgetState)
    webhooks: KnownWebhooks | None = None


@dataclass(slots=True)
class RunAttempt:
    """One attempt at the run that is due in a claimed lane."""

    bus: Engine
    claimed: ClaimedLane
    runner: Runner
    services: RunServices
    writer: LaneWriter
    cancellation: RunCancellation
    steers: LaneSteers | None
    observer: RunObserver | None
    release: str
    observed: ObservedRun | None = None
    failures: int = 0  # earlier attempts that failed; set by `prepare`
    waits_lost: int = 0  # earlier attempts whose workers stopped while the run only waited; set by `prepare`
    dropped: bool = False  # the history has dropped the run, so its start repeats its journal; set by `prepare`
    runner_error: Exception | None = None  # what the runner raised, if it did
    context: RunContext | None = None  # set by `prepare`

    @property
    def crashes(self) -> int:
        """Earlier attempts that neither failed nor ended nor only waited: their workers stopped."""
        return max(0, self.claimed.attempt - 1 - self.failures - self.waits_lost)

    def events(self, parsed: ParsedMail) -> RunEvents:
        agent, conversation = self.claimed.owner.agent, self.claimed.owner.conversation
        run_id = run_id_of(agent, conversation, parsed.envelope.id)
        kind = str(parsed.record.headers.get(KIND) or TALK)
        return RunEvents(conversation, agent, run_id, self.claimed.attempt, parsed.envelope.id, kind)

    async def prepare(self, parsed: ParsedMail, run_id: str) -> RunContext | None:
        """Return the context of the run, or `None` if its agent left the team after the mail was claimed."""
        owner = self.claimed.owner
        runs_max = runs_needed(self.runner)
        last, histories = self.claimed.history_last, self.services.histories
        history = await retry_call(lambda: histories.read_up_to(owner.conversation, last, runs_max), owner.token)
        headers = parsed.record.headers
        recorded = history.runs.get(run_id)
        if recorded is None and RETRY_OF in headers and history.dropped.ended:
            recorded = await retry_call(lambda: self._find_dropped(run_id, history), owner.token)
            self.dropped = recorded is not None
        envelope = parsed.envelope.model_dump(mode="json")
        run = recorded or RunRecord(run_id, owner.agent, envelope, {}, history.last)
        self.failures, self.waits_lost = run.retries, len(run.waiting)
        hops = headers.get(HOPS)
        context = RunContext(
            envelope=parsed.envelope,
            agent=owner.agent,
            attempt=self.claimed.attempt + run.returns,
            bus=self.bus,
            writer=self.writer,
            history=history,
            run=run,
            hops=hops if isinstance(hops, int) else 0,
            principal=str(headers[PRINCIPAL]) if headers.get(PRINCIPAL) else None,
            kind=str(headers.get(KIND) or TALK),
            options=read_run_options(parsed.envelope.metadata),
            between_turns=self.cancellation.between_turns,
            circuits=self.services.circuits,
            waits=self._waits(),
            budgets=self.services.budgets,
            root=_root_of(self.claimed, headers, run_id),
            budget_reached=self._budget_reached,
        )
        self.context = context
        if (steers := self.steers) is not None:
            context.steers = lambda: self._read_steers(steers, parsed.record.ref)
        if recorded is None:
            try:
                run.spec = spec_of(self.runner, context)
            except UnknownAgent as error:
                log.warning("mail waits for an agent that left", extra={"agent": context.agent, "error": str(error)})
                return None
            except Exception as error:
                self.runner_error = error
                raise
        if self.observer is not None:
            self.observed = context.observed = _observe(self.observer, parsed, context)
        return context

    async def _budget_reached(self, reached: Reached | Busy) -> None:
        """Cancel the run here, between two turns. It does not return from this."""
        self.cancellation.cancel(InterruptReason.BUDGET)
        await asyncio.get_running_loop().create_future()

    def _waits(self) -> tuple[WaitHook, ...]:
        """Return what is entered while a tool of the run waits for an answer."""
        released = self.services.slot_released
        return () if released is None else (partial(released, self.claimed.principal),)

    async def _find_dropped(self, run_id: str, history: History) -> RunRecord | None:
        """Find a run that the history has dropped and whose dead letter was retried. Its input is that of a new run."""
        conversation = self.claimed.owner.conversation
        found = await find_runs(Log(self.bus), conversation, lambda payload: payload.get("run") == run_id)
        return replace(found[0], seen=history.last, seqs=[], compactions=[]) if found else None

    async def begin(self, context: RunContext, events: RunEvents, parsed: ParsedMail) -> None:
        """Write the start of the run; an attempt after the first writes that the run is restarted.

        A steer that no turn of an earlier run saw is answered by a run of its own. Its receipt is written here.
        """
        run, mail = context.run, parsed.record
        if context.history.snapshot_due:
            await self._write_snapshot(context)
        if self.dropped or run.run in context.history.runs:
            journal = restart_records(context.key, run, mail.seq) if self.dropped else []
            await self.writer.put(*journal, events.run("restarted"), heads=events.head(RUNNING))
            return
        trace = None if context.observed is None else context.observed.traceparent
        start = context.key.start(run.envelope, run.spec, run.seen, trace, self.release, mail.seq)
        receipts = [input_receipt(events.conversation, parsed, events.fields)] if mail.headers.get(STEER) else []
        await self.writer.put(start, events.run("started"), *receipts, heads=events.head(RUNNING))

    async def _write_snapshot(self, context: RunContext) -> None:
        """Write a snapshot of the history, in an append of its own: a snapshot that is refused must not fail the run.

        It needs no owner: its content does not depend on who writes it.
        """
        try:
            snapshot = snapshot_record(context.conversation_id, context.history)
            if snapshot is not None:
                await self.bus.acall(Append(records=(snapshot,)))
        except PERMANENT_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  the run needs no snapshot
            log_error("no snapshot of a history was written", error, log, run_id=context.run_id)

    async def _read_steers(self, steers: LaneSteers, own: MailRef) -> Sequence[Steer]:
        """Return the steers for the run. A run that has lost its lane is cancelled here and does not return."""
        try:
            return await steers.read(own)
        except Fenced:
            self.cancellation.cancel(InterruptReason.LOST)
            await asyncio.get_running_loop().create_future()
            raise


def _root_of(claimed: ClaimedLane, headers: Mapping[str, object], run_id: str) -> CallRoot:
    """Whose budgets a run uses. Mail to a subagent names the root of its tree."""
    user = claimed.principal or str(headers.get(PRINCIPAL) or "")
    conversation = headers.get(ROOT_CONVERSATION) or claimed.owner.conversation
    return CallRoot(user, str(conversation), str(headers.get(ROOT_RUN) or run_id))


def runs_needed(runner: Runner) -> int:
    """Return how many earlier runs of a conversation the history has to hold for this runner."""
    wanted = getattr(runner, "history_max", None)
    # The runs beyond the limit are summarised by the next run, so the history has to hold them until then.
    return RUNS_MAX if wanted is None else max(RUNS_MAX, wanted + RUNS_UNCOMPACTED)


def spec_of(runner: Runner, context: RunContext) -> dict[str, object]:
    """Return how the runner does this run. The start record keeps it, so that every attempt does the same."""
    spec_for = getattr(runner, "spec_for", None)
    return dict(spec_for(context) if callable(spec_for) else getattr(runner, "spec", {}))


def _observe(observer: RunObserver, parsed: ParsedMail, context: RunContext) -> ObservedRun:
    cause = parsed.record.headers.get(TRACE)
    attributes = RunAttributes(
        agent=context.agent,
        conversation=context.conversation_id,
        run_id=context.run_id,
        attempt=context.attempt,
        envelope_id=parsed.envelope.id,
        kind=context.kind,
        cause=cause if isinstance(cause, str) else None,
        first=context.run.trace,
    )
    return observer.start_run(attributes, parsed.record.at_ms)
