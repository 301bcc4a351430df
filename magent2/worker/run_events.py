"""The events of a run: as records of the stream, as fields of the conversation's head, and their writer.

`RunEvents` builds the records of one attempt. The receipt functions build the events that report what became of steers
and stops. `RunEventWriter` writes the events that a runner yields.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from magent2.bus.lane_writer import LaneWriter
from magent2.bus.operations import SetHead
from magent2.bus.records import NewRecord, canonical, is_draft_name
from magent2.errors import PayloadError
from magent2.mail.headers import BUDGET, CLIENT_CALLS, PAUSED, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, wait_field
from magent2.models.address import stream_topic
from magent2.models.envelope import OutputEvent, utc_timestamp
from magent2.models.events import ApprovalEvent, ClientCallEvent, ErrorEvent, ReceiptEvent, ReceivedMessage
from magent2.models.json_types import JsonObject, storable
from magent2.runner.context import TALK
from magent2.runner.event_mapping import short_args
from magent2.runner.run_stream import Event
from magent2.sessions.approvals import Approval
from magent2.sessions.history import RunKey, message_id_of
from magent2.sessions.stream import event_payload, payload_record, stream_record
from magent2.worker.lane_mail import ParsedMail, is_meant_for
from magent2.worker.runner_adapter import check_event

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedRun

RUN_FAILED, MALFORMED_MAIL, UNKNOWN_COMMAND = "run_failed", "malformed_mail", "unknown_command"

USAGE_MAX_CHARS = 512  # the longest usage that the head repeats
MESSAGE_PARTS = ("token", "output")  # events that get the id of the run's message if the runner names none
REPLIES = ("output", "message")  # events that reply to the envelope of the run

RunStatus = Literal["started", "finished", "failed", "stopped", "restarted"]


class WaitingCalls(NamedTuple):
    """How many calls a paused run waits for: those `of_client` for an output of the client, the others for approval."""

    number: int
    of_client: int = 0


StopOutcome = Literal["stopped", "too_late", "nothing_to_stop"]


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Builds the stream records and head fields of one attempt at a run."""

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
    def fields(self) -> Mapping[str, object]:
        """The fields that say to which attempt an event belongs."""
        return {"run_id": self.run_id, "attempt": self.attempt, "agent": self.agent}

    def event(self, event: Event) -> NewRecord:
        """Return an event of the runner as a record, with the fields that the runner left out.

        An event only reports. What a record cannot hold becomes text: it must not end the run.
        """
        payload = event_payload(event)
        payload["conversation_id"] = self.conversation
        for name in ("run_id", "message_id"):
            if name in payload and not is_draft_name(payload[name]):
                del payload[name]
        payload.setdefault("run_id", self.run_id)
        payload.setdefault("attempt", self.attempt)
        payload.setdefault("agent", self.agent)
        if "message_id" not in payload and payload.get("event") in MESSAGE_PARTS:
            payload["message_id"] = message_id_of(self.run_id, 0)
        if payload.get("event") in REPLIES:
            payload.setdefault("reply_to", self.envelope_id)
        if self.kind != TALK:
            payload.setdefault("run_kind", self.kind)
        return _storable_record(payload)

    def output(self, text: str) -> NewRecord:
        return self.event(OutputEvent(conversation_id=self.conversation, text=text))

    def run(self, status: RunStatus, reason: str | None = None) -> NewRecord:
        """Return the event `RunEvent`, built as JSON because every run has two. A test compares the two forms."""
        return _storable_record(
            {
                "id": str(uuid.uuid4()),
                "conversation_id": self.conversation,
                "created_at": utc_timestamp(),
                **self.fields,
                **({} if self.kind == TALK else {"run_kind": self.kind}),
                "event": "run",
                "status": status,
                "envelope_id": self.envelope_id,
                **({} if reason is None else {"reason": reason}),
            }
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

    def client_calls(
        self, calls: Sequence[Approval], usage: Mapping[str, object] | None, *, waits: bool = True
    ) -> list[NewRecord]:
        """The events that ask the client for the outputs of its tools, or that end the run with the calls."""
        shown = dict(usage) if usage is not None else None
        return [self.client_call(call, index, len(calls), shown, waits=waits) for index, call in enumerate(calls)]

    def client_call(
        self,
        call: Approval,
        index: int = 0,
        count: int = 1,
        usage: JsonObject | None = None,
        *,
        waits: bool = True,
    ) -> NewRecord:
        answered: Literal["answered", "expired"] = "expired" if call.status == "expired" else "answered"
        return stream_record(
            ClientCallEvent(
                conversation_id=self.conversation,
                run_id=self.run_id,
                attempt=self.attempt,
                agent=call.speaker,
                turn=call.turn,
                status="requested" if call.status == "pending" else answered,
                envelope_id=self.envelope_id,
                tool_call_id=call.call_id,
                name=call.name,
                arguments=call.arguments if call.status == "pending" else "",
                index=index,
                count=count,
                expires_at=call.expires_at if waits else None,
                usage=usage,
            )
        )

    def head(
        self,
        status: str,
        usage: Mapping[str, object] | None = None,
        *,
        paused: WaitingCalls | None = None,
        budget: str | None = None,
    ) -> tuple[SetHead, ...]:
        """Return the head fields that show the status of the conversation's last run.

        `paused` are the calls that it waits for, `budget` the kind of budget that it waits for. A usage
        that is too long for a head is left out.
        """
        fields: dict[str, object] = {
            RUN_STATUS: status,
            RUN_AGENT: self.agent,
            RUN_ENVELOPE: self.envelope_id,
            PAUSED: None if paused is None else paused.number,
            CLIENT_CALLS: None if paused is None else paused.of_client or None,
            BUDGET: budget,
        }
        if status != RUNNING:
            fields[wait_field(self.agent)] = None  # a run that has ended does not wait any more
        if usage and len(canonical(usage)) <= USAGE_MAX_CHARS:
            fields["usage"] = dict(usage)
        return (SetHead(stream_topic(self.conversation), fields),)


def _storable_record(payload: JsonObject) -> NewRecord:
    try:
        return payload_record(payload)
    except PayloadError:
        return payload_record(storable(payload))


def mail_error(conversation: str, agent: str, code: str, message: str) -> tuple[NewRecord, ...]:
    """Return the error event of mail that did not become a run; nothing if its conversation is unknown."""
    if not conversation:
        return ()
    return (stream_record(ErrorEvent(conversation_id=conversation, agent=agent, code=code, message=message)),)


def input_receipt(conversation: str, parsed: ParsedMail, fields: Mapping[str, object]) -> NewRecord:
    """Return the receipt of a steer that came too late for a turn and is the input of this run."""
    envelope, seq = parsed.envelope, parsed.record.seq
    message = ReceivedMessage(
        id=envelope.id, source=envelope.sender, seq=seq, outcome="input", text=envelope.content or ""
    )
    return stream_record(ReceiptEvent(conversation_id=conversation, messages=[message]), fields)


def stop_receipts(
    conversation: str,
    stops: Iterable[ParsedMail],
    outcome: StopOutcome,
    parsed: ParsedMail | None = None,
    fields: Mapping[str, object] | None = None,
) -> tuple[NewRecord, ...]:
    """Return the receipts of stops that leave the lane. Stops that were not meant for the mail `parsed` say so."""
    messages = [
        ReceivedMessage(
            id=stop.envelope.id,
            source=stop.envelope.sender,
            seq=stop.record.seq,
            outcome=outcome if parsed is None or is_meant_for(stop.record, parsed) else "not_meant",
            command=stop.command,
        )
        for stop in stops
    ]
    if not messages or not conversation:
        return ()
    return (stream_record(ReceiptEvent(conversation_id=conversation, messages=messages), fields or {}),)


class RunEventWriter:
    """Writes the events of one attempt into the lane's writer, and keeps text and usage for the end of the run.

    An output is held back until the next event or the end. So the last output is part of the append that settles the
    run: a reader never sees the output of a run that is still running.
    """

    def __init__(self, events: RunEvents, writer: LaneWriter, observed: ObservedRun | None = None) -> None:
        self._events = events
        self._writer = writer
        self._observed = observed
        self._pieces: list[str] = []
        self._held: NewRecord | None = None
        self._output: Mapping[str, object] | None = None

    def offer(self, event: Event) -> bool:
        """Write the event if the run is not too far ahead of the bus. Return whether it was written."""
        if self._writer.full():
            return False
        if due := self._due(event):
            self._writer.put_nowait(*due)
        return True

    def offer_token(self, token: JsonObject) -> bool:
        """`offer` for a token that has all its fields as JSON already. The record keeps the dict."""
        if self._writer.full():
            return False
        if self._held is not None:
            held, self._held = self._held, None
            self._writer.put_nowait(held)
        self._note_text(token["text"])
        self._writer.put_nowait(payload_record(token))
        return True

    async def write(self, event: Event) -> None:
        """Write the event, after waiting for room."""
        if due := self._due(event):
            await self._writer.put(*due)

    async def drain(self) -> None:
        """Return at once: events and commits wait in the same queue, the one of the lane's writer."""

    def _due(self, event: Event) -> list[NewRecord]:
        """Return the records to write now: a held output, and this event unless it is held itself."""
        record = self._events.event(event if isinstance(event, dict) else check_event(event))
        held, self._held = self._held, None
        due = [record] if held is None else [held, record]
        kind = record.payload.get("event")
        if kind == "token":
            self._note_text(str(record.payload.get("text", "")))
        elif kind == "output":
            self._held, self._output = due.pop(), record.payload
        return due

    def _note_text(self, text: str) -> None:
        if not self._pieces and self._observed is not None:
            self._observed.token_received()
        self._pieces.append(text)

    def close(self) -> list[NewRecord]:
        """Return the held output. If the runner gave no output, one is made of its tokens."""
        if self._output is None:
            self._held = self._events.output("".join(self._pieces))
            self._output = self._held.payload
        return [] if self._held is None else [self._held]

    @property
    def text(self) -> str:
        return "" if self._output is None else str(self._output.get("text", ""))

    @property
    def usage(self) -> Mapping[str, object] | None:
        usage = None if self._output is None else self._output.get("usage")
        return usage if isinstance(usage, Mapping) else None
