"""The mail of one lane while it is worked on: what waits there, what is commanded since, what leaves with the run."""

from __future__ import annotations

from collections.abc import Sequence

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.records import ClaimedLane, MailRef, Record
from magent2.bus.retry import retry_while_unavailable
from magent2.worker.cancellation import RunCancellation
from magent2.worker.lane_plan import (
    COMMANDS,
    STOP,
    STOP_AFTER_TURN,
    STOPS,
    ParsedMail,
    RunPlan,
    StopCommand,
    after_command,
    is_meant,
    parse_mail,
    policy_of,
)
from magent2.worker.settlement import LeavingMail
from magent2.worker.subagent_stop import SubagentStop, is_whole, unspent


class LaneMail:
    """What is in one lane. Stops in it cancel the run and are passed on to its subagents.

    `stop_request` is what the commands ask for so far. It is set once the run listens.
    """

    def __init__(
        self, bus: Engine, claimed: ClaimedLane, cancellation: RunCancellation, subagent_stop: SubagentStop
    ) -> None:
        self.stop_request: StopCommand | None = None
        self.commands_since: list[ParsedMail] = []  # commands that came while the lane was worked on
        self._bus = bus
        self._claimed = claimed
        self._owner = claimed.owner
        self._cancellation = cancellation
        self._subagent_stop = subagent_stop
        self._known = {record.ref for record in claimed.mail}
        self._parsed: ParsedMail | None = None

    async def read(self) -> tuple[Record, ...]:
        """The lane's mail with its head, also where many commands stand before it."""
        claimed = self._claimed
        if claimed.pending == len(claimed.mail) or any(record.topic.startswith("chat:") for record in claimed.mail):
            return claimed.mail
        pending = Pending(self._owner, min(claimed.pending, READ_LIMIT_MAX))
        mail = await retry_while_unavailable(self._bus, pending, self._owner.token)
        self._known |= {record.ref for record in mail}
        return mail

    def add_command(self, record: Record) -> None:
        """A command that came after the claim. One that is not understood waits in the lane for the next claim."""
        parsed = parse_mail(record)
        if record.ref in self._known or isinstance(parsed, str) or parsed.command not in COMMANDS:
            return
        self._known.add(record.ref)
        self.commands_since.append(parsed)
        if self._parsed is not None:
            self._apply_command(parsed, self._parsed)

    def listen(self, plan: RunPlan) -> None:
        """From here on commands reach the run; those that came meanwhile are heard now."""
        self._parsed = plan.parsed
        self.stop_request = plan.stop_request
        self._cancellation.apply(plan.stop_request)
        for stop in plan.consumed.stops if plan.stop_request is not None and plan.stop_request.after_turn else ():
            if is_meant(stop.record, plan.parsed):
                self._subagent_stop.begin_pass_on(STOP_AFTER_TURN, stop.envelope.id)
        for command in self.commands_since:
            if command.record.ref not in plan.consumed.refs:
                self._apply_command(command, plan.parsed)

    def _apply_command(self, command: ParsedMail, parsed: ParsedMail) -> None:
        if not is_meant(command.record, parsed):
            return
        policy = policy_of(parsed.envelope.metadata)
        before = self.stop_request
        self.stop_request = after_command(command.command or "", command.envelope.sender, policy, before)
        if self.stop_request != before:
            self._cancellation.apply(self.stop_request)
            if self.stop_request is not None and self.stop_request.after_turn:
                self._subagent_stop.begin_pass_on(STOP_AFTER_TURN, command.envelope.id)

    def of_run(self, plan: RunPlan) -> LeavingMail:
        """All that ends with the run: its mail, and the commands that were heard."""
        commands_since = [parsed for parsed in self.commands_since if parsed.record.ref not in plan.consumed.refs]
        refs = (plan.parsed.record.ref, *plan.consumed.refs, *(parsed.record.ref for parsed in commands_since))
        stops = (*plan.consumed.stops, *(parsed for parsed in commands_since if parsed.command in STOPS))
        return LeavingMail(tuple(dict.fromkeys(refs)), stops)

    async def taken(self, plan: RunPlan, closing: Sequence[MailRef] = ()) -> LeavingMail:
        """`of_run`, when the run ends for good. Stops have gone on by then; those that are meant for more stay."""
        mail = self.of_run(plan)
        for stop in mail.stops:
            if is_meant(stop.record, plan.parsed):
                await self._subagent_stop.pass_on(stop.command or STOP, stop.envelope.id)
        if not any(map(is_whole, mail.stops)):
            return mail
        pending = await retry_while_unavailable(self._bus, Pending(self._owner, READ_LIMIT_MAX), self._owner.token)
        stay = unspent(mail.stops, pending, {*mail.refs, *closing})
        return LeavingMail(
            tuple(ref for ref in mail.refs if ref not in stay),
            tuple(stop for stop in mail.stops if stop.record.ref not in stay),
        )
