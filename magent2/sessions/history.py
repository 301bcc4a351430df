"""The topic `history:{conversation}`: the journal of its runs, and at the same time the memory of its agents.

Each run writes a `start` (the message it answers and its agent's specification), an `answer` per turn (the model's
response and the steers it has seen), a `tool` per call, and an `end`. A call that sends before it ends writes a `sent`;
a call that must not run twice writes a `begun` before it runs. Nothing closes a call whose worker died: the next
attempt runs it again and writes its `tool`, or, after a `begun`, writes that its outcome is unknown. Calls that wait
for a person write a `pause`, and each decision on them a `decision`. An attempt that failed and is tried again writes a
`retry`, one whose worker shut down a `give_back`. A `settings` record replaces the settings of the conversation from
there on. All records of this topic are built here.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.bus.records import NewRecord, Record
from magent2.errors import UnknownCursor
from magent2.mail.headers import TRACE
from magent2.models.address import history_topic
from magent2.models.json_types import JsonMapping, JsonObject

HISTORY_PAGE = 1000
RELEASE = "release"  # header of a start: the release that started the run
RECORDS_KEPT_MAX = 50_000  # records of all histories that a process caches

EndStatus = Literal["finished", "failed", "stopped"]
DecisionStatus: TypeAlias = Literal["approved", "rejected", "expired"]

# --- Payloads of the records. Each also has `kind`, `conversation_id`, `run` and `agent`.


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


class ToolRecord(TypedDict):
    """The payload of a `tool`: the result of a call.

    `output` is what the model sees, `value` the tool's return value if it differs. `sends` are the ids of the messages
    in the same append. `skip_turn`: the model need not be called again because of this result.
    """

    turn: int
    call_id: str
    name: str
    output: object
    sends: list[str]
    value: NotRequired[object]
    skip_turn: NotRequired[bool]


class SendFacts(TypedDict):
    """A message that a call sent: its id, the tool and digest of the call that sent it, and where it went."""

    id: str
    tool: str
    digest: str
    topics: list[str]


class SentRecord(SendFacts):
    """The payload of a `sent`. `place` is the number of the message within its call."""

    turn: int
    call_id: str
    place: int


class BegunRecord(TypedDict):
    """The payload of a `begun`. `place` is the number of the tool within its call."""

    turn: int
    call_id: str
    place: int
    name: str
    digest: str


class ApprovalRequest(TypedDict):
    """A call in a `pause`: it waits for approval until `expires_ms`."""

    call_id: str
    name: str
    speaker: str
    expires_ms: int


class PauseRecord(TypedDict):
    """The payload of a `pause`."""

    turn: int
    attempt: int
    calls: list[ApprovalRequest]


class DecisionRecord(TypedDict):
    """The payload of a `decision`."""

    turn: int
    call_id: str
    status: DecisionStatus
    by: str
    reason: str | None


class EndRecord(TypedDict):
    """The payload of an `end`."""

    status: EndStatus
    output: str | None
    usage: JsonObject | None


class AgentSettings(TypedDict, total=False):
    """Settings of one agent in a session, in place of those of the roster."""

    instructions: str
    model: str


class RecordedSettings(TypedDict, total=False):
    """The settings in a `settings` record: the scenario, settings of its agents by name, instructions for all."""

    scenario_id: str
    agents: dict[str, AgentSettings]
    overlay: str


# --- Builders of the records


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

    def start(
        self,
        envelope: Mapping[str, object],
        spec: Mapping[str, object],
        seen: int,
        trace: str | None = None,
        release: str = "",
    ) -> NewRecord:
        """The run starts. `seen`: the last seq of the history that its input contains.

        `trace` is the `traceparent` of the first attempt. Workers of an older `release` leave the run to newer ones.
        """
        headers = {name: value for name, value in ((TRACE, trace), (RELEASE, release)) if value}
        return self._record("start", {"envelope": dict(envelope), "spec": dict(spec), "seen": seen}, headers)

    def answer(
        self, turn: int, response: Mapping[str, object], speaker: str, steers: Sequence[SeenSteer] = ()
    ) -> NewRecord:
        """The model answered. `steers` are those it saw first in this turn."""
        answer: AnswerRecord = {"turn": turn, "response": dict(response), "speaker": speaker}
        if steers:
            answer["steers"] = list(steers)
        return self._record("answer", answer)

    def tool(
        self, turn: int, call_id: str, name: str, output: object, sends: Iterable[str] = (), **more: object
    ) -> NewRecord:
        """A call has a result. `more` are optional fields of `ToolRecord`."""
        result: ToolRecord = {"turn": turn, "call_id": call_id, "name": name, "output": output, "sends": list(sends)}
        return self._record("tool", {**result, **more})

    def sent(self, turn: int, call_id: str, place: int, facts: SendFacts) -> NewRecord:
        """A message was sent before its call has a result."""
        sent: SentRecord = {"turn": turn, "call_id": call_id, "place": place, **facts}
        return self._record("sent", sent)

    def begun(self, turn: int, call_id: str, place: int, name: str, digest: str) -> NewRecord:
        """A tool that must not run twice is about to run."""
        begun: BegunRecord = {"turn": turn, "call_id": call_id, "place": place, "name": name, "digest": digest}
        return self._record("begun", begun)

    def pause(self, turn: int, attempt: int, calls: Sequence[ApprovalRequest]) -> NewRecord:
        """Calls wait for approval; the attempt ends here."""
        pause: PauseRecord = {"turn": turn, "attempt": attempt, "calls": list(calls)}
        return self._record("pause", pause)

    def decision(
        self, turn: int, call_id: str, status: DecisionStatus, by: str, reason: str | None = None
    ) -> NewRecord:
        """A waiting call was decided on."""
        decision: DecisionRecord = {"turn": turn, "call_id": call_id, "status": status, "by": by, "reason": reason}
        return self._record("decision", decision)

    def retry(self, attempt: int) -> NewRecord:
        """This attempt failed; another one will follow."""
        return self._record("retry", {"attempt": attempt})

    def give_back(self, attempt: int) -> NewRecord:
        """The worker of this attempt shut down; the next one continues."""
        return self._record("give_back", {"attempt": attempt})

    def end(self, status: EndStatus, output: str | None = None, usage: Mapping[str, object] | None = None) -> NewRecord:
        """The run ended."""
        end: EndRecord = {"status": status, "output": output, "usage": dict(usage) if usage else None}
        return self._record("end", end)

    def _record(self, kind: str, fields: Mapping[str, object], headers: Mapping[str, str] | None = None) -> NewRecord:
        own = {"kind": kind, "conversation_id": self.conversation, "run": self.run, "agent": self.agent}
        return NewRecord(history_topic(self.conversation), {**own, **fields}, headers=headers or {})


def settings_record(conversation: str, settings: RecordedSettings) -> NewRecord:
    """The settings from here on. They replace all earlier ones."""
    payload = {"kind": "settings", "conversation_id": conversation, "settings": dict(settings)}
    return NewRecord(history_topic(conversation), payload)


# --- The fold of the records


@dataclass(slots=True)
class RunRecord:
    """Everything recorded of one run.

    `envelope` is the message that it answers, as JSON. `spec` is the runner's specification of the run; of its fields,
    this package reads `kind` and `scenario_id`.
    """

    run: str
    agent: str
    envelope: JsonMapping
    spec: JsonMapping
    seen: int
    answers: dict[int, AnswerRecord] = field(default_factory=dict)
    tools: dict[tuple[int, str], ToolRecord] = field(default_factory=dict)  # by turn and call
    sent: dict[tuple[int, str, int], SentRecord] = field(default_factory=dict)  # by turn, call and place
    begun: dict[tuple[int, str, int], BegunRecord] = field(default_factory=dict)
    asked: dict[tuple[int, str], ApprovalRequest] = field(default_factory=dict)  # calls that need approval
    decisions: dict[tuple[int, str], DecisionRecord] = field(default_factory=dict)  # on them
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
    settings: RecordedSettings = field(default_factory=RecordedSettings)

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
        # a later record holds the output after a guardrail
        run.tools[payload["turn"], payload["call_id"]] = cast(ToolRecord, payload)
    elif kind == "sent":
        run.sent.setdefault((payload["turn"], payload["call_id"], payload["place"]), cast(SentRecord, payload))
    elif kind == "begun":
        run.begun.setdefault((payload["turn"], payload["call_id"], payload["place"]), cast(BegunRecord, payload))
    elif kind == "pause":
        run.returns += 1
        run.end, run.ended = None, 0  # it had failed, and its dead letter was retried
        run.asked.update({(payload["turn"], call["call_id"]): call for call in payload["calls"]})
    elif kind == "decision":
        run.decisions.setdefault((payload["turn"], payload["call_id"]), cast(DecisionRecord, payload))
    elif kind == "retry":
        run.retries += 1
    elif kind == "give_back":
        run.returns += 1
    elif kind == "end":
        run.end, run.ended = cast(EndRecord, payload), record.seq


# Reads the history of a conversation: `read_history`, or `HistoryCache.read_with`
HistoryReader: TypeAlias = Callable[[Log, str], Awaitable["History"]]


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
