"""What a run tells: its events on the stream, its marks in the history, and the conversation's head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from magent2.bus.lane_writer import LaneWriter
from magent2.bus.operations import SetHead
from magent2.bus.records import NewRecord, canonical
from magent2.mail.headers import PAUSED, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, wait_field
from magent2.models.address import stream_topic
from magent2.models.envelope import BaseStreamEvent, OutputEvent
from magent2.models.events import ApprovalEvent, ErrorEvent, ReceiptEvent, ReceivedMessage, RunEvent
from magent2.runner.event_mapping import short_args
from magent2.runner.run_stream import Event
from magent2.sessions.approvals import Approval
from magent2.sessions.history import RunKey, message_id_of
from magent2.sessions.stream import event_payload, payload_record, stream_record
from magent2.worker.lane_plan import ParsedMail, is_meant
from magent2.worker.runner_adapter import check_event

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedRun

RUN_FAILED, MALFORMED_MAIL, UNKNOWN_COMMAND = "run_failed", "malformed_mail", "unknown_command"

USAGE_MAX_CHARS = 512  # of the usage that the head repeats
DRAFTED = ("token", "output")  # events that belong to a message even when the runner does not say which
TEXTS = ("output", "message")  # events that answer what the run was asked
TALK = "message"  # the kind of runs that are part of the talk

RunStatus = Literal["started", "finished", "failed", "stopped", "restarted"]


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The records of one attempt."""

    conversation: str
    agent: str
    run_id: str
    attempt: int
    envelope_id: str
    kind: str = TALK  # what the mail's header says it is

    @property
    def key(self) -> RunKey:
        return RunKey(self.conversation, self.run_id, self.agent)

    @property
    def fields(self) -> dict[str, Any]:
        """Where an event of the attempt belongs."""
        return {"run_id": self.run_id, "attempt": self.attempt, "agent": self.agent}

    def event(self, event: BaseStreamEvent | Mapping[str, Any]) -> NewRecord:
        """What a runner yields, with what it does not know itself."""
        payload = event_payload(event)
        payload["conversation_id"] = self.conversation
        payload.setdefault("run_id", self.run_id)
        payload.setdefault("attempt", self.attempt)
        payload.setdefault("agent", self.agent)
        if "message_id" not in payload and payload.get("event") in DRAFTED:
            payload["message_id"] = message_id_of(self.run_id, 0)
        if payload.get("event") in TEXTS:
            payload.setdefault("reply_to", self.envelope_id)
        if self.kind != TALK:
            payload.setdefault("run_kind", self.kind)
        return payload_record(payload)

    def output(self, text: str) -> NewRecord:
        return self.event(OutputEvent(conversation_id=self.conversation, text=text))

    def run(self, status: RunStatus, reason: str | None = None) -> NewRecord:
        return stream_record(
            RunEvent(
                conversation_id=self.conversation,
                run_id=self.run_id,
                attempt=self.attempt,
                agent=self.agent,
                status=status,
                envelope_id=self.envelope_id,
                reason=reason,
                run_kind=None if self.kind == TALK else self.kind,
            )
        )

    def error(self, message: str, retry_in_s: float | None = None) -> NewRecord:
        return stream_record(
            ErrorEvent(
                conversation_id=self.conversation,
                run_id=self.run_id,
                attempt=self.attempt,
                agent=self.agent,
                code=RUN_FAILED,
                message=message,
                retry_in_s=retry_in_s,
            )
        )

    def approval(self, approval: Approval) -> NewRecord:
        return stream_record(
            ApprovalEvent(
                conversation_id=self.conversation,
                run_id=self.run_id,
                attempt=self.attempt,
                agent=approval.speaker,
                turn=approval.turn,
                status="requested" if approval.status == "pending" else approval.status,
                tool_call_id=approval.call_id,
                name=approval.name,
                args=short_args(approval.arguments),
                expires_at=approval.expires_at,
                decided_by=approval.decided_by,
                reason=approval.reason,
            )
        )

    def head(
        self, status: str, usage: Mapping[str, Any] | None = None, *, paused: int | None = None
    ) -> tuple[SetHead, ...]:
        """The conversation's head says how its last run stands. A usage too long for a head stays in its event."""
        fields: dict[str, Any] = {
            RUN_STATUS: status,
            RUN_AGENT: self.agent,
            RUN_ENVELOPE: self.envelope_id,
            PAUSED: paused,
        }
        if status != RUNNING:
            fields[wait_field(self.agent)] = None  # a run that has ended waits for no answer
        if usage and len(canonical(usage)) <= USAGE_MAX_CHARS:
            fields["usage"] = dict(usage)
        return (SetHead(stream_topic(self.conversation), fields),)


def mail_error(conversation: str, agent: str, code: str, message: str) -> tuple[NewRecord, ...]:
    """An error of mail that never became a run; nothing where no conversation is known."""
    if not conversation:
        return ()
    return (stream_record(ErrorEvent(conversation_id=conversation, agent=agent, code=code, message=message)),)


class RunEventWriter:
    """Writes the events of one attempt into the lane's writer, and keeps what its end needs: text and usage.

    An output is held back until the next event or the end, so that the last one is part of the append that settles the
    run: a reader never sees an output of a run that is still running.
    """

    def __init__(self, events: RunEvents, writer: LaneWriter, observed: ObservedRun | None = None) -> None:
        self._events = events
        self._writer = writer
        self._observed = observed
        self._pieces: list[str] = []
        self._held: NewRecord | None = None
        self._output: Mapping[str, Any] | None = None

    def offer(self, event: Event) -> bool:
        """Write the event if the run is not too far ahead of the bus. Return whether it was written."""
        if self._writer.full():
            return False
        if due := self._due(event):
            self._writer.put_nowait(*due)
        return True

    async def write(self, event: Event) -> None:
        """Write the event, after waiting for room."""
        if due := self._due(event):
            await self._writer.put(*due)

    async def drain(self) -> None:
        """Return at once: events and commits wait in the same queue, the one of the lane's writer."""

    def _due(self, event: Event) -> list[NewRecord]:
        """The records to write after this event."""
        record = self._events.event(event if isinstance(event, dict) else check_event(event))
        held, self._held = self._held, None
        due = [record] if held is None else [held, record]
        kind = record.payload.get("event")
        if kind == "token":
            if not self._pieces and self._observed is not None:
                self._observed.token_received()
            self._pieces.append(str(record.payload.get("text", "")))
        elif kind == "output":
            self._held, self._output = due.pop(), record.payload
        return due

    def close(self) -> list[NewRecord]:
        """What is left to write. A runner that gave no output has one, of its tokens."""
        if self._output is None:
            self._held = self._events.output("".join(self._pieces))
            self._output = self._held.payload
        return [] if self._held is None else [self._held]

    @property
    def text(self) -> str:
        return "" if self._output is None else str(self._output.get("text", ""))

    @property
    def usage(self) -> Mapping[str, Any] | None:
        usage = None if self._output is None else self._output.get("usage")
        return usage if isinstance(usage, Mapping) else None


# --- Receipts: the event that says what became of a steer or a stop. Pure.

StopOutcome = Literal["stopped", "too_late", "nothing_to_stop"]


def input_receipt(conversation: str, parsed: ParsedMail, fields: Mapping[str, Any]) -> NewRecord:
    """Of a steer that came too late for a turn, and is what this run was asked."""
    envelope, seq = parsed.envelope, parsed.record.seq
    message = ReceivedMessage(
        id=envelope.id, source=envelope.sender, seq=seq, outcome="input", text=envelope.content or ""
    )
    return _event(conversation, [message], fields)


def stop_receipts(
    conversation: str,
    stops: Iterable[ParsedMail],
    outcome: StopOutcome,
    parsed: ParsedMail | None = None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[NewRecord, ...]:
    """Of stops that leave the lane while this mail was worked on. Those that were meant for another say so."""
    messages = [
        ReceivedMessage(
            id=stop.envelope.id,
            source=stop.envelope.sender,
            seq=stop.record.seq,
            outcome=outcome if parsed is None or is_meant(stop.record, parsed) else "not_meant",
            command=stop.command,
        )
        for stop in stops
    ]
    return (_event(conversation, messages, fields or {}),) if messages and conversation else ()


def _event(conversation: str, messages: list[ReceivedMessage], fields: Mapping[str, Any]) -> NewRecord:
    return stream_record(ReceiptEvent(conversation_id=conversation, messages=messages), fields)
