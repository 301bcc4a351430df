"""Receipts: the event that says what became of a steer or a stop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from magent2.bus.records import NewRecord
from magent2.models.events import ReceiptEvent, ReceivedMessage
from magent2.sessions.stream import stream_record
from magent2.worker.plan import Letter, is_meant

StopOutcome = Literal["stopped", "too_late", "nothing_to_stop"]


def input_receipt(conversation: str, letter: Letter, fields: Mapping[str, Any]) -> NewRecord:
    """Of a steer that came too late for a turn, and is what this run was asked."""
    envelope, seq = letter.envelope, letter.record.seq
    message = ReceivedMessage(
        id=envelope.id, source=envelope.sender, seq=seq, outcome="input", text=envelope.content or ""
    )
    return _event(conversation, [message], fields)


def stop_receipts(
    conversation: str,
    stops: Iterable[Letter],
    outcome: StopOutcome,
    letter: Letter | None = None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[NewRecord, ...]:
    """Of stops that leave the lane while this mail was worked on. Those that were meant for another say so."""
    messages = [
        ReceivedMessage(
            id=stop.envelope.id,
            source=stop.envelope.sender,
            seq=stop.record.seq,
            outcome=outcome if letter is None or is_meant(stop.record, letter) else "not_meant",
            command=stop.command,
        )
        for stop in stops
    ]
    return (_event(conversation, messages, fields or {}),) if messages and conversation else ()


def _event(conversation: str, messages: list[ReceivedMessage], fields: Mapping[str, Any]) -> NewRecord:
    return stream_record(ReceiptEvent(conversation_id=conversation, messages=messages), fields)
