"""The door for `history:{conversation}`: the journal of runs and the memory of the conversation, in one log.

Each run leaves a `start` (what it was asked, pinned), an `answer` per turn (the model's response, as it came, and the
steers that it has seen), a `tool` per call, and an `end`; a call that sends before it ends, or runs what must not be
run twice, leaves a `sent` or a `begun` on the way; calls that wait for a person a `pause`, and a `decision` each. A
`settings` record, whole each time, says how the conversation is to be held from there on. Nothing
else is remembered of a conversation, and nothing of a run lies elsewhere.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.bus.records import NewRecord, Record
from magent2.errors import UnknownCursor
from magent2.mail.headers import TRACE
from magent2.models.address import history_topic

HISTORY_PAGE = 1000
RELEASE = "release"  # header of a start: which release began the run
RECORDS_KEPT_MAX = 50_000  # of histories that a process keeps in memory

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
        return NewRecord(history_topic(self.conversation), self._payload(kind, fields))

    def start(
        self,
        envelope: Mapping[str, Any],
        spec: Mapping[str, Any],
        seen: int,
        trace: str | None = None,
        release: str = "",
    ) -> NewRecord:
        """`seen`: the last seq of the history that this run knows of. `trace` names the span of the first attempt.

        `release` is the one whose workers can go on with it.
        """
        payload = self._payload("start", {"envelope": dict(envelope), "spec": dict(spec), "seen": seen})
        headers = {name: value for name, value in ((TRACE, trace), (RELEASE, release)) if value}
        return NewRecord(history_topic(self.conversation), payload, headers=headers)

    def _payload(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": kind, "conversation_id": self.conversation, "run": self.run, "agent": self.agent, **fields}

    def answer(
        self, turn: int, response: Mapping[str, Any], speaker: str, steers: Sequence[Mapping[str, Any]] = ()
    ) -> NewRecord:
        """`steers`: what the model was shown for the first time in this turn, each `{id, source, text, seq}`."""
        seen = {"steers": [dict(steer) for steer in steers]} if steers else {}
        return self.record("answer", turn=turn, response=dict(response), speaker=speaker, **seen)

    def tool(
        self, turn: int, call_id: str, name: str, output: Any, sends: Iterable[str] = (), **value: Any
    ) -> NewRecord:
        """`output` is what the model is shown; `value=`, where it is not the same, what the tool returned."""
        return self.record("tool", turn=turn, call_id=call_id, name=name, output=output, sends=list(sends), **value)

    def sent(self, turn: int, call_id: str, place: int, facts: Mapping[str, Any]) -> NewRecord:
        """A message that left before its call has a result, by its place among those of the call."""
        return self.record("sent", turn=turn, call_id=call_id, place=place, **facts)

    def begun(self, turn: int, call_id: str, place: int, name: str, digest: str) -> NewRecord:
        """A tool that must not be run twice is about to be run."""
        return self.record("begun", turn=turn, call_id=call_id, place=place, name=name, digest=digest)

    def pause(self, turn: int, attempt: int, calls: Sequence[Mapping[str, Any]]) -> NewRecord:
        """Calls that wait for a person, each `{call_id, name, speaker, expires_ms}`; the attempt ends here."""
        return self.record("pause", turn=turn, attempt=attempt, calls=[dict(call) for call in calls])

    def decision(self, turn: int, call_id: str, status: str, by: str, reason: str | None = None) -> NewRecord:
        """What was decided on a call that waited."""
        return self.record("decision", turn=turn, call_id=call_id, status=status, by=by, reason=reason)

    def retry(self, attempt: int) -> NewRecord:
        """This attempt has failed, and another will follow."""
        return self.record("retry", attempt=attempt)

    def give_back(self, attempt: int) -> NewRecord:
        """The worker of this attempt went home; the next one goes on."""
        return self.record("give_back", attempt=attempt)

    def end(self, status: EndStatus, output: str | None = None, usage: Mapping[str, Any] | None = None) -> NewRecord:
        return self.record("end", status=status, output=output, usage=dict(usage) if usage else None)


def settings_record(conversation: str, settings: Mapping[str, Any]) -> NewRecord:
    """How the conversation is held from here on: `{scenario_id, agents: {name: {instructions?, model?}}, overlay?}`."""
    payload = {"kind": "settings", "conversation_id": conversation, "settings": dict(settings)}
    return NewRecord(history_topic(conversation), payload)


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
    sent: dict[tuple[int, str, int], Mapping[str, Any]] = field(default_factory=dict)  # by turn, call and place
    begun: dict[tuple[int, str, int], Mapping[str, Any]] = field(default_factory=dict)
    asked: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)  # calls that wait for a person
    decisions: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)  # on them
    end: Mapping[str, Any] | None = None
    ended: int = 0  # the seq of its end
    retries: int = 0  # attempts that failed; those that are in no record were cut short by the end of their worker
    returns: int = 0  # attempts that were given back
    trace: str | None = None  # the span of the first attempt
    release: str = ""  # that began it

    def steers(self, turn: int) -> Sequence[Mapping[str, Any]]:
        """What the answer of this turn saw that was said while the run was under way."""
        found: Sequence[Mapping[str, Any]] = self.answers[turn].get("steers", ())
        return found

    @property
    def undecided(self) -> list[tuple[int, str]]:
        """The calls that the run waits for; none when it is not paused."""
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
    """The runs of a conversation in the order they started, and the seq up to which they were read. Never changed.

    `settings` are the last that were written.
    """

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    last: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def followed_by(self, records: Sequence[Record]) -> History:
        """The history with these records after it. A record of a run that did not start here is passed over."""
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
    """`own` are the runs that may be changed; the others belong to the history before."""
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
    _note(runs[name], kind, record)


def _note(run: RunRecord, kind: str, record: Record) -> None:
    payload = record.payload
    if kind == "answer":
        run.answers.setdefault(payload["turn"], payload)
    elif kind == "tool":
        run.tools[payload["turn"], payload["call_id"]] = payload  # a later one says what a guardrail made of it
    elif kind == "sent":
        run.sent.setdefault((payload["turn"], payload["call_id"], payload["place"]), payload)
    elif kind == "begun":
        run.begun.setdefault((payload["turn"], payload["call_id"], payload["place"]), payload)
    elif kind == "pause":
        run.returns += 1
        run.end, run.ended = None, 0  # one that had failed was begun again
        run.asked.update({(payload["turn"], call["call_id"]): call for call in payload["calls"]})
    elif kind == "decision":
        run.decisions.setdefault((payload["turn"], payload["call_id"]), payload)
    elif kind == "retry":
        run.retries += 1
    elif kind == "give_back":
        run.returns += 1
    elif kind == "end":
        run.end, run.ended = payload, record.seq


# Reads the history of a conversation: `read_history`, or one that has part of it cached.
HistoryReader: TypeAlias = Callable[[Log, str], Coroutine[Any, Any, "History"]]


async def read_history(log: Log, conversation: str, known: History | None = None) -> History:
    """The history as it stands. What is known of it is not read again."""
    topic = history_topic(conversation)
    history = known or History()
    while True:
        try:
            page = await log.read(topic, history.last or OLDEST, HISTORY_PAGE)
        except UnknownCursor:
            if not history.last:
                raise
            history = History()  # the log was trimmed under what was known
            continue
        if page.deleted:
            return History()
        history = history.followed_by(page.records)
        if not page.records or history.last >= page.last:
            return history


class HistoryCache:
    """Histories that were read lately, so that the next run of a conversation reads only what is new.

    Bounded by the records that they were made of; whoever was not asked for longest goes first.
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
        self._forget(conversation)  # another run of it may have been quicker
        self._kept[conversation] = history
        self._records += history.last
        while self._records > self._records_max:
            self._forget(next(iter(self._kept)))
        return history

    def _forget(self, conversation: str) -> History | None:
        history = self._kept.pop(conversation, None)
        self._records -= history.last if history is not None else 0
        return history
