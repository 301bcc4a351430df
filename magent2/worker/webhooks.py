"""Reports of runs to webhooks: which webhooks a worker knows, and the records that an append adds for them.

A worker keeps all webhooks in memory, so a run reads nothing for them. It watches their topics and reads those that
changed before its next claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.records import NewRecord
from magent2.bus.retry import retry_call
from magent2.connectors.notifications import EventReport, notification_records
from magent2.directory.webhooks import CONFIGURED_PREFIX, Webhook, find_webhooks, list_webhooks
from magent2.models.address import WEBHOOK_PREFIX, is_subagent_id, topics_of_kind
from magent2.models.webhook_events import EventFields, WebhookEvent
from magent2.roster.webhooks import WebhookSpec
from magent2.runner.context import TALK
from magent2.worker.run_events import RunEvents

ALL_WEBHOOKS = topics_of_kind(WEBHOOK_PREFIX.rstrip(":"))

RunEnd = Literal["finished", "failed", "stopped"]
_RUN_ENDS: Mapping[RunEnd, WebhookEvent] = {
    "finished": "run.finished",
    "failed": "run.failed",
    "stopped": "run.stopped",
}


def configured_webhooks(specs: Iterable[WebhookSpec]) -> dict[str, Webhook]:
    """Return webhooks of an agents file as those of the whole deployment, by their ids."""
    found = (Webhook(f"{CONFIGURED_PREFIX}{spec.name}", None, spec.events, spec.config) for spec in specs)
    return {webhook.id: webhook for webhook in found}


class KnownWebhooks:
    """The webhooks of a worker: those on the log as of the last `update`, and those of its agents file.

    `configured` returns the latter, by their ids.
    """

    topics = (ALL_WEBHOOKS,)  # to watch

    def __init__(self, bus: Engine, configured: Callable[[], Mapping[str, Webhook]] = dict) -> None:
        self.configured = configured
        self._bus = bus
        self._by_topic: dict[str, Webhook] = {}
        self._by_owner: dict[str | None, list[Webhook]] = {}
        self._changed: set[str] = {ALL_WEBHOOKS}  # not read since they changed

    def note(self, topics: frozenset[str]) -> None:
        """Note which of the changed topics are webhooks."""
        self._changed.update(topic for topic in topics if topic.startswith(WEBHOOK_PREFIX))

    async def update(self, who: str) -> None:
        """Read the webhooks that have changed. `who` is for the log."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        try:
            if ALL_WEBHOOKS in changed:
                every = await retry_call(lambda: list_webhooks(Log(self._bus)), who)
                self._by_topic = {webhook.connector: webhook for webhook in every}
            else:
                found = await retry_call(lambda: find_webhooks(Log(self._bus), sorted(changed)), who)
                merged = {**self._by_topic, **found}
                self._by_topic = {topic: webhook for topic, webhook in merged.items() if webhook is not None}
        except BaseException:
            self._changed |= changed
            raise
        self._by_owner = {}
        for webhook in self._by_topic.values():
            self._by_owner.setdefault(webhook.owner, []).append(webhook)

    def of(self, owner: str | None, event: WebhookEvent) -> list[Webhook]:
        """Return the webhooks that are told of an event in a conversation of this owner."""
        if not self._by_owner and not self.configured():
            return []
        every = [*self.configured().values(), *self._by_owner.get(None, ())]
        every += self._by_owner.get(owner, ()) if owner else ()
        return [webhook for webhook in every if event in webhook.events]


class RunReports:
    """The records that report the events of one claimed lane to webhooks.

    Each method returns what its caller adds to the append that puts the event on the log. `owner` is that of the
    conversation, `clock_ms` returns the log clock.
    """

    def __init__(self, webhooks: KnownWebhooks | None, owner: str, clock_ms: Callable[[], int]) -> None:
        self._webhooks = webhooks
        self._owner = owner or None
        self._clock_ms = clock_ms

    def run_ended(self, events: RunEvents, status: RunEnd) -> tuple[NewRecord, ...]:
        """Report the end of a run that answers a message. Runs of subagents are parts of it and are left out."""
        if events.kind != TALK or is_subagent_id(events.conversation):
            return ()
        return self._records(_RUN_ENDS[status], events, EventFields(status=status))

    def approval_requested(
        self, events: RunEvents, tool_call_ids: Sequence[str], expires_ms: int
    ) -> tuple[NewRecord, ...]:
        """Report that calls of a run wait for a decision: one report for all calls that it asks for at a time."""
        if not tool_call_ids:
            return ()
        expires_at = _time_text(datetime.fromtimestamp(expires_ms / 1000, UTC))
        fields = EventFields(status="waiting", tool_call_ids=list(tool_call_ids), expires_at=expires_at)
        return self._records("approval.requested", events, fields)

    def budget_reached(
        self, events: RunEvents, budgets: Sequence[str], resumes_at: datetime | None
    ) -> tuple[NewRecord, ...]:
        """Report that a run waits because budgets of these kinds are used up, and when it goes on by itself."""
        resumes = None if resumes_at is None else _time_text(resumes_at)
        fields = EventFields(status="waiting", budgets=list(budgets), resumes_at=resumes)
        return self._records("budget.reached", events, fields)

    def _records(self, event: WebhookEvent, events: RunEvents, fields: EventFields) -> tuple[NewRecord, ...]:
        webhooks = () if self._webhooks is None else self._webhooks.of(self._owner, event)
        if not webhooks:
            return ()
        data: EventFields = {
            "conversation_id": events.conversation,
            "run_id": events.run_id,
            "agent": events.agent,
            "envelope_id": events.envelope_id,
            "owner": self._owner,
            **fields,
        }
        return notification_records(webhooks, EventReport(event, data, self._clock_ms()))


def _time_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
