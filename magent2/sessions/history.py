"""The door for `history:{conversation}`: the journal of runs and the memory of the conversation, in one log.

Each run leaves a `start` (what it was asked, pinned), an `answer` per turn (the model's response, as it came), a `tool`
per call, and an `end`. Nothing else is remembered of a conversation, and nothing of a run lies elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from magent2.bus.flow import Flow
from magent2.bus.operations import Describe, Read
from magent2.bus.records import NewRecord, Page, Record, TopicInfo
from magent2.models.address import history_topic

HISTORY_PAGE = 1000

EndStatus = Literal["finished", "failed", "stopped"]


def run_id_of(agent: str, conversation: str, envelope_id: str) -> str:
    """The same for every attempt at the same mail, by any worker."""
    text = "\x1f".join((agent, conversation, envelope_id))
    return "run-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def message_id_of(run_id: str, turn: int) -> str:
    """Joins the tokens of a turn to the text that will contain them."""
    return f"{run_id}/{turn}"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run a record belongs to."""

    conversation: str
    run: str
    agent: str

    def record(self, kind: str, **fields: Any) -> NewRecord:
        payload = {"kind": kind, "conversation_id": self.conversation, "run": self.run, "agent": self.agent, **fields}
        return NewRecord(history_topic(self.conversation), payload)

    def start(self, envelope: Mapping[str, Any], spec: Mapping[str, Any], seen: int) -> NewRecord:
        """`seen`: the last seq of the history that this run knows of."""
        return self.record("start", envelope=dict(envelope), spec=dict(spec), seen=seen)

    def answer(self, turn: int, response: Mapping[str, Any], speaker: str) -> NewRecord:
        return self.record("answer", turn=turn, response=dict(response), speaker=speaker)

    def tool(
        self, turn: int, call_id: str, name: str, output: Any, sends: Iterable[str] = (), **value: Any
    ) -> NewRecord:
        """`output` is what the model is shown; `value=`, where it is not the same, what the tool returned."""
        return self.record("tool", turn=turn, call_id=call_id, name=name, output=output, sends=list(sends), **value)

    def retry(self, attempt: int) -> NewRecord:
        """This attempt has failed, and another will follow."""
        return self.record("retry", attempt=attempt)

    def end(self, status: EndStatus, output: str | None = None, usage: Mapping[str, Any] | None = None) -> NewRecord:
        return self.record("end", status=status, output=output, usage=dict(usage) if usage else None)


@dataclass(slots=True)
class RunRecord:
    """All that is recorded of one run."""

    run: str
    agent: str
    envelope: Mapping[str, Any]
    spec: Mapping[str, Any]
    seen: int
    answers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    tools: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)
    end: Mapping[str, Any] | None = None
    retries: int = 0  # attempts that failed; those that are in no record were cut short by the end of their worker


def fold_runs(records: Iterable[Record]) -> dict[str, RunRecord]:
    """Runs in the order they started. A record of a run that did not start here is passed over."""
    runs: dict[str, RunRecord] = {}
    for record in records:
        if not record.erased:
            _fold(runs, record.payload)
    return runs


def _fold(runs: dict[str, RunRecord], payload: Mapping[str, Any]) -> None:
    name, kind = payload["run"], payload["kind"]
    if kind == "start" and name not in runs:
        runs[name] = RunRecord(name, payload["agent"], payload["envelope"], payload["spec"], payload["seen"])
    run = runs.get(name)
    if run is None:
        return
    if kind == "answer":
        run.answers.setdefault(payload["turn"], payload)
    elif kind == "tool":
        run.tools[payload["turn"], payload["call_id"]] = payload  # a later one says what a guardrail made of it
    elif kind == "retry":
        run.retries += 1
    elif kind == "end":
        run.end = payload


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a conversation as they stand, and the seq up to which they were read."""

    runs: Mapping[str, RunRecord]
    last: int


def reading_history(conversation: str) -> Flow[History]:
    topic = history_topic(conversation)
    state: tuple[TopicInfo, ...] = yield Describe((topic,))
    records: list[Record] = []
    cursor = state[0].floor
    while cursor < state[0].last:
        page: Page = yield Read(topic, cursor, HISTORY_PAGE)
        if not page.records:
            break
        records.extend(page.records)
        cursor = page.records[-1].seq
    return History(fold_runs(records), cursor)
