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
class ParsedMail:
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
class ConsumedMail:
    """Mail that the next settlement removes, which of it was not understood, and which needs a receipt."""

    refs: tuple[MailRef, ...] = ()
    unknown: tuple[ParsedMail, ...] = ()
    stops: tuple[ParsedMail, ...] = ()
    decisions: tuple[ParsedMail, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingToRun:
    """There is nothing to answer."""

    consumed: ConsumedMail


@dataclass(frozen=True, slots=True)
class UnreadablePlan:
    """Mail that is no envelope."""

    record: Record
    reason: str
    consumed: ConsumedMail


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run is due: to be done, or, when it was stopped already, to be ended."""

    parsed: ParsedMail
    consumed: ConsumedMail
    stop_request: StopCommand | None = None


LanePlan: TypeAlias = NothingToRun | UnreadablePlan | RunPlan


def plan_lane(conversation: str, mail: Sequence[Record]) -> LanePlan:
    """What to do with a lane that holds this mail, control first. Mail without a conversation cannot be answered."""
    consumed: list[MailRef] = []
    commands: list[ParsedMail] = []
    for record in mail:
        parsed = None if record.erased else parse_mail(record)
        if not conversation and isinstance(parsed, ParsedMail):
            parsed = "the mail names no conversation"
        if isinstance(parsed, str):
            return UnreadablePlan(record, parsed, _consumed(consumed, commands))
        if parsed is not None and parsed.command is None:
            return _answer(parsed, _consumed(consumed, commands), commands)
        consumed.append(record.ref)
        if parsed is not None:
            commands.append(parsed)
    return NothingToRun(_consumed(consumed, commands))


def _consumed(refs: list[MailRef], commands: list[ParsedMail]) -> ConsumedMail:
    return ConsumedMail(
        tuple(refs),
        tuple(parsed for parsed in commands if parsed.command not in (*COMMANDS, *DECISIONS)),
        tuple(parsed for parsed in commands if parsed.command in STOPS),
        tuple(parsed for parsed in commands if parsed.command in DECISIONS),
    )


def _answer(parsed: ParsedMail, consumed: ConsumedMail, commands: list[ParsedMail]) -> RunPlan:
    policy = policy_of(parsed.envelope.metadata)
    stop_request: StopCommand | None = None
    for command in commands:
        if is_meant(command.record, parsed):
            stop_request = after_command(command.command or "", command.envelope.sender, policy, stop_request)
    return RunPlan(parsed, consumed, stop_request)


def is_meant(command: Record, parsed: ParsedMail) -> bool:
    """Whether a command was meant for this mail: its sender saw it run, or, when nothing ran, saw it at all.

    One that does not say what its sender had seen (it was published without delivery) is compared by the clock, which
    may have been set in between.
    """
    meant, seen, mail = command.headers.get(TARGET_ENVELOPE), command.headers.get(MAIL_SEEN), parsed.record
    if meant is not None:
        return meant == parsed.envelope.id
    if isinstance(seen, int) and command.topic != mail.topic:
        return mail.seq <= seen
    return command.at_ms >= mail.at_ms


def parse_mail(record: Record) -> ParsedMail | str:
    """The mail as an envelope, or why it is none."""
    if record.malformed:
        return f"the record cannot be read: {record.malformed}"
    try:
        envelope = MessageEnvelope.model_validate({"id": record.id, **record.payload})
    except ValidationError as error:
        return f"not an envelope: {_reasons(error)}"
    return ParsedMail(record, envelope) if envelope.id else "not an envelope: id is empty"


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
class StopCommand:
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
class DisconnectPolicy:
    """What a disconnect does to a run."""

    kind: Literal["detach", "cancel", "grace"] = "detach"
    grace_s: float = GRACE_S


def policy_of(metadata: Mapping[str, Any]) -> DisconnectPolicy:
    """Return the disconnect policy of a message. An unknown policy is `detach`, so that requested work is not lost."""
    kind = metadata.get("on_disconnect", "detach")
    if kind == "cancel":
        return DisconnectPolicy("cancel")
    if kind == "grace":
        return DisconnectPolicy("grace", _grace_s(metadata.get("grace_s")))
    if kind != "detach":
        log.warning("unknown disconnect policy, taken as detach", extra={"policy": str(kind)[:80]})
    return DisconnectPolicy()


def _grace_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GRACE_MAX_S:
        return GRACE_S
    return float(value)


def after_command(
    command: str, sender: str, policy: DisconnectPolicy, stop_request: StopCommand | None = None
) -> StopCommand | None:
    """What holds for the run after this command, when `stop_request` held before it. A stop is not taken back."""
    if stop_request is not None and stop_request.is_now:
        return stop_request
    if command == STOP:
        return StopCommand(f"stopped by {sender}")
    if stop_request is not None and stop_request.after_turn:
        return stop_request
    if command == STOP_AFTER_TURN:
        return StopCommand(f"stopped by {sender} after its turn", after_turn=True)
    return _after_reader(command, policy, stop_request)


def _after_reader(command: str, policy: DisconnectPolicy, stop_request: StopCommand | None) -> StopCommand | None:
    """Return the stop command after the client disconnected or came back."""
    if command == CONNECTED:
        return None
    if command == DISCONNECTED and policy.kind == "cancel":
        return StopCommand("its reader has disconnected")
    if command == DISCONNECTED and policy.kind == "grace":
        return StopCommand(f"its reader was gone for {policy.grace_s:g} s", policy.grace_s)
    return stop_request
