"""The auditor of runs: checks the logs of conversations, regardless of worker crashes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from magent2.bus.records import Record
from tests.support.audit import sequence_findings

ENDS = ("finished", "failed", "stopped")

Payload = Mapping[str, Any]


def run_findings(sent: Sequence[tuple[str, str]], stream: Sequence[Record], history: Sequence[Record]) -> list[str]:
    """Every message, (envelope id, text) as it was sent, was answered once, in order, by one owner at a time."""
    events = [record.payload for record in stream if record.payload["event"] != "user_message"]
    findings = sequence_findings(stream) + sequence_findings(history)
    findings += _answer_findings(sent, events)
    findings += _owner_findings(events)
    findings += _token_findings(events)
    findings += _history_findings(sent, [record.payload for record in history])
    return findings


def _answer_findings(sent: Sequence[tuple[str, str]], events: Sequence[Payload]) -> list[str]:
    runs = {event["run_id"]: event["envelope_id"] for event in events if event["event"] == "run"}
    texts = dict(sent)
    ended = [event["envelope_id"] for event in events if event.get("status") in ENDS]
    findings = [f"{envelope} ended {count} times" for envelope, count in Counter(ended).items() if count > 1]
    findings += [f"{envelope} never ended" for envelope, _ in sent if envelope not in ended]
    if not findings and ended != [envelope for envelope, _ in sent]:
        findings.append(f"messages ended out of order: {ended}")
    answers = Counter(runs[event["run_id"]] for event in events if event["event"] == "output")
    findings += [f"{envelope} was answered {answers[envelope]} times" for envelope in texts if answers[envelope] != 1]
    findings += [
        f"{runs[event['run_id']]} was answered by {event['text']!r}"
        for event in events
        if event["event"] == "output" and event["text"] != texts.get(runs[event["run_id"]])
    ]
    return findings


def _owner_findings(events: Sequence[Payload]) -> list[str]:
    """Runs do not overlap, and no attempt writes events after a later attempt has started."""
    findings = []
    over: set[str] = set()
    current: str | None = None
    attempts: Counter[str] = Counter()
    for event in events:
        run = event["run_id"]
        if run in over:
            findings.append(f"{run} spoke after its end")
        if current not in (None, run) and current not in over:
            findings.append(f"{run} spoke while {current} was under way")
        if event["attempt"] < attempts[run]:
            findings.append(f"attempt {event['attempt']} of {run} spoke after attempt {attempts[run]}")
        current, attempts[run] = run, event["attempt"]
        if event.get("status") in ENDS:
            over.add(run)
    return findings


def _token_findings(events: Sequence[Payload]) -> list[str]:
    """The tokens of the attempt that answered are its text."""
    tokens: dict[tuple[str, int], str] = defaultdict(str)
    findings = []
    for event in events:
        key = event["run_id"], event["attempt"]
        if event["event"] == "token":
            tokens[key] += event["text"]
        if event["event"] == "output" and tokens[key] != event["text"]:
            findings.append(f"tokens of {key} are {tokens[key]!r}, the output {event['text']!r}")
    return findings


def _history_findings(sent: Iterable[tuple[str, str]], records: Sequence[Payload]) -> list[str]:
    starts = [record["envelope"]["id"] for record in records if record["kind"] == "start"]
    ends = Counter(record["run"] for record in records if record["kind"] == "end")
    findings = [] if starts == [envelope for envelope, _ in sent] else [f"the history starts {starts}"]
    findings += [f"the history ends {run} {count} times" for run, count in ends.items() if count > 1]
    if len(ends) != len(starts):
        findings.append(f"{len(starts)} runs started and {len(ends)} ended")
    return findings
