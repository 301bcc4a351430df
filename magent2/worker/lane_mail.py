"""The mail of one lane while it is worked on: what waits there, what is commanded since, what leaves with the run."""

from __future__ import annotations

from collections.abc import Sequence

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.records import ClaimedLane, MailRef, Record
from magent2.bus.retry import retry_while_unavailable
from magent2.worker.cancellation import Brake
from magent2.worker.lane_plan import (
    COMMANDS,
    STOP,
    STOP_AFTER_TURN,
    STOPS,
    Answer,
    Halt,
    Letter,
    after_command,
    is_meant,
    policy_of,
    read_letter,
)
from magent2.worker.settlement import Taken
from magent2.worker.subagent_stop import Below, is_whole, unspent


class LaneMail:
    """What is in one lane. Commands in it pull the brake of the run and are passed on below.

    `halt` is what they ask for by now, of a run that listens.
    """

    def __init__(self, bus: Engine, claimed: ClaimedLane, brake: Brake, below: Below) -> None:
        self.halt: Halt | None = None
        self.heard: list[Letter] = []  # commands that came while the lane was worked on
        self._bus = bus
        self._claimed = claimed
        self._owner = claimed.owner
        self._brake = brake
        self._below = below
        self._known = {record.ref for record in claimed.mail}
        self._letter: Letter | None = None

    async def read(self) -> tuple[Record, ...]:
        """The lane's mail with its head, also where many commands stand before it."""
        claimed = self._claimed
        if claimed.pending == len(claimed.mail) or any(record.topic.startswith("chat:") for record in claimed.mail):
            return claimed.mail
        pending = Pending(self._owner, min(claimed.pending, READ_LIMIT_MAX))
        mail = await retry_while_unavailable(self._bus, pending, self._owner.token)
        self._known |= {record.ref for record in mail}
        return mail

    def hear(self, record: Record) -> None:
        """A command that came after the claim. One that is not understood waits in the lane for the next claim."""
        letter = read_letter(record)
        if record.ref in self._known or isinstance(letter, str) or letter.command not in COMMANDS:
            return
        self._known.add(record.ref)
        self.heard.append(letter)
        if self._letter is not None:
            self._obey(letter, self._letter)

    def listen(self, plan: Answer) -> None:
        """From here on commands reach the run; those that came meanwhile are heard now."""
        self._letter = plan.letter
        self.halt = plan.halt
        self._brake.halt(plan.halt)
        for stop in plan.spent.stops if plan.halt is not None and plan.halt.after_turn else ():
            if is_meant(stop.record, plan.letter):
                self._below.begin_to_tell(STOP_AFTER_TURN, stop.envelope.id)
        for command in self.heard:
            if command.record.ref not in plan.spent.refs:
                self._obey(command, plan.letter)

    def _obey(self, command: Letter, letter: Letter) -> None:
        if not is_meant(command.record, letter):
            return
        policy = policy_of(letter.envelope.metadata)
        before = self.halt
        self.halt = after_command(command.command or "", command.envelope.sender, policy, before)
        if self.halt != before:
            self._brake.halt(self.halt)
            if self.halt is not None and self.halt.after_turn:
                self._below.begin_to_tell(STOP_AFTER_TURN, command.envelope.id)

    def of_run(self, plan: Answer) -> Taken:
        """All that ends with the run: its mail, and the commands that were heard."""
        heard = [letter for letter in self.heard if letter.record.ref not in plan.spent.refs]
        refs = (plan.letter.record.ref, *plan.spent.refs, *(letter.record.ref for letter in heard))
        stops = (*plan.spent.stops, *(letter for letter in heard if letter.command in STOPS))
        return Taken(tuple(dict.fromkeys(refs)), stops)

    async def taken(self, plan: Answer, closing: Sequence[MailRef] = ()) -> Taken:
        """`of_run`, when the run ends for good. Stops have gone on by then; those that are meant for more stay."""
        mail = self.of_run(plan)
        for stop in mail.stops:
            if is_meant(stop.record, plan.letter):
                await self._below.tell(stop.command or STOP, stop.envelope.id)
        if not any(map(is_whole, mail.stops)):
            return mail
        pending = await retry_while_unavailable(self._bus, Pending(self._owner, READ_LIMIT_MAX), self._owner.token)
        stay = unspent(mail.stops, pending, {*mail.refs, *closing})
        return Taken(
            tuple(ref for ref in mail.refs if ref not in stay),
            tuple(stop for stop in mail.stops if stop.record.ref not in stay),
        )
