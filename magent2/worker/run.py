"""One claimed lane: decided first, then done, and ended by one append."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from magent2 import __version__
from magent2.bus.delivery import HOPS, KIND, PRINCIPAL, RUNNING, STEER, TRACE
from magent2.bus.flow import arun
from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.owner_log import REFUSALS, OwnerLog
from magent2.bus.patience import insist, persist
from magent2.bus.records import Claimed, MailRef, NewRecord, Record
from magent2.errors import Fenced, StorageError, UnknownAgent
from magent2.runner.context import RunContext
from magent2.runner.steers import Steer
from magent2.sessions.approvals import APPROVAL_MAX_S, Approval, expiring, now_ms
from magent2.sessions.history import Histories, RunRecord, run_id_of
from magent2.telemetry.runs import ABANDONED, ObservedRun, Observer, RunFacts
from magent2.tools.interface import Wait
from magent2.worker.brake import Brake, Interrupt
from magent2.worker.commands import COMMANDS, STOP, STOP_AFTER_TURN, STOPS, Halt, after_command, policy_of
from magent2.worker.drive import Runner, events_of
from magent2.worker.ending import Ending, Outcome, Taken
from magent2.worker.pausing import Overdue, Waiting, decision_records, plan_paused, with_decisions
from magent2.worker.plan import Answer, Letter, Unreadable, is_meant, plan_lane, read_letter
from magent2.worker.quarantine import Quarantine
from magent2.worker.receipts import input_receipt
from magent2.worker.release import is_newer
from magent2.worker.report import TALK, Report
from magent2.worker.retry import Bury, after_crashes, after_failure, error_text, is_suspect
from magent2.worker.script import Script
from magent2.worker.steers import LaneSteers
from magent2.worker.stopping import Below, is_whole, unspent

__all__ = ["RUN_MAX_S", "LaneRun", "Outcome"]

log = logging.getLogger(__name__)

RUN_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What the runs of one worker have in common."""

    histories: Histories
    quarantine: Quarantine = field(default_factory=Quarantine)
    waits: tuple[Wait, ...] = ()  # what each gives up while it waits for an answer


class LaneRun:
    """Works one lane until it is given up. While it works, others may command it or take it away.

    With `catch_up` somebody calls it when a steer has come, and is done with that when this returns; without it a steer
    is mail like all mail.
    """

    def __init__(
        self,
        bus: Engine,
        claimed: Claimed,
        runner: Runner,
        *,
        run_max_s: float = RUN_MAX_S,
        shared: Shared | None = None,
        observer: Observer | None = None,
        release: str = __version__,
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.owner = claimed.owner
        self._bus = bus
        self._claimed = claimed
        self._runner = runner
        self._run_max_s = run_max_s
        shared = shared or Shared(Histories(bus))
        self._quarantine, self._histories = shared.quarantine, shared.histories
        self._release = release
        self._observer = observer
        self._waits = shared.waits
        self.approval_max_s = APPROVAL_MAX_S
        self.now_ms: Callable[[], int] = now_ms  # by the clock on the wall
        self._observed: ObservedRun | None = None
        self._error: str | None = None  # the kind of error that the attempt has ended with
        metrics = None if observer is None else observer.metrics
        self._log = OwnerLog(bus, claimed.owner, None if metrics is None else metrics.appended)
        self._ending = Ending(self._log, claimed.attempt)
        self._brake = Brake()
        self._below = Below(bus, claimed.owner)
        self._steers = LaneSteers(bus, claimed, catch_up) if catch_up is not None else None
        self._known = {record.ref for record in claimed.mail}
        self._heard: list[Letter] = []  # commands that came while it worked
        self._letter: Letter | None = None
        self._halt: Halt | None = None
        self._failures = 0  # of earlier attempts; the others were cut short
        if is_suspect(claimed.attempt - 1):
            self._quarantine.expect(claimed.owner.token)

    # --- from outside

    def command(self, record: Record) -> None:
        """A command that came after the claim. One that is not understood waits in the lane for the next claim."""
        letter = read_letter(record)
        if record.ref in self._known or isinstance(letter, str) or letter.command not in COMMANDS:
            return
        self._known.add(record.ref)
        self._heard.append(letter)
        if self._letter is not None:
            self._obey(letter, self._letter)

    def call(self) -> None:
        """A steer may have come."""
        if self._steers is not None:
            self._steers.call()

    def give_back(self) -> None:
        self._brake.pull(Interrupt.GIVE_BACK)

    async def check_owner(self) -> None:
        """End a run whose lane has another owner: nobody needs what it is asking a model for."""
        try:
            await persist(self._bus, Pending(self.owner, 1), self.owner.token)
        except Fenced:
            self._brake.pull(Interrupt.LOST)

    # --- the work

    async def work(self) -> Outcome:
        outcome: Outcome | None = None
        try:
            outcome = await self._work()
        except Fenced as error:
            log.info("a run was fenced", extra={"owner": self.owner.token, "error": str(error)})
            outcome = Outcome.FENCED
        finally:
            self._quarantine.leave(self.owner.token)
            await self._below.close()
            if self._observed is not None:
                self._observed.end(ABANDONED if outcome is None else outcome.value, self._error)
        return outcome

    async def _work(self) -> Outcome:
        plan = plan_lane(self.owner.conversation, await self._mail())
        if isinstance(plan, Answer):
            return await self._answer(plan)
        if isinstance(plan, Unreadable):
            return await self._ending.unreadable(plan)
        for stop in plan.spent.stops:  # no run is under way, but it may have left others at work
            await self._below.tell(stop.command or STOP, stop.envelope.id)
        return await self._ending.cleared(plan)

    async def _mail(self) -> tuple[Record, ...]:
        """The lane's mail with its head, also where many commands stand before it."""
        claimed = self._claimed
        if claimed.pending == len(claimed.mail) or any(record.topic.startswith("chat:") for record in claimed.mail):
            return claimed.mail
        pending = Pending(self.owner, min(claimed.pending, READ_LIMIT_MAX))
        mail = await persist(self._bus, pending, self.owner.token)
        self._known |= {record.ref for record in mail}
        return mail

    # --- a run

    async def _answer(self, plan: Answer) -> Outcome:
        report = self._report(plan.letter)
        try:
            context = await self._context(plan.letter, report.run_id)
            if context is None:
                return await self._ending.postponed(plan, self._mail_of(plan))
            report = replace(report, attempt=context.attempt)
            if context.run.undecided and (outcome := await self._paused(plan, report, context)) is not None:
                return outcome
            if is_newer(context.run.release, self._release):
                return await self._leave(plan, report, context.run.release)
            return await self._attempt(plan, report, context)
        except Exception as error:
            if isinstance(self._log.failure, Fenced | StorageError):
                raise self._log.failure from error
            return await self._fail(plan, report, error)

    async def _leave(self, plan: Answer, report: Report, release: str) -> Outcome:
        """A run that a newer release has begun is for its workers: what it recorded may mean more than is known here.

        To stop it, nothing of that has to be understood.
        """
        self._quarantine.decide(self.owner.token)
        self._listen(plan)
        if self._halt is not None and self._halt.is_final:
            return await self._stop(plan, report, self._halt)
        facts = {"run_id": report.run_id, "agent": report.agent, "release": release, "own_release": self._release}
        log.warning("a run of a newer release is left to its workers", extra=facts)
        return await self._ending.left(plan, self._mail_of(plan))

    async def _paused(self, plan: Answer, report: Report, context: RunContext) -> Outcome | None:
        """A run that waits for a person; nothing when it is to go on."""
        mail = self._mail_of(plan)
        if plan.halt is not None and plan.halt.is_final:
            return await self._stop(plan, report, plan.halt)
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
        await self._log.commit(*decision_records(report, paused.decided), mail=refs)
        context.run = with_decisions(context.run, report, paused.decided)
        return None

    async def _expire(self, call: Approval) -> Mapping[str, Any]:
        """The letter that counts: that nobody has decided in time, unless somebody was quicker by a moment."""
        conversation = self.owner.conversation
        return await insist(lambda: arun(self._bus, expiring(conversation, call)), self.owner.token)

    async def _attempt(self, plan: Answer, report: Report, context: RunContext) -> Outcome:
        crashes = max(0, self._claimed.attempt - 1 - self._failures)
        give_up = after_crashes(crashes)
        self._listen(plan)
        if is_suspect(crashes) and give_up is None and self._brake.reason is None:
            if not await self._quarantine.enter(self.owner.token):
                return await self._postpone(plan, report)
        else:
            self._quarantine.decide(self.owner.token)
        await self._begin(context, report, plan.letter)
        if give_up is not None:
            return await self._ending.failed(plan, await self._taken(plan), report, give_up.reason, crashes)
        return await self._run(plan, report, context)

    async def _postpone(self, plan: Answer, report: Report) -> Outcome:
        """Wait for a time when it can run alone; what is to stop after its turn is in none."""
        if self._halt is not None and self._halt.is_final:
            return await self._stop(plan, report, self._halt)
        return await self._ending.postponed(plan, self._mail_of(plan))

    async def _context(self, letter: Letter, run_id: str) -> RunContext | None:
        """What is known of the run; `None` when its agent has left the team after the mail was claimed."""
        history = await insist(lambda: self._histories.read(self.owner.conversation), self.owner.token)
        headers = letter.record.headers
        known = history.runs.get(run_id)
        envelope = letter.envelope.model_dump(mode="json")
        run = known or RunRecord(run_id, self.owner.agent, envelope, {}, history.last)
        self._failures = run.retries
        context = RunContext(
            envelope=letter.envelope,
            agent=self.owner.agent,
            attempt=self._claimed.attempt + run.returns,
            bus=self._bus,
            log=self._log,
            history=history,
            run=run,
            hops=_number(headers.get(HOPS)),
            principal=str(headers[PRINCIPAL]) if headers.get(PRINCIPAL) else None,
            kind=str(headers.get(KIND) or TALK),
            between_turns=self._brake.between_turns,
            waits=self._waits,
        )
        if (steers := self._steers) is not None:
            context.steers = lambda: self._look(steers, letter.record.ref)
        if known is None:
            try:
                run.spec = spec_of(self._runner, context)
            except UnknownAgent as error:
                log.warning("mail waits for an agent that left", extra={"agent": context.agent, "error": str(error)})
                return None
        if self._observer is not None:
            self._observed = context.observed = self._observe(self._observer, letter, context)
        return context

    async def _begin(self, context: RunContext, report: Report, letter: Letter) -> None:
        """The first attempt writes the start of the run, every other that it begins again.

        A steer that no turn has seen is mail like all mail by now, and has its receipt here.
        """
        run = context.run
        if run.run in context.history.runs:
            await self._log.put(report.run("restarted"), heads=report.head(RUNNING))
            return
        trace = None if context.observed is None else context.observed.traceparent
        start = context.key.start(run.envelope, run.spec, run.seen, trace, self._release)
        steered = letter.record.headers.get(STEER)
        receipts = [input_receipt(report.conversation, letter, report.fields)] if steered else []
        await self._log.put(start, report.run("started"), *receipts, heads=report.head(RUNNING))

    async def _run(self, plan: Answer, report: Report, context: RunContext) -> Outcome:
        script = Script(report, context.observed)
        if await self._brake.drive(self._stream(context, script), self._run_max_s):
            if context.waiting:
                return await self._pause(plan, report, context)
            mail = await self._taken(plan, context.closing_mail)
            return await self._ending.answered(plan, mail, report, context, script)
        reason = self._brake.reason
        if reason is Interrupt.LOST:
            return Outcome.FENCED
        if reason is Interrupt.OVERDUE:
            raise TimeoutError(f"the run took longer than {self._run_max_s:g} s")
        if isinstance(reason, Halt):
            cut_off = [record for tell in context.unfinished.values() for record in tell()]
            return await self._stop(plan, report, reason, cut_off)
        return await self._ending.given_back(report)

    async def _pause(self, plan: Answer, report: Report, context: RunContext) -> Outcome:
        """Ask a person, and let the lane go meanwhile; what is to stop need not ask."""
        if self._halt is not None and self._halt.is_final:
            return await self._stop(plan, report, self._halt)
        expires_ms = self.now_ms() + round(self.approval_max_s * 1000)
        calls = [
            Approval(
                report.run_id, report.agent, call.turn, call.id, call.name, call.speaker, call.arguments, expires_ms
            )
            for call in context.waiting
        ]
        return await self._ending.paused(plan, self._mail_of(plan), report, calls, self.approval_max_s)

    async def _stream(self, context: RunContext, script: Script) -> None:
        async with aclosing(events_of(self._runner, context.envelope, context)) as events:
            async for event in events:
                for record in script.take(event):
                    await self._log.put(record)

    async def _look(self, steers: LaneSteers, own: MailRef) -> Sequence[Steer]:
        """What was said to the run. Whoever has lost the lane finds out here, and does not come back."""
        try:
            return await steers.look(own)
        except Fenced:
            self._brake.pull(Interrupt.LOST)
            await asyncio.get_running_loop().create_future()
            raise

    async def _fail(self, plan: Answer, report: Report, error: Exception) -> Outcome:
        self._error = type(error).__name__
        failures = self._failures + 1
        decision = after_failure(error, failures)
        facts = {"run_id": report.run_id, "attempt": report.attempt, "decision": type(decision).__name__}
        log.warning("a run failed", extra=facts, exc_info=error)
        self._log.forget_refusal()
        if isinstance(decision, Bury):
            return await self._ending.failed(plan, await self._taken(plan), report, decision.reason, failures)
        halt = self._halt or plan.halt  # it may have failed before it listened
        if halt is not None and halt.is_final:  # the turn is over, if not as anybody wished
            return await self._stop(plan, report, halt)
        try:
            return await self._ending.retried(plan, self._mail_of(plan), report, error_text(error), decision.delay_s)
        except REFUSALS as refusal:
            self._log.forget_refusal()
            return await self._ending.failed(plan, await self._taken(plan), report, error_text(refusal), failures)

    # --- commands

    def _listen(self, plan: Answer) -> None:
        """From here on commands reach the run; those that came meanwhile are heard now."""
        self._letter = plan.letter
        self._halt = plan.halt
        self._brake.halt(plan.halt)
        for stop in plan.spent.stops if plan.halt is not None and plan.halt.after_turn else ():
            if is_meant(stop.record, plan.letter):
                self._below.begin_to_tell(STOP_AFTER_TURN, stop.envelope.id)
        for command in self._heard:
            if command.record.ref not in plan.spent.refs:
                self._obey(command, plan.letter)

    def _obey(self, command: Letter, letter: Letter) -> None:
        if not is_meant(command.record, letter):
            return
        policy = policy_of(letter.envelope.metadata)
        before = self._halt
        self._halt = after_command(command.command or "", command.envelope.sender, policy, before)
        if self._halt != before:
            self._brake.halt(self._halt)
            if self._halt is not None and self._halt.after_turn:
                self._below.begin_to_tell(STOP_AFTER_TURN, command.envelope.id)

    async def _stop(self, plan: Answer, report: Report, halt: Halt, cut_off: Sequence[NewRecord] = ()) -> Outcome:
        """End the run, and with it what it has started. A reader that has gone is no letter; the run is the cause."""
        if not any(is_meant(stop.record, plan.letter) for stop in self._mail_of(plan).stops):
            await self._below.tell(STOP, report.run_id)
        return await self._ending.stopped(plan, await self._taken(plan), report, halt.reason, cut_off)

    async def _taken(self, plan: Answer, closing: Sequence[MailRef] = ()) -> Taken:
        """`_mail_of`, of a run that ends for good. Stops have gone on by then; those that are meant for more stay."""
        mail = self._mail_of(plan)
        for stop in mail.stops:
            if is_meant(stop.record, plan.letter):
                await self._below.tell(stop.command or STOP, stop.envelope.id)
        if not any(map(is_whole, mail.stops)):
            return mail
        pending = await persist(self._bus, Pending(self.owner, READ_LIMIT_MAX), self.owner.token)
        stay = unspent(mail.stops, pending, {*mail.refs, *closing})
        return Taken(
            tuple(ref for ref in mail.refs if ref not in stay),
            tuple(stop for stop in mail.stops if stop.record.ref not in stay),
        )

    # --- facts

    def _report(self, letter: Letter) -> Report:
        agent, conversation = self.owner.agent, self.owner.conversation
        run_id = run_id_of(agent, conversation, letter.envelope.id)
        kind = str(letter.record.headers.get(KIND) or TALK)
        return Report(conversation, agent, run_id, self._claimed.attempt, letter.envelope.id, kind)

    def _observe(self, observer: Observer, letter: Letter, context: RunContext) -> ObservedRun:
        cause = letter.record.headers.get(TRACE)
        facts = RunFacts(
            agent=context.agent,
            conversation=context.conversation_id,
            run_id=context.run_id,
            attempt=context.attempt,
            envelope_id=letter.envelope.id,
            kind=context.kind,
            cause=cause if isinstance(cause, str) else None,
            first=context.run.trace,
        )
        return observer.run(facts, letter.record.at_ms)

    def _mail_of(self, plan: Answer) -> Taken:
        """All that ends with the run: its mail, and the commands that were heard."""
        heard = [letter for letter in self._heard if letter.record.ref not in plan.spent.refs]
        refs = (plan.letter.record.ref, *plan.spent.refs, *(letter.record.ref for letter in heard))
        stops = (*plan.spent.stops, *(letter for letter in heard if letter.command in STOPS))
        return Taken(tuple(dict.fromkeys(refs)), stops)


def spec_of(runner: Runner, context: RunContext) -> dict[str, Any]:
    """How the runner would do this run as things stand: pinned with its start, so that every attempt does the same."""
    ask = getattr(runner, "spec_for", None)
    return dict(ask(context) if callable(ask) else getattr(runner, "spec", {}))


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
