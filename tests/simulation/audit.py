"""The auditor of a simulated world: what its logs must say, whoever died on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from magent2.bus.operations import Describe, Lanes, Topics
from magent2.bus.records import Record
from magent2.models.address import (
    SUBAGENT_SEPARATOR,
    channel_topic,
    chat_topic,
    control_topic,
    conversation_topics,
    dead_topic,
    outbox_topic,
    relay_agent,
    stream_topic,
)
from tests.simulation.blocks import Posted
from tests.simulation.calls import CHILD
from tests.simulation.clerks import Clerks
from tests.simulation.deciders import Deciders
from tests.simulation.family_audit import family_findings, orphan_findings
from tests.simulation.lane_audit import LaneAudit, Stops
from tests.simulation.ledger import Ledger
from tests.simulation.outbox_audit import outbox_findings
from tests.simulation.outside import Outside
from tests.simulation.people import CONVERSATIONS, People, Sent
from tests.simulation.town import CHANNEL, CHAT, CONNECTORS, OUTBOX, TALK
from tests.support.audit import sequence_findings, whole_log

Logs = Mapping[str, Sequence[Record]]


@dataclass(frozen=True)
class Scene:
    """All that is known of a world from outside of its processes. `town`: there are people to send to."""

    ledger: Ledger
    people: People
    deciders: Deciders
    clerks: Clerks
    outside: Outside
    agents: Sequence[str]
    town: bool

    @property
    def kept(self) -> list[str]:
        return [name for name in CONVERSATIONS if name not in self.ledger.deleted]


def world_findings(scene: Scene) -> list[str]:
    """Every broken promise, as a sentence."""
    ledger, people = scene.ledger, scene.people
    logs = _read(scene)
    findings = _number_findings(scene, logs)
    findings += _ledger_findings(scene)
    findings += _accepted_findings(people.sent, logs, scene.agents)
    findings += _letter_findings(logs, scene.agents)
    for name in ledger.deleted:
        findings += [*_deleted_findings(name, logs, scene.agents), *orphan_findings(name, logs)]
    findings += _receipt_findings([stop for stop in people.stops if stop.conversation in scene.kept], logs)
    findings += _lane_findings(scene, logs)
    if scene.town:
        findings += outbox_findings(logs, scene.outside, scene.clerks.queued)
    if CHILD in scene.agents:
        findings += [f"{name}: {finding}" for name in scene.kept for finding in family_findings(name, logs)]
    return findings


# --- logs


def _number_findings(scene: Scene, logs: Logs) -> list[str]:
    """Nothing but outboxes and the mail of their relays is ever trimmed."""
    tidied = tuple(topic for topic in _of_connectors() if topic in logs)
    floors = {info.topic: info.floor for info in scene.ledger.inner.call(Describe(tidied))} if tidied else {}
    return [
        f"{topic}: {finding}"
        for topic, records in logs.items()
        for finding in sequence_findings(records, floors.get(topic, 0))
    ]


def _of_connectors() -> list[str]:
    return [topic for name in CONNECTORS for topic in (outbox_topic(name), chat_topic(relay_agent(name)))]


def _read(scene: Scene) -> dict[str, list[Record]]:
    bus = scene.ledger.inner
    inboxes = [of(agent) for agent in scene.agents for of in (chat_topic, control_topic, dead_topic)]
    logs = {topic: whole_log(bus, topic) for topic in inboxes}
    named = (record.payload.get("conversation_id") for topic in inboxes for record in logs[topic])
    conversations = dict.fromkeys([*CONVERSATIONS, *(str(name) for name in named if name)])
    topics = [topic for name in conversations for topic in conversation_topics(name)]
    if scene.town:
        topics += [channel_topic(CHANNEL), *_of_connectors()]
    if CHILD in scene.agents:
        prefixes = [stream_topic(f"{name}{SUBAGENT_SEPARATOR}") for name in scene.ledger.deleted]
        topics += [info.topic for prefix in prefixes for info in bus.call(Topics(prefix)).topics]
    return logs | {topic: whole_log(bus, topic) for topic in topics}


def _posted(logs: Logs) -> Posted:
    posted: dict[str, set[str]] = {CHAT: set(), OUTBOX: set(), TALK: set()}
    for topic, records in logs.items():
        kind = topic.partition(":")[0]
        if kind in posted:
            posted[kind].update(record.id for record in records)
    return posted


# --- rules


def _lane_findings(scene: Scene, logs: Logs) -> Iterator[str]:
    stops, posted = Stops(scene.ledger, scene.people.stops, logs), _posted(logs)
    mail = [(agent, record) for agent in scene.agents for record in logs[chat_topic(agent)]]
    written = [(agent, str(record.payload["conversation_id"])) for agent, record in mail if record.payload]
    for agent, conversation in dict.fromkeys([*product(scene.agents, CONVERSATIONS), *written]):
        if conversation in scene.ledger.deleted:
            continue
        audit = LaneAudit(agent, conversation, logs, scene.people.sent)
        found = [*audit.findings(posted, scene.deciders), *stops.findings(audit)]
        yield from (f"lane ({agent}, {conversation}): {finding}" for finding in found)
        scene.ledger.counts += audit.counts


def _ledger_findings(scene: Scene) -> list[str]:
    """Nobody wrote for a lane that was not its own, nothing was settled twice, nothing is left."""
    ledger = scene.ledger
    agents = [*scene.agents, *(map(relay_agent, CONNECTORS) if scene.town else ())]
    twice = [f"{ref.topic} {ref.seq} was settled by {len(by)}" for ref, by in ledger.settled.items() if len(by) > 1]
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


def _letter_findings(logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    """What a run sends names the call, so that it is known again under any id; nobody gets it twice."""
    for agent in agents:
        texts = Counter(str(record.payload.get("content")) for record in logs[chat_topic(agent)])
        twice = {text: times for text, times in texts.items() if times > 1 and "-" in text}
        yield from (f"{agent} was sent {text!r} {times} times" for text, times in twice.items())


def _deleted_findings(conversation: str, logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    """Nothing is left of a deleted conversation, and nobody has written into it since."""
    for topic in conversation_topics(conversation):
        if logs.get(topic):
            yield f"{topic} was deleted and holds {len(logs[topic])} records"
    for topic in (of(agent) for agent in agents for of in (chat_topic, dead_topic)):
        for record in logs[topic]:
            if record.payload.get("conversation_id") == conversation:
                yield f"{topic} {record.seq} is a copy from {conversation}, which was deleted"
