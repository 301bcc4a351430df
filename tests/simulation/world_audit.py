"""The auditor of a simulated world: checks what its logs must contain, regardless of crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from magent2.bus.operations import Describe, Lanes, Topics
from magent2.bus.records import Record
from magent2.mail.addressing import inbox_id
from magent2.models.address import (
    SUBAGENT_SEPARATOR,
    channel_topic,
    chat_topic,
    control_topic,
    conversation_topics,
    dead_topic,
    history_topic,
    outbox_topic,
    relay_agent,
    stream_topic,
)
from magent2.models.budgets import Budgets
from tests.simulation.approvers import Approvers
from tests.simulation.blocks import Posted
from tests.simulation.budget_operators import usage_findings
from tests.simulation.calls import SUBAGENT
from tests.simulation.clients import CONVERSATIONS, AcknowledgedMessage, SimulatedClients
from tests.simulation.directory_fixture import CHANNEL, CHANNEL_LOG, CHAT, CONNECTORS, OUTBOX
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.fake_connectors import FakeReceivers
from tests.simulation.lane_audit import LaneAudit, Stops
from tests.simulation.outbox_audit import outbox_findings
from tests.simulation.outbox_operators import OutboxOperators
from tests.simulation.small_histories import history_findings
from tests.simulation.subagent_audit import orphan_findings, subagent_findings
from tests.simulation.webhook_audit import WEBHOOK, webhook_findings
from tests.support.audit import sequence_findings, whole_log

Logs = Mapping[str, Sequence[Record]]


@dataclass(frozen=True)
class AuditInput:
    """All that is known of a world from outside its processes."""

    recorder: EngineRecorder
    clients: SimulatedClients
    approvers: Approvers
    operators: OutboxOperators
    receivers: FakeReceivers
    agents: Sequence[str]
    with_directory: bool
    budgets: Budgets

    @property
    def kept(self) -> list[str]:
        return [name for name in CONVERSATIONS if name not in self.recorder.deleted]


def world_findings(scene: AuditInput) -> list[str]:
    """Every broken guarantee, as a sentence."""
    recorder, clients = scene.recorder, scene.clients
    logs = _read(scene)
    findings = _number_findings(scene, logs)
    findings += _ledger_findings(scene)
    findings += _accepted_findings(clients.sent, logs, scene.agents)
    findings += _letter_findings(logs, scene.agents)
    findings += _busy_findings(scene, logs)
    for name in recorder.deleted:
        findings += [*_deleted_findings(name, logs, scene.agents), *orphan_findings(name, logs)]
    findings += _receipt_findings(
        [stop.id for stop in clients.stops if stop.conversation in scene.kept] + _interrupts(scene, logs), logs
    )
    findings += _lane_findings(scene, logs)
    for name in scene.kept:
        findings += history_findings(recorder.inner, name, logs[history_topic(name)])
    findings += usage_findings(recorder.inner, scene.kept, logs, scene.budgets)
    if scene.with_directory:
        findings += outbox_findings(logs, scene.receivers, scene.operators.queued)
        findings += webhook_findings(logs, scene.receivers, scene.recorder.deleted)
    if SUBAGENT in scene.agents:
        findings += [f"{name}: {finding}" for name in scene.kept for finding in subagent_findings(name, logs)]
    return findings


# --- logs


def _whole_log(scene: AuditInput, topic: str) -> list[Record]:
    """Read a topic, and put back what sweeps have removed from it. The recorder has checked that it could go."""
    records = whole_log(scene.recorder.inner, topic)
    copies = scene.recorder.removable.get(topic)
    if not copies or topic in _of_connectors() or scene.recorder.inner.call(Describe((topic,)))[0].deleted:
        return records
    present = {record.seq for record in records}
    removed = [_erased(copy, scene) for seq, copy in copies.items() if seq not in present]
    return sorted([*records, *removed], key=lambda record: record.seq)


def _erased(copy: Record, scene: AuditInput) -> Record:
    """Return the copy as it was when a sweep removed it: without its content if its conversation was deleted."""
    deleted = copy.draft is None and copy.payload.get("conversation_id") in scene.recorder.deleted
    return replace(copy, payload={}, erased=True) if deleted else copy


def _number_findings(scene: AuditInput, logs: Logs) -> list[str]:
    """Only the removed records of outboxes and of the mail of their relays are not put back."""
    tidied = tuple(topic for topic in _of_connectors() if topic in logs)
    floors = {info.topic: info.floor for info in scene.recorder.inner.call(Describe(tidied))} if tidied else {}
    return [
        f"{topic}: {finding}"
        for topic, records in logs.items()
        for finding in sequence_findings(records, floors.get(topic, 0))
    ]


def _of_connectors() -> list[str]:
    return [
        topic
        for name in (*CONNECTORS, WEBHOOK.connector)
        for topic in (outbox_topic(name), chat_topic(relay_agent(name)))
    ]


def _read(scene: AuditInput) -> dict[str, list[Record]]:
    bus = scene.recorder.inner
    inboxes = [of(agent) for agent in scene.agents for of in (chat_topic, control_topic, dead_topic)]
    logs = {topic: _whole_log(scene, topic) for topic in inboxes}
    named = (record.payload.get("conversation_id") for topic in inboxes for record in logs[topic])
    conversations = dict.fromkeys([*CONVERSATIONS, *(str(name) for name in named if name)])
    topics = [topic for name in conversations for topic in conversation_topics(name)]
    if scene.with_directory:
        topics += [channel_topic(CHANNEL), *_of_connectors()]
    if SUBAGENT in scene.agents:
        prefixes = [stream_topic(f"{name}{SUBAGENT_SEPARATOR}") for name in scene.recorder.deleted]
        topics += [info.topic for prefix in prefixes for info in bus.call(Topics(prefix)).topics]
    return logs | {topic: _whole_log(scene, topic) for topic in topics}


def _posted(logs: Logs) -> Posted:
    posted: dict[str, set[str]] = {CHAT: set(), OUTBOX: set(), CHANNEL_LOG: set()}
    for topic, records in logs.items():
        kind = topic.partition(":")[0]
        if kind in posted:
            posted[kind].update(record.id for record in records)
    return posted


# --- rules


def _lane_findings(scene: AuditInput, logs: Logs) -> Iterator[str]:
    stops, posted = Stops(scene.recorder, scene.clients.stops, logs), _posted(logs)
    mail = [(agent, record) for agent in scene.agents for record in logs[chat_topic(agent)]]
    written = [(agent, str(record.payload["conversation_id"])) for agent, record in mail if record.payload]
    for agent, conversation in dict.fromkeys([*product(scene.agents, CONVERSATIONS), *written]):
        if conversation in scene.recorder.deleted:
            continue
        audit = LaneAudit(agent, conversation, logs, scene.clients.sent)
        found = [*audit.findings(posted, scene.approvers), *stops.findings(audit)]
        yield from (f"lane ({agent}, {conversation}): {finding}" for finding in found)
        scene.recorder.counts += audit.counts


def _ledger_findings(scene: AuditInput) -> list[str]:
    """Workers wrote only to lanes that they owned; no mail was settled twice or is left."""
    recorder = scene.recorder
    agents = [*scene.agents, *(map(relay_agent, (*CONNECTORS, WEBHOOK.connector)) if scene.with_directory else ())]
    twice = [f"{ref.topic} {ref.seq} was settled by {len(by)}" for ref, by in recorder.settled.items() if len(by) > 1]
    left = [f"left over: {lane}" for agent in agents for lane in recorder.inner.call(Lanes(agent))]
    never = [f"{ref.topic} {ref.seq} was never settled" for ref in recorder.pending]
    return [*recorder.unowned_writes, *twice, *left, *never]


def _interrupts(scene: AuditInput, logs: Logs) -> list[str]:
    """The stops that interrupting messages have brought."""
    commands = [record.payload for agent in scene.agents for record in logs[control_topic(agent)] if record.payload]
    kept = [command for command in commands if command["conversation_id"] in scene.kept]
    return [str(command["id"]) for command in kept if command["id"] in scene.clients.interrupts]


def _receipt_findings(stops: Sequence[str], logs: Logs) -> Iterator[str]:
    """Every acknowledged stop has one receipt."""
    events = [record.payload for name in CONVERSATIONS for record in logs[stream_topic(name)]]
    told = Counter(message["id"] for event in events for message in event.get("messages", ()))
    for stop in stops:
        if told[stop] != 1:
            yield f"the stop {stop} has {told[stop]} receipts"


def _accepted_findings(sent: Sequence[AcknowledgedMessage], logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    arrived = Counter(record.id for agent in agents for record in logs[chat_topic(agent)])
    for message in sent:
        times = arrived[inbox_id(message.conversation, message.id)]
        if times != 1:
            yield f"{message.id} was acknowledged and is in the inboxes {times} times"


def _busy_findings(scene: AuditInput, logs: Logs) -> Iterator[str]:
    """A rejected message is nowhere, and an interrupting message was not stopped by the stop that it brought."""
    arrived = {record.id for records in logs.values() for record in records}
    for message in scene.clients.rejected:
        if message.id in arrived or inbox_id(message.conversation, message.id) in arrived:
            yield f"{message.id} was rejected and is on the log"
    for record in (record for name in scene.kept for record in logs[stream_topic(name)]):
        stop = str(record.payload.get("reason")).removeprefix("stopped by user:")
        if scene.clients.interrupts.get(stop, "") == record.payload.get("envelope_id"):
            yield f"{record.payload['envelope_id']} was stopped by the stop that it brought"


def _letter_findings(logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    """No recipient got a message of a run twice. The text names the call, so that copies are found under any id."""
    for agent in agents:
        texts = Counter(str(record.payload.get("content")) for record in logs[chat_topic(agent)])
        twice = {text: times for text, times in texts.items() if times > 1 and "-" in text}
        yield from (f"{agent} was sent {text!r} {times} times" for text, times in twice.items())


def _deleted_findings(conversation: str, logs: Logs, agents: Sequence[str]) -> Iterator[str]:
    """Nothing is left of a deleted conversation, and nothing was written to it afterwards."""
    for topic in conversation_topics(conversation):
        if logs.get(topic):
            yield f"{topic} was deleted and holds {len(logs[topic])} records"
    for topic in (of(agent) for agent in agents for of in (chat_topic, dead_topic)):
        for record in logs[topic]:
            if record.payload.get("conversation_id") == conversation:
                yield f"{topic} {record.seq} is a copy from {conversation}, which was deleted"
