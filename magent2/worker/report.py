"""What a run tells: its events on the stream, its marks in the history, and the conversation's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from magent2.bus.marks import PAUSED, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, wait_field
from magent2.bus.operations import SetHead
from magent2.bus.records import NewRecord, canonical
from magent2.models.address import stream_topic
from magent2.models.envelope import BaseStreamEvent, OutputEvent
from magent2.models.events import ApprovalEvent, ErrorEvent, RunEvent
from magent2.runner.event_mapping import short_args
from magent2.sessions.approvals import Approval
from magent2.sessions.history import RunKey, message_id_of
from magent2.sessions.stream import event_payload, payload_record, stream_record

RUN_FAILED, MALFORMED_MAIL, UNKNOWN_COMMAND = "run_failed", "malformed_mail", "unknown_command"

USAGE_MAX_CHARS = 512  # of the usage that the head repeats
DRAFTED = ("token", "output")  # events that belong to a message even when the runner does not say which
TEXTS = ("output", "message")  # events that answer what the run was asked
TALK = "message"  # the kind of runs that are part of the talk

RunStatus = Literal["started", "finished", "failed", "stopped", "restarted"]


@dataclass(frozen=True, slots=True)
class Report:
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
            fields[wait_field(self.agent)] = None  # a run that has ended waits for nobody
        if usage and len(canonical(usage)) <= USAGE_MAX_CHARS:
            fields["usage"] = dict(usage)
        return (SetHead(stream_topic(self.conversation), fields),)


def mail_error(conversation: str, agent: str, code: str, message: str) -> tuple[NewRecord, ...]:
    """An error of mail that never became a run; nothing where no conversation is known."""
    if not conversation:
        return ()
    return (stream_record(ErrorEvent(conversation_id=conversation, agent=agent, code=code, message=message)),)
