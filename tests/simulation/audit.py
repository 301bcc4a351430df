"""The auditor of a simulated world: what its logs must say, whoever died on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from magent2.bus.operations import Lanes
from magent2.bus.records import Record
from magent2.models.address import chat_topic, control_topic, conversation_topics, dead_topic, stream_topic
from tests.simulation.lane_audit import LaneAudit, Stops
from tests.simulation.ledger import Ledger
from tests.simulation.people import CONVERSATIONS, People, Sent
from tests.support.audit import sequence_findings, whole_log

Logs = Mapping[str, Sequence[Record]]


def world_findings(ledger: Ledger, people: People, agents: Sequence[str]) -> list[str]:
    """Every broken promise, as a sentence."""
    logs = {topic: whole_log(ledger.inner, topic) for topic in _topics(agents)}
    kept = [name for name in CONVERSATIONS if name not in ledger.deleted]
    findings = [f"{topic}: {finding}" for topic, records in logs.items() for finding in sequence_findings(records)]
    findings += _ledger_findings(ledger, agents)
    findings += _accepted_findings(people.sent, logs, agents)
    findings += [finding for name in ledger.deleted for finding in _deleted_findings(name, logs, agents)]
    stops = Stops(ledger, people.stops, logs)
    findings += _receipt_findings([stop for stop in people.stops if stop.conversation in kept], logs)
    for agent, conversation in product(agents, kept):
        audit = LaneAudit(agent, conversation, logs, people.sent)
        found = [*audit.findings(), *stops.findings(audit)]
        findings += [f"lane ({agent}, {conversation}): {finding}" for finding in found]
        ledger.counts += audit.counts
    return findings


def _topics(agents: Sequence[str]) -> list[str]:
    of_conversations = [topic for name in CONVERSATIONS for topic in conversation_topics(name)]
    return of_conversations + [of(name) for name in agents for of in (chat_topic, control_topic, dead_topic)]


def _ledger_findings(ledger: Ledger, agents: Sequence[str]) -> list[str]:
    """Nobody wrote for a lane that was not its own, nothing was settled twice, nothing is left."""
    twice = [f"{ref.topic} {ref.seq} was settled {count} times" for ref, count in ledger.settled.items() if count > 1]
    left = [f"left over: {lane}" for agent in agents for lane in ledger.inner.call(Lanes(agent))]
    never = [f"{ref.topic} {ref.seq} was never settled" for ref in ledger.pending]
    return [*ledger.trespasses, *twice, *left, *never]


def _receipt_findings(stops: Sequence[Sent], logs: Logs) -> Iterator[str]:
    """Every stop that was acknowledged has one receipt."""
    events = [record.payload for name in CONVERSATIONS for record in logs[stream_topic(name)]]
    told = Counter(message["id"] for event in events for message in event.get("messages", ()))
    for stop in stops:
        if told[stop.id] != 1:
            yield f"the stop {stop.id} has {told[stop.id]} receipts"


def _accepted_findings(sent: Sequence[Sent], logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    arrived = Counter(record.id for agent in agents for record in logs[chat_topic(agent)])
    for message in sent:
        if arrived[message.id] != 1:
            yield f"{message.id} was acknowledged and is in the inboxes {arrived[message.id]} times"


def _deleted_findings(conversation: str, logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    """Nothing is left of a deleted conversation, and nobody has written into it since."""
    for topic in conversation_topics(conversation):
        if logs[topic]:
            yield f"{topic} was deleted and holds {len(logs[topic])} records"
    for topic in (of(agent) for agent in agents for of in (chat_topic, dead_topic)):
        for record in logs[topic]:
            if record.payload.get("conversation_id") == conversation:
                yield f"{topic} {record.seq} is a copy from {conversation}, which was deleted"
