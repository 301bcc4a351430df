"""The topic `history:{conversation}`: the journal of its runs, and at the same time the memory of its agents.

Each run writes a `start` (the message it answers and its agent's specification), an `answer` per turn (the model's
response and the steers it has seen), a `tool` per call, and an `end`. A call that sends before it ends writes a `sent`;
a call that must not run twice writes a `begun` before it runs. Calls that wait for a person write a `pause`, and each
decision on them a `decision`. An attempt that failed and is tried again writes a `retry`, one whose worker shut down a
`give_back`. A `settings` record replaces the settings of the conversation from there on. All records
of this topic are built here.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.bus.records import NewRecord, Record
from magent2.errors import UnknownCursor
from magent2.mail.headers import TRACE
from magent2.models.address import history_topic
from magent2.models.json_types import JsonObject

HISTORY_PAGE = 1000
RELEASE = "release"  # header of a start: the release that started the run
RECORDS_KEPT_MAX = 50_000  # records of all histories that a process caches

EndStatus = Literal["finished", "failed", "stopped"]


class SeenSteer(TypedDict):
    """A steer that an answer saw."""

    id: str
    source: str
    text: str
    seq: int


class AnswerRecord(TypedDict):
    """The payload of an `answer`. `response` is the model's response as JSON."""

    turn: int
    response: JsonObject
    speaker: str
    steers: NotRequired[list[SeenSteer]]


class EndRecord(TypedDict):
    """The payload of an `end`."""

    status: EndStatus
    output: str | None
    usage: JsonObject | None


class ApprovalRequest(TypedDict):
    """A call in a `pause`: it waits for approval until `expires_ms`."""

    call_id: str
    name: str
    speaker: str
    expires_ms: int


def run_id_of(agent: str, conversation: str, envelope_id: str) -> str:
    """The id of a run: the same for every attempt at the same message, on any worker."""
    text = "\x1f".join((agent, conversation, envelope_id))
    return "run-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def message_id_of(run_id: str, turn: int) -> str:
    """The id that the tokens of a turn share with the text that replaces them."""
    return f"{run_id}/{turn}"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Identifies a run and builds its history records."""

    conversation: str
    run: str
    agent: str

    def record(self, kind: str, **fields: Any) -> NewRecord:
        return NewRecord(history_topic(self.conversation), self._payload(kind, fields))

    def start(
        self,
        envelope: Mapping[str, Any],
        spec: Mapping[str, Any],
        seen: int,
        trace: str | None = None,
        release: str = "",
    ) -> NewRecord:
        """The run starts. `seen`: the last seq of the history that its input contains.

        `trace` is the `traceparent` of the first attempt. Workers of an older `release` leave the run to newer ones.
        """
        payload = self._payload("start", {"envelope": dict(envelope), "spec": dict(spec), "seen": seen})
        headers = {name: value for name, value in ((TRACE, trace), (RELEASE, release)) if value}
        return NewRecord(history_topic(self.conversation), payload, headers=headers)

    def _payload(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": kind, "conversation_id": self.conversation, "run": self.run, "agent": self.agent, **fields}

    def answer(
        self, turn: int, response: Mapping[str, Any], speaker: str, steers: Sequence[Mapping[str, Any]] = ()
    ) -> NewRecord:
        """The model answered. `steers` are those it saw first in this turn, each `{id, source, text, seq}`."""
        seen = {"steers": [dict(steer) for steer in steers]} if steers else {}
        return self.record("answer", turn=turn, response=dict(response), speaker=speaker, **seen)

    def tool(
        self, turn: int, call_id: str, name: str, output: Any, sends: Iterable[str] = (), **value: Any
    ) -> NewRecord:
        """A call has a result. `output` is what the model sees; `value=` is the tool's return value, if it differs."""
        return self.record("tool", turn=turn, call_id=call_id, name=name, output=output, sends=list(sends), **value)

    def sent(self, turn: int, call_id: str, place: int, facts: Mapping[str, Any]) -> NewRecord:
        """A message was sent before its call has a result. `place` is its number within the call."""
        return self.record("sent", turn=turn, call_id=call_id, place=place, **facts)

    def begun(self, turn: int, call_id: str, place: int, name: str, digest: str) -> NewRecord:
        """A tool that must not run twice is about to run."""
        return self.record("begun", turn=turn, call_id=call_id, place=place, name=name, digest=digest)

    def pause(self, turn: int, attempt: int, calls: Sequence[ApprovalRequest]) -> NewRecord:
        """Calls wait for approval, each `{call_id, name, speaker, expires_ms}`; the attempt ends here."""
        return self.record("pause", turn=turn, attempt=attempt, calls=[dict(call) for call in calls])

    def decision(self, turn: int, call_id: str, status: str, by: str, reason: str | None = None) -> NewRecord:
        """A waiting call was decided on."""
        return self.record("decision", turn=turn, call_id=call_id, status=status, by=by, reason=reason)

    def retry(self, attempt: int) -> NewRecord:
        """This attempt failed; another one will follow."""
        return self.record("retry", attempt=attempt)

    def give_back(self, attempt: int) -> NewRecord:
        """The worker of this attempt shut down; the next one continues."""
        return self.record("give_back", attempt=attempt)

    def end(self, status: EndStatus, output: str | None = None, usage: Mapping[str, Any] | None = None) -> NewRecord:
        return self.record("end", status=status, output=output, usage=dict(usage) if usage else None)


def settings_record(conversation: str, settings: Mapping[str, Any]) -> NewRecord:
    """The settings from here on: `{scenario_id, agents: {name: {instructions?, model?}}, overlay?}`."""
    payload = {"kind": "settings", "conversation_id": conversation, "settings": dict(settings)}
    return NewRecord(history_topic(conversation), payload)


@dataclass(slots=True)
class RunRecord:
    """Everything recorded of one run."""

    run: str
    agent: str
    envelope: Mapping[str, Any]
    spec: Mapping[str, Any]
    seen: int
    answers: dict[int, AnswerRecord] = field(default_factory=dict)
    tools: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)
    sent: dict[tuple[int, str, int], Mapping[str, Any]] = field(default_factory=dict)  # by turn, call and place
    begun: dict[tuple[int, str, int], Mapping[str, Any]] = field(default_factory=dict)
    asked: dict[tuple[int, str], ApprovalRequest] = field(default_factory=dict)  # calls that need approval
    decisions: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)  # on them
    end: EndRecord | None = None
    ended: int = 0  # seq of its end
    retries: int = 0  # attempts that failed; an attempt whose worker crashed leaves no record
    returns: int = 0  # attempts that a worker gave back
    trace: str | None = None  # `traceparent` of the first attempt
    release: str = ""  # the release that started it

    def steers(self, turn: int) -> Sequence[SeenSteer]:
        """The steers that the answer of this turn saw first."""
        return self.answers[turn].get("steers", ())

    @property
    def undecided(self) -> list[tuple[int, str]]:
        """The calls whose approval the run waits for; empty if it is not paused."""
        return [key for key in self.asked if key not in self.decisions] if self.end is None else []

    def copy(self) -> RunRecord:
        return replace(
            self,
            answers=dict(self.answers),
            tools=dict(self.tools),
            sent=dict(self.sent),
            begun=dict(self.begun),
            asked=dict(self.asked),
            decisions=dict(self.decisions),
        )


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a conversation in the order of their starts, read up to the seq `last`. Immutable.

    `settings` are the last ones written.
    """

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    last: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def followed_by(self, records: Sequence[Record]) -> History:
        """The history extended by these records. Records of a run whose start is not in the history are ignored."""
        if not records:
            return self
        runs, own, settings = dict(self.runs), set[str](), self.settings
        for record in records:
            if record.erased:
                continue
            if record.payload.get("kind") == "settings":
                settings = record.payload["settings"]
            else:
                _fold(runs, own, record)
        return History(runs, records[-1].seq, settings)


def _fold(runs: dict[str, RunRecord], own: set[str], record: Record) -> None:
    """Apply one record to `runs`. Runs not in `own` belong to the previous history, so they are copied first."""
    payload = record.payload
    name, kind = payload["run"], payload["kind"]
    if kind == "start" and name not in runs:
        run = RunRecord(name, payload["agent"], payload["envelope"], payload["spec"], payload["seen"])
        trace = record.headers.get(TRACE)
        run.trace = trace if isinstance(trace, str) else None
        run.release = str(record.headers.get(RELEASE) or "")
        runs[name] = run
        own.add(name)
    if name not in runs:
        return
    if name not in own:
        runs[name] = runs[name].copy()
        own.add(name)
    _apply(runs[name], kind, record)


def _apply(run: RunRecord, kind: str, record: Record) -> None:
    payload = record.payload
    if kind == "answer":
        run.answers.setdefault(payload["turn"], cast(AnswerRecord, payload))
    elif kind == "tool":
        run.tools[payload["turn"], payload["call_id"]] = payload  # a later record holds the output after a guardrail
    elif kind == "sent":
        run.sent.setdefault((payload["turn"], payload["call_id"], payload["place"]), payload)
    elif kind == "begun":
        run.begun.setdefault((payload["turn"], payload["call_id"], payload["place"]), payload)
    elif kind == "pause":
        run.returns += 1
        run.end, run.ended = None, 0  # a failed run was retried
        run.asked.update({(payload["turn"], call["call_id"]): call for call in payload["calls"]})
    elif kind == "decision":
        run.decisions.setdefault((payload["turn"], payload["call_id"]), payload)
    elif kind == "retry":
        run.retries += 1
    elif kind == "give_back":
        run.returns += 1
    elif kind == "end":
        run.end, run.ended = cast(EndRecord, payload), record.seq


# Reads the history of a conversation: `read_history`, or `HistoryCache.read_with`
HistoryReader: TypeAlias = Callable[[Log, str], Coroutine[Any, Any, "History"]]


async def read_history(log: Log, conversation: str, known: History | None = None) -> History:
    """Read the current history. Only records after `known` are read."""
    topic = history_topic(conversation)
    history = known or History()
    while True:
        try:
            page = await log.read(topic, history.last or OLDEST, HISTORY_PAGE)
        except UnknownCursor:
            if not history.last:
                raise
            history = History()  # retention has removed the record that `known` ends with
            continue
        if page.deleted:
            return History()
        history = history.followed_by(page.records)
        if not page.records or history.last >= page.last:
            return history


class HistoryCache:
    """Caches histories, so that the next run of a conversation reads only the new records.

    Bounded by the number of records; the least recently used history is removed first.
    """

    def __init__(self, bus: Engine, records_max: int = RECORDS_KEPT_MAX) -> None:
        self._bus = bus
        self._records_max = records_max
        self._kept: OrderedDict[str, History] = OrderedDict()
        self._records = 0

    async def read(self, conversation: str) -> History:
        return await self.read_with(Log(self._bus), conversation)

    async def read_with(self, log: Log, conversation: str) -> History:
        known = self._forget(conversation)
        history = await read_history(log, conversation, known)
        self._forget(conversation)  # a concurrent read of the same history may have stored its own
        self._kept[conversation] = history
        self._records += history.last
        while self._records > self._records_max:
            self._forget(next(iter(self._kept)))
        return history

    def _forget(self, conversation: str) -> History | None:
        history = self._kept.pop(conversation, None)
        self._records -= history.last if history is not None else 0
        return history
