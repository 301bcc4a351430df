"""The auditor of one lane of a simulated world: its mail in the order of the inbox, and the outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from magent2.bus.records import Record
from magent2.mail.headers import STEER, TARGET_ENVELOPE
from magent2.models.address import (
    SUBAGENT_SEPARATOR,
    chat_topic,
    control_topic,
    dead_topic,
    history_topic,
    stream_topic,
)
from tests.simulation.approvers import Approvers
from tests.simulation.blocks import Posted
from tests.simulation.clients import AcknowledgedMessage, by_id
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.journal_audit import journal_findings
from tests.support.run_audit import ENDS

BEGINNINGS = ("started", "restarted")
GAVE_UP = "attempts during which the worker stopped"  # in the reason of mail that was buried after crashes

Payload = Mapping[str, Any]
Logs = Mapping[str, Sequence[Record]]


class LaneAudit:
    def __init__(self, agent: str, conversation: str, logs: Logs, sent: Iterable[AcknowledgedMessage]) -> None:
        self.agent, self.conversation = agent, conversation
        self.letters = {
            record.payload["id"]: record
            for record in logs[chat_topic(agent)]
            if record.payload.get("conversation_id") == conversation
        }
        told = _payloads(logs[stream_topic(conversation)], agent)
        self.events = [event for event in told if "attempt" in event]  # events of its runs
        self.history = _payloads(logs[history_topic(conversation)], agent)
        self._seen = Counter(steer["id"] for mark in self.history for steer in mark.get("steers", ()))
        self.mail = [name for name in self.letters if name not in self._seen]  # mail with a run of its own
        self.runs = {event["run_id"]: event["envelope_id"] for event in self.events if event["event"] == "run"}
        self.ends = [event for event in self.events if event["event"] == "run" and event["status"] in ENDS]
        self.counts: Counter[str] = Counter(event["status"] for event in self.ends)
        self.counts["buried after crashes"] += sum(GAVE_UP in str(event.get("reason")) for event in self.ends)
        self._dead = [letter.payload for letter in logs[dead_topic(agent)] if letter.payload]
        self._messages = by_id(sent)

    def findings(self, posted: Posted, approvers: Approvers) -> Iterator[str]:
        yield from self._end_findings()
        yield from self._answer_findings()
        yield from self._owner_findings()
        yield from self._token_findings()
        yield from self._history_findings()
        yield from self._steer_findings()
        yield from journal_findings(self.history, self.events, posted, approvers)

    def _message(self, name: str) -> AcknowledgedMessage:
        """The message as a client sent it; for mail from an agent, the mail itself."""
        return self._messages.get(name) or AcknowledgedMessage(
            name, self.agent, self.conversation, self.letters[name].payload["content"]
        )

    def _end_findings(self) -> Iterator[str]:
        ended = [event["envelope_id"] for event in self.ends]
        if ended != self.mail:
            yield f"mail came as {self.mail} and ended as {ended}"

    def _answer_findings(self) -> Iterator[str]:
        """Each envelope has the right output once, or none and was stopped or buried as a dead letter."""
        outputs: dict[str, list[str]] = defaultdict(list)
        for event in self.events:
            if event["event"] == "output":
                outputs[self.runs[event["run_id"]]].append(event["text"])
        status = {event["envelope_id"]: event["status"] for event in self.ends}
        buried = Counter(letter["mail"]["payload"].get("id") for letter in self._dead)
        for name in self.mail:
            message, end = self._message(name), status.get(name)
            if outputs[name] != ([message.text] if end == "finished" else []):
                yield f"{name} ({message}) has {end} and was answered by {outputs[name]}"
            if end == ("finished" if message.unanswerable else "failed"):
                yield f"{name} ({message}) has {end}"
            if buried[name] != (end == "failed"):
                yield f"{name} ({message}) has {end} and was buried {buried[name]} times"

    def _owner_findings(self) -> Iterator[str]:
        """Runs do not overlap, and no attempt writes events after a later attempt has started."""
        over: set[str] = set()
        current = ""
        attempts: Counter[str] = Counter()
        begun: Counter[str] = Counter()
        for event in self.events:
            run, attempt = event["run_id"], event["attempt"]
            if run in over:
                yield f"the run of {self.runs[run]} spoke after its end"
            if run != current and current and current not in over:
                yield f"the run of {self.runs[run]} spoke while that of {self.runs[current]} was under way"
            if event["event"] == "run" and event["status"] in BEGINNINGS:
                if attempt <= begun[run]:
                    yield f"{self.runs[run]} was begun again as attempt {attempt}, which it had been before"
                begun[run] = attempt
            if attempt < attempts[run]:
                yield f"attempt {attempt} at {self.runs[run]} spoke after attempt {attempts[run]}"
            current, attempts[run] = run, attempt
            if event.get("status") in ENDS:
                over.add(run)

    def _token_findings(self) -> Iterator[str]:
        """The tokens of each attempt and turn add up to its text."""
        tokens: dict[tuple[str, int], str] = defaultdict(str)
        for event in self.events:
            key = event.get("message_id", ""), event["attempt"]
            if event["event"] == "token":
                tokens[key] += event["text"]
            elif event["event"] in ("message", "output") and tokens[key] != event["text"]:
                yield f"the tokens of {key} are {tokens[key]!r}, its text is {event['text']!r}"

    def _steer_findings(self) -> Iterator[str]:
        """A steer was seen by one answer or became the input of one run, with one receipt. Other mail has none."""
        told = [message for event in self.events for message in event.get("messages", ()) if "text" in message]
        receipts = Counter((message["id"], message["outcome"]) for message in told)
        for name, letter in self.letters.items():
            steer, seen = bool(letter.headers.get(STEER)), self._seen[name]
            if seen > steer:
                yield f"{name} was seen by {seen} answers"
            if receipts[name, "seen"] != seen or receipts[name, "input"] != (steer and not seen):
                yield f"{name} was seen by {seen} answers and has the receipts {receipts}"
        order = [self.letters[message["id"]].seq for message in told if message["outcome"] == "seen"]
        if order != sorted(order):
            yield f"steers were seen in the order {order}"
        self.counts["a steer was seen"] += sum(self._seen.values())

    def _history_findings(self) -> Iterator[str]:
        starts = [mark["envelope"]["id"] for mark in self.history if mark["kind"] == "start"]
        if starts != self.mail:
            yield f"mail came as {self.mail} and the history starts {starts}"
        ends = Counter(mark["run"] for mark in self.history if mark["kind"] == "end")
        if len(ends) != len(starts) or any(count > 1 for count in ends.values()):
            yield f"of {len(starts)} runs in the history these ended: {dict(ends)}"


class Stops:
    """All stops of a world. A stop ends at most one run, and none of mail that arrived after it."""

    def __init__(self, recorder: EngineRecorder, sent: Iterable[AcknowledgedMessage], logs: Logs) -> None:
        self._recorder = recorder
        controls = (records for topic, records in logs.items() if topic.startswith("control:"))
        self._stops = {record.payload.get("id"): record for records in controls for record in records}
        self._sent = by_id(sent)
        self._used: set[str] = set()

    def findings(self, audit: LaneAudit) -> Iterator[str]:
        for end in audit.ends:
            if end["status"] == "stopped":
                name = str(end.get("reason")).removeprefix("stopped by user:")
                yield from self._stop_findings(audit, end, name) if name in self._stops else _inherited_stop(audit, end)
        audit.counts["stop came too late"] += sum(
            (stop.agent, stop.conversation) == (audit.agent, audit.conversation) and stop.id not in self._used
            for stop in self._sent.values()
        )

    def _stop_findings(self, audit: LaneAudit, end: Payload, name: str) -> Iterator[str]:
        stop, mail = self._stops[name], audit.letters[end["envelope_id"]].ref
        place = self._recorder.place
        audit.counts["stopped after takeover"] += end["attempt"] > 1
        audit.counts["stopped before a word"] += not any(
            event["run_id"] == end["run_id"] and event["event"] == "token" for event in audit.events
        )
        audit.counts["stopped the next one"] += self._recorder.aimed.get(stop.ref) != mail
        if name in self._used:
            yield f"{name} has stopped {end['envelope_id']} and another message before it"
        self._used.add(name)
        if (stop.topic, stop.payload["conversation_id"]) != (control_topic(audit.agent), audit.conversation):
            yield f"{name} was not meant for this lane"
        if stop.headers.get(TARGET_ENVELOPE, end["envelope_id"]) != end["envelope_id"]:
            yield f"{name} was meant for {stop.headers[TARGET_ENVELOPE]} and has stopped {end['envelope_id']}"
        if place(stop.ref) < place(mail):
            yield f"{name} has stopped {end['envelope_id']}, which came after it"


def _inherited_stop(audit: LaneAudit, end: Payload) -> Iterator[str]:
    """A stop that no client has sent must have been passed on by the agent that started this subagent."""
    audit.counts["stopped with its starter"] += 1
    if SUBAGENT_SEPARATOR not in audit.conversation:
        yield f"{end['envelope_id']} was stopped without a stop: {end.get('reason')}"


def _payloads(records: Sequence[Record], agent: str) -> list[Payload]:
    return [record.payload for record in records if record.payload.get("agent") == agent]
