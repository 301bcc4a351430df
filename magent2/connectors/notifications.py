"""Notifications to webhooks: the outbox records of an event, written in the append that puts the event on the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records
from magent2.directory.webhooks import Webhook
from magent2.models.envelope import utc_timestamp
from magent2.models.webhook_events import TEST_EVENT, EventFields


@dataclass(frozen=True, slots=True)
class EventReport:
    """An event to report to webhooks. `queued_ms` is the log clock, if it is known."""

    type: str
    data: EventFields
    queued_ms: int | None = None
    created_at: str = field(default_factory=utc_timestamp)


def notification_records(webhooks: Iterable[Webhook], event: EventReport) -> tuple[NewRecord, ...]:
    """Return the records that queue a notification for each webhook: it is sent if and only if they are appended.

    Each notification has an id of its own, which its receiver gets with every attempt.
    """
    return tuple(
        record
        for webhook in webhooks
        for record in queue_records(_message(webhook, event, f"evt-{uuid.uuid4().hex}"), webhook.registration)
    )


def _message(webhook: Webhook, event: EventReport, key: str) -> OutgoingMessage:
    return OutgoingMessage(
        key=key,
        connector=webhook.connector,
        target="",
        # With the id of its conversation, the notification is deleted with it.
        conversation_id=event.data.get("conversation_id", ""),
        agent=event.data.get("agent", ""),
        text="",
        created_at=event.created_at,
        notification={
            "type": event.type,
            "created_at": event.created_at,
            "webhook_id": webhook.id,
            "data": event.data,
        },
        queued_ms=event.queued_ms,
    )


async def send_test(log: Log, webhook: Webhook) -> str:
    """Queue a notification that tests a webhook, and return its id. It goes the way of every other notification."""
    event = EventReport(TEST_EVENT, EventFields(owner=webhook.owner, status="test"))
    records = notification_records([webhook], event)
    await log.append(Append(records=records))
    return str(records[0].id)
