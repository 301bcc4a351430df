"""The auditor of outboxes: every message was sent, or its conversation was told that it may not have been."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from magent2.bus.records import Record
from magent2.connectors.outbox import OPEN_STATES, OutboxItem, fold_outbox
from magent2.models.address import outbox_topic, stream_topic
from tests.simulation.directory_fixture import CONNECTORS
from tests.simulation.fake_connectors import FakeReceivers

ENDS = ("sent", "dead", "unknown", "dropped")
DECISIONS = ("retried", "dropped")

Logs = Mapping[str, Sequence[Record]]


def outbox_findings(logs: Logs, receivers: FakeReceivers, queued: Collection[str]) -> Iterator[str]:
    """`queued` are the keys of messages whose append was acknowledged."""
    yield from receivers.findings
    known: dict[str, OutboxItem] = {}
    for connector, takes_key in CONNECTORS.items():
        records = logs[outbox_topic(connector)]
        audit = OutboxAudit(records, receivers, takes_key)
        yield from (f"outbox {connector}: {finding}" for finding in audit.findings(logs))
        known |= audit.items
    erased = {record.id for connector in CONNECTORS for record in logs[outbox_topic(connector)] if record.erased}
    yield from (f"{name} was acknowledged and is in no outbox" for name in queued if name not in known.keys() | erased)


class OutboxAudit:
    def __init__(self, records: Sequence[Record], receivers: FakeReceivers, takes_key: bool) -> None:
        self.items = fold_outbox(records)
        self._records = [record for record in records if not record.erased]
        self._takes_key = takes_key
        self._arrived = [message for message in receivers.arrived if outbox_topic(message.connector) == _topic(records)]
        self._times = Counter(message.key for message in self._arrived)
        self._retries = Counter(
            record.payload["of"] for record in self._records if record.payload["event"] == "retried"
        )

    def findings(self, logs: Logs) -> Iterator[str]:
        for item in self.items.values():
            yield from self._item_findings(item)
            yield from self._report_findings(item, logs)
        yield from self._order_findings()
        yield from self._decision_findings()

    def _item_findings(self, item: OutboxItem) -> Iterator[str]:
        """No message is left pending; sent messages have arrived, and more than once only with an idempotency key."""
        times, retries = self._times[item.id], self._retries[item.id]
        if item.state not in ENDS:
            yield f"{item.id} is left {item.state}"
        if item.state == "sent" and not times:
            yield f"{item.id} is said to be sent and has never arrived"
        if not self._takes_key and times > 1 + retries:
            yield f"{item.id} has arrived {times} times, was sent again by a person {retries} times, and has no key"

    def _report_findings(self, item: OutboxItem, logs: Logs) -> Iterator[str]:
        """The conversation was told once each time that the message was given up."""
        ends = [record.payload["event"] for record in self._records if record.payload.get("of") == item.id]
        given_up = Counter(f"send_{state}" for state in ends if state in OPEN_STATES)
        told = Counter(
            record.payload["code"]
            for record in logs[stream_topic(item.message.conversation_id)]
            if record.payload.get("event") == "error" and record.payload.get("message_id") == item.id
        )
        if told != given_up:
            yield f"{item.id} was given up as {dict(given_up)}, and its conversation was told {dict(told)}"

    def _order_findings(self) -> Iterator[str]:
        """Each destination got its messages in the order of the outbox; retried messages go to the end."""
        sent = {name: item for name, item in self.items.items() if item.state == "sent" and not self._retries[name]}
        arrived: dict[str, list[int]] = defaultdict(list)
        for key in dict.fromkeys(message.key for message in self._arrived if message.key in sent):
            arrived[sent[key].message.target].append(sent[key].seq)
        for target, seqs in arrived.items():
            if any(later < earlier for earlier, later in pairwise(seqs)):
                yield f"{target} got its messages in the order {seqs}"

    def _decision_findings(self) -> Iterator[str]:
        """Each decision is on a message that needed one, and is the only one."""
        states: dict[str, str] = {}
        for record in self._records:
            event, of = record.payload["event"], record.payload.get("of", record.id)
            if event in DECISIONS and states.get(of) not in OPEN_STATES:
                yield f"{of} was {event} when it was {states.get(of)}"
            states[of] = event


def _topic(records: Sequence[Record]) -> str:
    return records[0].topic if records else ""
