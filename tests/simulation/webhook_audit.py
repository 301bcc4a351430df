"""The webhook of a simulated world, and its auditor: it was told of what is on the log, once, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from magent2.bus.records import Record
from magent2.connectors.outbox import fold_outbox
from magent2.directory.webhooks import Webhook
from magent2.models.address import history_topic, is_subagent_id, outbox_topic
from magent2.models.webhook_events import WEBHOOK_EVENTS
from tests.simulation.fake_connectors import FakeReceivers

WEBHOOK = Webhook("config.watcher", None, WEBHOOK_EVENTS, {"url": "https://example.com/"})
ENDS = ("sent", "dead", "unknown")

Logs = Mapping[str, Sequence[Record]]


def configured() -> dict[str, Webhook]:
    return {WEBHOOK.id: WEBHOOK}


def webhook_findings(logs: Logs, receivers: FakeReceivers, deleted: Collection[str]) -> Iterator[str]:
    records = logs[outbox_topic(WEBHOOK.connector)]
    items = fold_outbox(records).values()
    told: Counter[tuple[str, str, str]] = Counter()
    for item in items:
        notification = item.message.notification
        if notification is None or item.message.conversation_id in deleted:
            continue
        told[item.message.conversation_id, notification["data"]["run_id"], notification["type"]] += 1
        if item.state not in ENDS:
            yield f"webhook: {item.id} is left {item.state}"
    happened = Counter(_ends(logs, deleted)) + Counter(_pauses(logs, deleted))
    for event in told.keys() | happened.keys():
        if told[event] != happened[event]:
            yield f"webhook: {event} happened {happened[event]} times and was told {told[event]} times"
    arrived = {message.key for message in receivers.arrived if message.connector == WEBHOOK.connector}
    yield from (
        f"webhook: {item.id} is said to be sent" for item in items if item.state == "sent" and item.id not in arrived
    )
    # What was erased with its conversation may have been trimmed since.
    kept = {message.key for message in receivers.arrived if message.conversation_id not in deleted}
    unknown = (arrived & kept) - {record.id for record in records}
    yield from (f"webhook: {key} has arrived and is not in the outbox" for key in unknown)


def _ends(logs: Logs, deleted: Collection[str]) -> Iterator[tuple[str, str, str]]:
    for topic, records in logs.items():
        kind, _, conversation = topic.partition(":")
        if kind != "stream" or conversation in deleted or is_subagent_id(conversation):
            continue
        for event in (record.payload for record in records):
            is_end = event.get("event") == "run" and event["status"] in ("finished", "failed", "stopped")
            if is_end and "run_kind" not in event:
                yield conversation, event["run_id"], f"run.{event['status']}"


def _pauses(logs: Logs, deleted: Collection[str]) -> Iterator[tuple[str, str, str]]:
    for topic, records in logs.items():
        conversation = topic.removeprefix(history_topic(""))
        if conversation == topic or conversation in deleted:
            continue
        for pause in (record.payload for record in records if record.payload.get("kind") == "pause"):
            if any(not call.get("client") for call in pause.get("calls", ())):
                yield conversation, pause["run"], "approval.requested"
            if pause.get("budgets"):
                yield conversation, pause["run"], "budget.reached"
