"""The mail of one lane: parsed, planned before any work starts, and tracked while the lane is worked on.

`plan_lane` is pure: it decides what the mail of a claimed lane asks for. `LaneMail` then follows the lane, because
commands arrive while a run is in progress, and says which mail leaves the lane when the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import ValidationError

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.records import ClaimedLane, MailRef, Record
from magent2.bus.retry import retry_while_unavailable
from magent2.mail.headers import AWAITED, MAIL_SEEN, RESUME, STOP, STOP_AFTER_TURN, TARGET_ENVELOPE, WHOLE_LANE
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.approvals import DECISIONS
from magent2.worker.cancellation import (
    COMMANDS,
    STOPS,
    RunCancellation,
    StopCommand,
    SubagentStop,
    after_command,
    policy_of,
)

REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ParsedMail:
    """A mail record and the envelope in it."""

    record: Record
    envelope: MessageEnvelope

    @property
    def command(self) -> str | None:
        """The command, if this is control mail."""
        if self.envelope.type != "control" and not self.record.topic.startswith("control:"):
            return None
        return (self.envelope.content or "").strip()


def parse_mail(record: Record) -> ParsedMail | str:
    """Return the mail with its envelope, or the reason why it cannot be read."""
    if record.malformed:
        return f"the record cannot be read: {record.malformed}"
    try:
        envelope = MessageEnvelope.model_validate({"id": record.id, **record.payload})
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:REASONS_SHOWN]
        reasons = (f"{'.'.join(str(step) for step in fault['loc'])}: {fault['msg']}" for fault in faults)
        return f"not an envelope: {'; '.join(reasons)}"
    return ParsedMail(record, envelope) if envelope.id else "not an envelope: id is empty"


def is_meant_for(command: Record, mail: ParsedMail) -> bool:
    """Return whether a command was meant for this mail.

    A command names the envelope whose run its sender saw. If nothing ran, it says how far its sender had seen the
    inbox. A command without either (it was published without delivery) is compared by time; the clock may have been
    set in between.
    """
    target, seen = command.headers.get(TARGET_ENVELOPE), command.headers.get(MAIL_SEEN)
    if target is not None:
        return target == mail.envelope.id
    if isinstance(seen, int) and command.topic != mail.record.topic:
        return mail.record.seq <= seen
    return command.at_ms >= mail.record.at_ms


@dataclass(frozen=True, slots=True)
class ConsumedMail:
    """Mail that the next settlement removes. Unknown commands get an error event, stops get a receipt."""

    refs: tuple[MailRef, ...] = ()
    unknown: tuple[ParsedMail, ...] = ()
    stops: tuple[ParsedMail, ...] = ()
    decisions: tuple[ParsedMail, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingToRun:
    """The lane has no mail to answer."""

    consumed: ConsumedMail


@dataclass(frozen=True, slots=True)
class UnreadablePlan:
    """The first mail to answer is not an envelope."""

    record: Record
    reason: str
    consumed: ConsumedMail


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run is due. If commands in the lane stop it already, it is only ended."""

    parsed: ParsedMail
    consumed: ConsumedMail
    stop_request: StopCommand | None = None


LanePlan: TypeAlias = NothingToRun | UnreadablePlan | RunPlan


def plan_lane(conversation: str, mail: Sequence[Record]) -> LanePlan:
    """Decide what to do with a lane that holds this mail, control mail first.

    Mail without a conversation cannot be answered and is unreadable.
    """
    consumed: list[MailRef] = []
    commands: list[ParsedMail] = []
    for place, record in enumerate(mail):
        parsed = _parsed_in(conversation, record)
        if isinstance(parsed, str):
            return UnreadablePlan(record, parsed, _consumed(consumed, commands))
        if parsed is not None and parsed.command is None:
            awaiting = _stops_behind(parsed, mail[place + 1 :])
            consumed += (stop.record.ref for stop in awaiting)
            commands += awaiting
            return _plan_run(parsed, _consumed(consumed, commands), commands)
        consumed.append(record.ref)
        if parsed is not None:
            commands.append(parsed)
    return NothingToRun(_consumed(consumed, commands))


def _parsed_in(conversation: str, record: Record) -> ParsedMail | str | None:
    """The mail of a lane, or why it cannot be read. `None` if it was erased."""
    parsed = None if record.erased else parse_mail(record)
    return "the mail names no conversation" if not conversation and isinstance(parsed, ParsedMail) else parsed


def _stops_behind(parsed: ParsedMail, mail: Sequence[Record]) -> list[ParsedMail]:
    """The stops that wait behind this mail and are meant for it, among the mail that the claim has returned."""
    found = (parse_mail(record) for record in mail if record.headers.get(AWAITED) and not record.erased)
    return [stop for stop in found if isinstance(stop, ParsedMail) and is_meant_for(stop.record, parsed)]


def _consumed(refs: list[MailRef], commands: list[ParsedMail]) -> ConsumedMail:
    return ConsumedMail(
        tuple(refs),
        tuple(parsed for parsed in commands if parsed.command not in (*COMMANDS, *DECISIONS, RESUME)),
        tuple(parsed for parsed in commands if parsed.command in STOPS),
        tuple(parsed for parsed in commands if parsed.command in DECISIONS),
    )


def _plan_run(parsed: ParsedMail, consumed: ConsumedMail, commands: list[ParsedMail]) -> RunPlan:
    policy = policy_of(parsed.envelope.metadata)
    stop_request: StopCommand | None = None
    for command in commands:
        if is_meant_for(command.record, parsed):
            stop_request = after_command(command.command or "", command.envelope.sender, policy, stop_request)
    return RunPlan(parsed, consumed, stop_request)


@dataclass(frozen=True, slots=True)
class LeavingMail:
    """The mail that leaves the lane with a run, and the stops among it."""

    refs: tuple[MailRef, ...]
    stops: tuple[ParsedMail, ...] = ()


class LaneMail:
    """The mail of one lane while it is worked on. Stops in it cancel the run and are passed on to its subagents.

    `stop_request` is what the commands ask for so far. It is set from `listen` on.
    """

    def __init__(
        self, bus: Engine, claimed: ClaimedLane, cancellation: RunCancellation, subagent_stop: SubagentStop
    ) -> None:
        self.stop_request: StopCommand | None = None
        self.new_commands: list[ParsedMail] = []  # commands that arrived after the claim
        self._bus = bus
        self._claimed = claimed
        self._owner = claimed.owner
        self._cancellation = cancellation
        self._subagent_stop = subagent_stop
        self._known = {record.ref for record in claimed.mail}
        self._listening_for: ParsedMail | None = None  # the mail whose run commands reach

    @property
    def final_stop(self) -> StopCommand | None:
        """The stop request, if no other command can revoke it. Where no turn is in progress, it applies at once."""
        return self.stop_request if self.stop_request is not None and self.stop_request.is_final else None

    async def read(self) -> tuple[Record, ...]:
        """Return the mail of the lane up to the first message, also if many commands stand before it."""
        claimed = self._claimed
        if claimed.pending == len(claimed.mail) or any(record.topic.startswith("chat:") for record in claimed.mail):
            return claimed.mail
        mail = await self._pending(min(claimed.pending, READ_LIMIT_MAX))
        self._known |= {record.ref for record in mail}
        return mail

    def add_command(self, record: Record) -> None:
        """Add a command that arrived after the claim. An unknown command waits in the lane for the next claim."""
        parsed = parse_mail(record)
        if record.ref in self._known or isinstance(parsed, str) or parsed.command not in COMMANDS:
            return
        self._known.add(record.ref)
        self.new_commands.append(parsed)
        if self._listening_for is not None:
            self._apply_command(parsed, self._listening_for)

    def listen(self, plan: RunPlan) -> None:
        """Apply the commands of the plan and those that arrived since, and every later one as it arrives.

        A command may arrive between the claim and this call. `add_command` keeps it, so that it is not lost.
        """
        self._listening_for = plan.parsed
        self.stop_request = plan.stop_request
        self._cancellation.apply(plan.stop_request)
        for stop in plan.consumed.stops if plan.stop_request is not None and plan.stop_request.after_turn else ():
            if is_meant_for(stop.record, plan.parsed):
                self._subagent_stop.begin_pass_on(STOP_AFTER_TURN, stop.envelope.id)
        for command in self.new_commands:
            if command.record.ref not in plan.consumed.refs:
                self._apply_command(command, plan.parsed)

    def _apply_command(self, command: ParsedMail, mail: ParsedMail) -> None:
        if not is_meant_for(command.record, mail):
            return
        policy = policy_of(mail.envelope.metadata)
        before = self.stop_request
        self.stop_request = after_command(command.command or "", command.envelope.sender, policy, before)
        if self.stop_request != before:
            self._cancellation.apply(self.stop_request)
            if self.stop_request is not None and self.stop_request.after_turn:
                self._subagent_stop.begin_pass_on(STOP_AFTER_TURN, command.envelope.id)

    def of_run(self, plan: RunPlan) -> LeavingMail:
        """Return the mail that ends with the run: the mail that it answers, and all commands that were applied."""
        commands = [parsed for parsed in self.new_commands if parsed.record.ref not in plan.consumed.refs]
        refs = (plan.parsed.record.ref, *plan.consumed.refs, *(parsed.record.ref for parsed in commands))
        stops = (*plan.consumed.stops, *(parsed for parsed in commands if parsed.command in STOPS))
        return LeavingMail(tuple(dict.fromkeys(refs)), stops)

    async def of_ended_run(self, plan: RunPlan, closing: Sequence[MailRef] = ()) -> LeavingMail:
        """Return the mail that leaves with a run that ends for good. `closing` leaves with it too.

        Every stop is passed on to the subagents first: once it has left the lane, no other owner would do it. A stop
        of the whole lane stays while mail that it is meant for still waits there.
        """
        mail = self.of_run(plan)
        for stop in mail.stops:
            if is_meant_for(stop.record, plan.parsed):
                await self._subagent_stop.pass_on(stop.command or STOP, stop.envelope.id)
        if not any(map(_stops_whole_lane, mail.stops)):
            return mail
        stay = _stops_that_stay(mail.stops, await self._pending(READ_LIMIT_MAX), {*mail.refs, *closing})
        return LeavingMail(
            tuple(ref for ref in mail.refs if ref not in stay),
            tuple(stop for stop in mail.stops if stop.record.ref not in stay),
        )

    async def _pending(self, limit: int) -> tuple[Record, ...]:
        return await retry_while_unavailable(self._bus, Pending(self._owner, limit), self._owner.token)


def _stops_whole_lane(stop: ParsedMail) -> bool:
    """Return whether a stop is meant for all mail that waited in the lane when it was sent."""
    return bool(stop.record.headers.get(WHOLE_LANE))


def _stops_that_stay(
    stops: Iterable[ParsedMail], pending: Iterable[Record], leaving: Collection[MailRef]
) -> frozenset[MailRef]:
    """Return the stops of the whole lane that are also meant for mail that stays in the lane."""
    waiting = [record.seq for record in pending if record.topic.startswith("chat:") and record.ref not in leaving]
    if not waiting:
        return frozenset()
    first = min(waiting)
    seen = {stop.record.ref: stop.record.headers.get(MAIL_SEEN) for stop in stops if _stops_whole_lane(stop)}
    return frozenset(ref for ref, seq in seen.items() if isinstance(seq, int) and first <= seq)
