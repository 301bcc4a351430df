"""The auditor of subagents: each is started once, runs once, and its starter gets its result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magent2.bus.records import Record
from magent2.models.address import SUBAGENT_SEPARATOR, chat_topic, stream_topic
from magent2.tools.subagents import RESULT, START
from tests.simulation.calls import SUBAGENT, kind_of, start_of, task_of

Payload = Mapping[str, Any]
Logs = Mapping[str, Sequence[Record]]


def subagent_findings(conversation: str, logs: Logs) -> Iterator[str]:
    """Findings on all subagents that runs of this conversation have started."""
    letters = [record.payload for record in logs[chat_topic(SUBAGENT)] if not record.erased]
    tasks = Counter(letter["content"] for letter in letters)
    stream = [record.payload for record in logs[stream_topic(conversation)]]
    started = {event["task"]: event["subagent_id"] for event in stream if event.get("event") == "subagent"}
    shown = Counter(event["task"] for event in stream if event.get("event") == "subagent")
    for task, times in shown.items():
        if (times, tasks[task]) != (1, 1):
            yield f"{task!r} was started {times} times and is in the inbox {tasks[task]} times"
    for mark in (record.payload for record in logs[f"history:{conversation}"]):
        if mark["kind"] == "tool" and kind_of(mark["call_id"]) == START:
            yield from _start_findings(mark, started)
        if mark["kind"] == "tool" and kind_of(mark["call_id"]) == RESULT:
            yield from _result_findings(mark, started, logs)


def _start_findings(mark: Payload, started: Mapping[str, str]) -> Iterator[str]:
    told = _told(mark)
    if told.get("ok") and started.get(task_of(mark["call_id"])) != told["subagent_id"]:
        yield f"{mark['call_id']} says that it has started {told['subagent_id']}, which no event shows"


def _result_findings(mark: Payload, started: Mapping[str, str], logs: Logs) -> Iterator[str]:
    told, child = _told(mark), started.get(task_of(start_of(mark["call_id"])))
    if told.get("status") != "finished":
        return
    outputs = [
        record.payload["text"]
        for record in logs.get(stream_topic(str(child)), ())
        if record.payload.get("event") == "output" and record.payload["text"] == told["text"]
    ]
    if child is None or len(outputs) != 1:
        yield f"{mark['call_id']} was told {told}, and {child} has said {outputs}"


def _told(mark: Payload) -> dict[str, Any]:
    text = str(mark["output"])
    found: dict[str, Any] = json.loads(text) if text.startswith("{") else {}
    return found


def orphan_findings(deleted: str, logs: Logs) -> Iterator[str]:
    """The subagents of a deleted conversation are deleted with it."""
    for topic, records in logs.items():
        if topic.partition(":")[2].startswith(f"{deleted}{SUBAGENT_SEPARATOR}") and records:
            yield f"{topic} belongs to {deleted}, which was deleted, and holds {len(records)} records"
