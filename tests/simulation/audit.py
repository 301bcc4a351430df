"""The auditor of a simulated world: what its logs must say, whoever died on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from magent2.bus.operations import Lanes
from magent2.models.envelope import MessageEnvelope
from tests.simulation.ledger import Ledger
from tests.support.audit import sequence_findings, whole_log
from tests.support.run_audit import ENDS

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Sent:
    """A message whose delivery was acknowledged."""

    id: str
    agent: str
    conversation: str
    text: str
    refused: bool  # the model will say no

    @classmethod
    def of(cls, envelope: MessageEnvelope, refused: bool) -> Sent:
        agent = envelope.recipient.partition(":")[2]
        return cls(envelope.id, agent, envelope.conversation_id, envelope.content or "", refused)


def world_findings(
    ledger: Ledger, sent: Sequence[Sent], agents: Sequence[str], conversations: Sequence[str]
) -> list[str]:
    """Every broken promise, as a sentence."""
    logs = {topic: whole_log(ledger.inner, topic) for topic in _topics(agents, conversations)}
    findings = [f"{topic}: {finding}" for topic, records in logs.items() for finding in sequence_findings(records)]
    findings += _ledger_findings(ledger, agents)
    payloads = {topic: [record.payload for record in records] for topic, records in logs.items()}
    findings += _accepted_findings(sent, [mail for agent in agents for mail in payloads[f"chat:{agent}"]])
    for agent, conversation in product(agents, conversations):
        audit = LaneAudit(agent, conversation, payloads, {message.id: message for message in sent})
        findings += [f"lane ({agent}, {conversation}): {finding}" for finding in audit.findings()]
    return findings


def _topics(agents: Sequence[str], conversations: Sequence[str]) -> list[str]:
    of_conversations = [f"{kind}:{name}" for name in conversations for kind in ("stream", "history", "chat")]
    return of_conversations + [f"{kind}:{name}" for name in agents for kind in ("chat", "dead")]


def _ledger_findings(ledger: Ledger, agents: Sequence[str]) -> list[str]:
    """Nobody wrote for a lane that was not its own, nothing was settled twice, nothing is left."""
    twice = [f"{ref.topic} {ref.seq} was settled {count} times" for ref, count in ledger.settled.items() if count > 1]
    left = [f"left over: {lane}" for agent in agents for lane in ledger.inner.call(Lanes(agent))]
    return [*ledger.trespasses, *twice, *left]


def _accepted_findings(sent: Sequence[Sent], inboxes: Sequence[Payload]) -> Iterator[str]:
    arrived = Counter(mail["id"] for mail in inboxes)
    for message in sent:
        if arrived[message.id] != 1:
            yield f"{message.id} was acknowledged and is in the inboxes {arrived[message.id]} times"


class LaneAudit:
    """One lane: its mail in the order of the inbox, and what the logs say became of it."""

    def __init__(
        self, agent: str, conversation: str, logs: Mapping[str, Sequence[Payload]], messages: Mapping[str, Sent]
    ) -> None:
        self.mail = [mail["id"] for mail in logs[f"chat:{agent}"] if mail["conversation_id"] == conversation]
        self.events = [event for event in logs[f"stream:{conversation}"] if event.get("agent") == agent]
        self.history = [mark for mark in logs[f"history:{conversation}"] if mark["agent"] == agent]
        self.buried = Counter(
            letter["mail"]["id"] for letter in logs[f"dead:{agent}"] if letter["conversation_id"] == conversation
        )
        self.messages = messages
        self.runs = {event["run_id"]: event["envelope_id"] for event in self.events if event["event"] == "run"}

    def findings(self) -> Iterator[str]:
        yield from self._end_findings()
        yield from self._answer_findings()
        yield from self._owner_findings()
        yield from self._token_findings()
        yield from self._history_findings()

    def _end_findings(self) -> Iterator[str]:
        ended = [event["envelope_id"] for event in self.events if event.get("status") in ENDS]
        if ended != self.mail:
            yield f"mail came as {self.mail} and ended as {ended}"

    def _answer_findings(self) -> Iterator[str]:
        """One output for each envelope, the right one; or none, and a dead letter in sight."""
        outputs: dict[str, list[str]] = defaultdict(list)
        for event in self.events:
            if event["event"] == "output":
                outputs[self.runs[event["run_id"]]].append(event["text"])
        for name in self.mail:
            message = self.messages[name]
            if outputs[name] != ([] if message.refused else [message.text]):
                yield f"{name} ({message}) was answered by {outputs[name]}"
            if self.buried[name] != message.refused:
                yield f"{name} ({message}) was buried {self.buried[name]} times"

    def _owner_findings(self) -> Iterator[str]:
        """Runs do not overlap, and no earlier attempt speaks after a later one."""
        over: set[str] = set()
        current = ""
        attempts: Counter[str] = Counter()
        for event in self.events:
            run, attempt = event["run_id"], event["attempt"]
            if run in over:
                yield f"the run of {self.runs[run]} spoke after its end"
            if run != current and current and current not in over:
                yield f"the run of {self.runs[run]} spoke while that of {self.runs[current]} was under way"
            if attempt < attempts[run]:
                yield f"attempt {attempt} at {self.runs[run]} spoke after attempt {attempts[run]}"
            current, attempts[run] = run, attempt
            if event.get("status") in ENDS:
                over.add(run)

    def _token_findings(self) -> Iterator[str]:
        """The tokens of the attempt that answered are its text."""
        tokens: dict[tuple[str, int], str] = defaultdict(str)
        for event in self.events:
            key = event["run_id"], event["attempt"]
            if event["event"] == "token":
                tokens[key] += event["text"]
            elif event["event"] == "output" and tokens[key] != event["text"]:
                yield f"the tokens of {self.runs[key[0]]} are {tokens[key]!r}, its output is {event['text']!r}"

    def _history_findings(self) -> Iterator[str]:
        starts = [mark["envelope"]["id"] for mark in self.history if mark["kind"] == "start"]
        if starts != self.mail:
            yield f"mail came as {self.mail} and the history starts {starts}"
        ends = Counter(mark["run"] for mark in self.history if mark["kind"] == "end")
        if len(ends) != len(starts) or any(count > 1 for count in ends.values()):
            yield f"of {len(starts)} runs in the history these ended: {dict(ends)}"
