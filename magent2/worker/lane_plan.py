"""What a claimed lane asks for, decided before anything is done. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError

from magent2.bus.records import MailRef, Record
from magent2.mail.headers import MAIL_SEEN, TARGET_ENVELOPE
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.approvals import DECISIONS

REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Letter:
    """Mail that could be read."""

    record: Record
    envelope: MessageEnvelope

    @property
    def command(self) -> str | None:
        """What it commands, if it is control."""
        if self.envelope.type != "control" and not self.record.topic.startswith("control:"):
            return None
        return (self.envelope.content or "").strip()


@dataclass(frozen=True, slots=True)
class Spent:
    """Mail that goes with whatever is settled next, which of it nobody understood, and which is to be answered for."""

    refs: tuple[MailRef, ...] = ()
    unknown: tuple[Letter, ...] = ()
    stops: tuple[Letter, ...] = ()
    decisions: tuple[Letter, ...] = ()


@dataclass(frozen=True, slots=True)
class Clear:
    """There is nothing to answer."""

    spent: Spent


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Mail that is no envelope."""

    record: Record
    reason: str
    spent: Spent


@dataclass(frozen=True, slots=True)
class Answer:
    """A run is due: to be done, or, when it was stopped already, to be ended."""

    letter: Letter
    spent: Spent
    halt: Halt | None = None


Plan: TypeAlias = Clear | Unreadable | Answer


def plan_lane(conversation: str, mail: Sequence[Record]) -> Plan:
    """What to do with a lane that holds this mail, control first. Mail without a conversation cannot be answered."""
    spent: list[MailRef] = []
    commands: list[Letter] = []
    for record in mail:
        letter = None if record.erased else read_letter(record)
        if not conversation and isinstance(letter, Letter):
            letter = "the mail names no conversation"
        if isinstance(letter, str):
            return Unreadable(record, letter, _spent(spent, commands))
        if letter is not None and letter.command is None:
            return _answer(letter, _spent(spent, commands), commands)
        spent.append(record.ref)
        if letter is not None:
            commands.append(letter)
    return Clear(_spent(spent, commands))


def _spent(refs: list[MailRef], commands: list[Letter]) -> Spent:
    return Spent(
        tuple(refs),
        tuple(letter for letter in commands if letter.command not in (*COMMANDS, *DECISIONS)),
        tuple(letter for letter in commands if letter.command in STOPS),
        tuple(letter for letter in commands if letter.command in DECISIONS),
    )


def _answer(letter: Letter, spent: Spent, commands: list[Letter]) -> Answer:
    policy = policy_of(letter.envelope.metadata)
    halt: Halt | None = None
    for command in commands:
        if is_meant(command.record, letter):
            halt = after_command(command.command or "", command.envelope.sender, policy, halt)
    return Answer(letter, spent, halt)


def is_meant(command: Record, letter: Letter) -> bool:
    """Whether a command was meant for this mail: its sender saw it run, or, when nothing ran, saw it at all.

    One that does not say what its sender had seen (it was published without delivery) is compared by the clock, which
    may have been set in between.
    """
    meant, seen, mail = command.headers.get(TARGET_ENVELOPE), command.headers.get(MAIL_SEEN), letter.record
    if meant is not None:
        return meant == letter.envelope.id
    if isinstance(seen, int) and command.topic != mail.topic:
        return mail.seq <= seen
    return command.at_ms >= mail.at_ms


def read_letter(record: Record) -> Letter | str:
    """The mail as an envelope, or why it is none."""
    if record.malformed:
        return f"the record cannot be read: {record.malformed}"
    try:
        envelope = MessageEnvelope.model_validate({"id": record.id, **record.payload})
    except ValidationError as error:
        return f"not an envelope: {_reasons(error)}"
    return Letter(record, envelope) if envelope.id else "not an envelope: id is empty"


def _reasons(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        f"{'.'.join(str(step) for step in fault['loc'])}: {fault['msg']}" for fault in faults[:REASONS_SHOWN]
    )


# --- Commands to a run under way: control mail, and what it means for the run. Pure.

log = logging.getLogger(__name__)

STOP, STOP_AFTER_TURN = "stop", "stop_after_turn"
DISCONNECTED, CONNECTED = "disconnected", "connected"
STOPS = (STOP, STOP_AFTER_TURN)
COMMANDS = (STOP, STOP_AFTER_TURN, DISCONNECTED, CONNECTED)

GRACE_S, GRACE_MAX_S = 30.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Halt:
    """The run is to stop: now, in some seconds unless another command comes first, or before its next turn."""

    reason: str
    in_s: float = 0.0
    after_turn: bool = False

    @property
    def is_now(self) -> bool:
        return not self.in_s and not self.after_turn

    @property
    def is_final(self) -> bool:
        """No other command takes it back."""
        return self.is_now or self.after_turn


@dataclass(frozen=True, slots=True)
class Policy:
    """What a disconnect does to a run."""

    kind: Literal["detach", "cancel", "grace"] = "detach"
    grace_s: float = GRACE_S


def policy_of(metadata: Mapping[str, Any]) -> Policy:
    """The policy that mail asks for. What nobody knows is `detach`: work that was asked for is not thrown away."""
    kind = metadata.get("on_disconnect", "detach")
    if kind == "cancel":
        return Policy("cancel")
    if kind == "grace":
        return Policy("grace", _grace_s(metadata.get("grace_s")))
    if kind != "detach":
        log.warning("unknown disconnect policy, taken as detach", extra={"policy": str(kind)[:80]})
    return Policy()


def _grace_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GRACE_MAX_S:
        return GRACE_S
    return float(value)


def after_command(command: str, sender: str, policy: Policy, halt: Halt | None = None) -> Halt | None:
    """What holds for the run after this command, when `halt` held before it. A stop is not taken back."""
    if halt is not None and halt.is_now:
        return halt
    if command == STOP:
        return Halt(f"stopped by {sender}")
    if halt is not None and halt.after_turn:
        return halt
    if command == STOP_AFTER_TURN:
        return Halt(f"stopped by {sender} after its turn", after_turn=True)
    return _after_reader(command, policy, halt)


def _after_reader(command: str, policy: Policy, halt: Halt | None) -> Halt | None:
    """What follows from whoever asked being gone, or back."""
    if command == CONNECTED:
        return None
    if command == DISCONNECTED and policy.kind == "cancel":
        return Halt("its reader has disconnected")
    if command == DISCONNECTED and policy.kind == "grace":
        return Halt(f"its reader was gone for {policy.grace_s:g} s", policy.grace_s)
    return halt
