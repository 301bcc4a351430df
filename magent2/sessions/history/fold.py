"""The fold of a history: the runs of a conversation as its records say, and what is left of old ones. Pure.

The fold is bounded. It holds the runs that a later run may need: those in progress, the last `runs_max` of each agent
and of each scenario, the last that asked for approval, and the earlier runs in the input of a run in progress. Of older
runs it keeps totals. After at least `SNAPSHOT_EVERY` records, a worker that starts a run writes a `snapshot` of the
fold into the history. A reader needs the last snapshot, the records of the runs in it, and what follows it, however
long the history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypedDict, cast

from magent2.bus.records import NewRecord, Record
from magent2.mail.headers import TRACE
from magent2.models.address import history_topic
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.sessions.history.records import (
    RELEASE,
    AnswerRecord,
    ApprovalRequest,
    BegunRecord,
    DecisionRecord,
    EndRecord,
    RecordedSettings,
    RunKey,
    SeenSteer,
    SentRecord,
    ToolRecord,
)

RUNS_MAX = 50  # earlier runs that a history holds for each agent and scenario, unless a runner asks for more
# Runs beyond that number which are not dropped yet. Between the read of a history and the start of the run that read
# it, runs of other agents may end. Without this reserve they would displace runs that the new run has in its input.
RUNS_RESERVE = 14
DROP_EVERY = 16  # runs; the fold looks for runs to drop at every start that makes their number a multiple of it
SNAPSHOT_EVERY = 128  # records between two snapshots, at least
SNAPSHOT_VERSION = 1  # readers ignore snapshots of other versions
SNAPSHOT_MAX_BYTES = 1 << 19  # a larger snapshot is not written
SPAN_GAP = 32  # records; ranges of a snapshot that are closer are read as one
RECORD_COST_BYTES = 1500  # memory of a record besides the bytes of its payload (measured by `make bench-history`)


ATTEMPT_ENDS = frozenset({"pause", "retry", "defer", "give_back", "wait"})

RunGroup: TypeAlias = tuple[str | None, str, str | None]  # kind, agent and scenario of a run
KeptGroup: TypeAlias = tuple[str, str | None, str | None]  # see `_kept_groups`


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
    returns: int = 0  # attempts that a worker gave back, paused or deferred
    failures: int = 0  # attempts that failed since the last answer or result
    failing_since_ms: int | None = None  # when the first of them failed or was deferred, by the log clock
    waiting: set[int] = field(default_factory=set)  # attempts that recorded `wait` and have not gone on
    trace: str | None = None  # `traceparent` of the first attempt
    release: str = ""  # the release that started it
    mail: int = 0  # seq of its message in the inbox of its agent; 0 if an older release started it
    seqs: list[int] = field(default_factory=list)  # of its records; empty before its start is recorded
    size_bytes: int = 0
    # The names of the earlier runs in its input, and the number of those left out. They are fixed when it starts, and
    # kept as long as it may still need its input: until it finishes or is stopped.
    input: tuple[str, ...] = ()
    left_out: int = 0
    group: RunGroup = (None, "", None)  # set when its start is folded

    def steers(self, turn: int) -> Sequence[SeenSteer]:
        """The steers that the answer of this turn saw first."""
        return self.answers[turn].get("steers", ())

    @property
    def undecided(self) -> list[tuple[int, str]]:
        """The calls whose approval the run waits for; empty if it is not paused."""
        return [key for key in self.asked if key not in self.decisions] if self.end is None else []

    @property
    def may_run_again(self) -> bool:
        """Whether it has not ended, or has failed: then its dead letter may be retried."""
        return self.end is None or self.end["status"] == "failed"

    def copy(self) -> RunRecord:
        return replace(
            self,
            answers=dict(self.answers),
            tools=dict(self.tools),
            sent=dict(self.sent),
            begun=dict(self.begun),
            asked=dict(self.asked),
            decisions=dict(self.decisions),
            waiting=set(self.waiting),
            seqs=list(self.seqs),
        )


def _group_of(agent: str, spec: JsonMapping) -> RunGroup:
    kind, scenario = spec.get("kind"), spec.get("scenario_id")
    return kind if isinstance(kind, str) else None, agent, scenario if isinstance(scenario, str) else None


def _sees(own: RunGroup, other: RunGroup) -> bool:
    """Whether a run of the other group may be part of the input of a run of the own group.

    Agents of one scenario see each other's runs. An agent outside a scenario sees its own runs only. Manual tool runs
    are never part of the input; routing runs only of that of other routing runs.
    """
    if other[0] == "tool" or other[0] != own[0]:
        return False
    return other[1] == own[1] or (own[2] is not None and other[2] == own[2])


@dataclass(frozen=True, slots=True)
class DroppedRuns:
    """What a history keeps of the ended runs that it has dropped.

    `groups` counts them. `received` is, by agent, the highest seq of its inbox that such a run has received; `None` if
    an older release started the run and did not record it. `asked` is the number of them that asked for approval.
    """

    ended: int = 0
    asked: int = 0
    usage: JsonObject = field(default_factory=dict)
    by_agent: Mapping[str, JsonObject] = field(default_factory=dict)
    groups: Mapping[RunGroup, int] = field(default_factory=dict)
    received: Mapping[str, int | None] = field(default_factory=dict)

    def visible_to(self, run: RunRecord) -> int:
        """The number of dropped runs that may be part of the input of this run."""
        own = _group_of(run.agent, run.spec)
        return sum(count for group, count in self.groups.items() if _sees(own, group))

    def plus(self, runs: Iterable[RunRecord]) -> DroppedRuns:
        ended, asked, usage = self.ended, self.asked, self.usage
        by_agent, groups, received = dict(self.by_agent), Counter(self.groups), dict(self.received)
        for run in runs:
            ended += 1
            asked += bool(run.asked)
            groups[run.group] += 1
            spent = run.end.get("usage") if run.end is not None else None
            if isinstance(spent, Mapping):
                usage = sum_usage(usage, spent)
                by_agent[run.agent] = sum_usage(by_agent.get(run.agent, {}), spent)
            # An agent gets the mail of a conversation in the order of its inbox, so a known seq replaces an unknown one
            # of an earlier run.
            steers = [steer["seq"] for turn in run.answers for steer in run.steers(turn)]
            received[run.agent] = max(received.get(run.agent) or 0, run.mail, *steers, 0) if run.mail else None
        return DroppedRuns(ended, asked, usage, by_agent, dict(groups), received)

    def without(self, run: RunRecord) -> DroppedRuns:
        """Without a failed run, which starts again. Failed runs have no usage."""
        groups = Counter(self.groups)
        groups[run.group] -= 1
        return replace(
            self,
            ended=max(0, self.ended - 1),
            asked=max(0, self.asked - bool(run.asked)),
            groups={group: count for group, count in groups.items() if count > 0},
        )


def sum_usage(total: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """Add up the numbers of two usage objects, nested ones too. Values that are not numbers are left out."""
    summed = dict(total)
    for name, value in more.items():
        known = summed.get(name)
        if isinstance(value, Mapping):
            summed[name] = sum_usage(known if isinstance(known, Mapping) else {}, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            summed[name] = value + (known if isinstance(known, int | float) else 0)
    return summed


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a conversation that matter, in the order of their starts, read up to the seq `last`. Immutable.

    `settings` are the last ones written. `dropped` is what remains of older runs. `snapshot` is the seq up to which the
    last snapshot reaches.
    """

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    last: int = 0
    settings: RecordedSettings = field(default_factory=RecordedSettings)
    dropped: DroppedRuns = field(default_factory=DroppedRuns)
    snapshot: int = 0
    runs_max: int = RUNS_MAX

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return RECORD_COST_BYTES + sum(run.size_bytes for run in self.runs.values())

    @property
    def snapshot_due(self) -> bool:
        return self.last - self.snapshot >= max(SNAPSHOT_EVERY, len(self.runs))

    def followed_by(self, records: Sequence[Record]) -> History:
        """The history extended by these records. Records of a run that the history does not have are ignored."""
        if not records:
            return self
        fold = _Fold(self)
        for record in records:
            if not record.erased:
                fold.add(record)
        return History(fold.runs, records[-1].seq, fold.settings, fold.dropped, fold.snapshot, self.runs_max)

    def earlier_runs(self, run: RunRecord) -> tuple[list[RunRecord], int]:
        """The ended runs that this run has in its input, in order, and the number of older ones that it has not.

        A run whose start is recorded has the same input in every attempt.
        """
        if run.seqs:
            return [self.runs[name] for name in run.input if name in self.runs], run.left_out
        own = _group_of(run.agent, run.spec)
        ended = [other for other in self.runs.values() if 0 < other.ended <= run.seen and _sees(own, other.group)]
        kept = ended[max(0, len(ended) - self.runs_max) :]
        return kept, len(ended) - len(kept) + self.dropped.visible_to(run)


class _Fold:
    """Folds records into a copy of a history. Runs not in `_own` belong to that history, so they are copied first."""

    def __init__(self, before: History) -> None:
        self.runs = dict(before.runs)
        self.settings = before.settings
        self.dropped = before.dropped
        self.snapshot = before.snapshot
        self._before = before
        self._own: set[str] = set()

    def add(self, record: Record) -> None:
        payload = record.payload
        kind = payload.get("kind")
        if kind == "settings":
            self.settings = payload["settings"]
            return
        if kind == "snapshot":
            if is_usable(record, self._before.runs_max):
                self.snapshot = max(self.snapshot, payload["last"])
            return
        name = payload["run"]
        if kind == "start" and name not in self.runs:
            self._start(name, record)
            return
        if name not in self.runs:
            return
        if name not in self._own:
            self.runs[name] = self.runs[name].copy()
            self._own.add(name)
        add_record(self.runs[name], record)

    def _start(self, name: str, record: Record) -> None:
        run = started_run(record)
        if "again" in record.payload:
            self.dropped = self.dropped.without(run)
        now = History(self.runs, dropped=self.dropped, runs_max=self._before.runs_max)
        earlier, run.left_out = now.earlier_runs(run)
        run.input = tuple(other.run for other in earlier)
        _note_record(run, record)
        self.runs[name] = run
        self._own.add(name)
        if len(self.runs) % DROP_EVERY == 0:
            self._drop()

    def _drop(self) -> None:
        """Drop the runs that no later run needs."""
        kept: set[str] = set()
        newer: Counter[KeptGroup] = Counter()
        for run in reversed(self.runs.values()):
            groups = _kept_groups(run) if run.end is not None else []
            if not groups or any(newer[group] < self._before.runs_max + RUNS_RESERVE for group in groups):
                kept.add(run.run)
            newer.update(groups)
        kept |= {name for run in list(kept) if self.runs[run].may_run_again for name in self.runs[run].input}
        self.dropped = self.dropped.plus(run for name, run in self.runs.items() if name not in kept)
        self.runs = {name: self._without_dropped(run, kept) for name, run in self.runs.items() if name in kept}

    def _without_dropped(self, run: RunRecord, kept: set[str]) -> RunRecord:
        """The run without dropped runs in its input: a failed run that is only kept for another one keeps none."""
        left = tuple(name for name in run.input if name in kept)
        if len(left) == len(run.input):
            return run
        self._own.add(run.run)
        return replace(run.copy(), input=left, left_out=run.left_out + len(run.input) - len(left))


def _kept_groups(run: RunRecord) -> list[KeptGroup]:
    """The groups of which a history keeps the last runs, as far as this run is in them."""
    kind, agent, scenario = run.group
    groups: list[KeptGroup] = [("agent", kind, agent)]
    if scenario is not None:
        groups.append(("scenario", kind, scenario))
    if run.asked:
        groups.append(("asked", None, None))
    return groups


def started_run(record: Record) -> RunRecord:
    """The run of a `start`, without its input and not yet with the seq of the record."""
    payload = record.payload
    run = RunRecord(payload["run"], payload["agent"], payload["envelope"], payload["spec"], payload["seen"])
    trace = record.headers.get(TRACE)
    run.trace = trace if isinstance(trace, str) else None
    run.release = str(record.headers.get(RELEASE) or "")
    run.mail = payload.get("mail") or 0
    run.group = _group_of(run.agent, run.spec)
    again: RestartFacts | None = payload.get("again")
    if again is not None:
        run.retries, run.returns = again["retries"], again["returns"]
        run.asked = {(turn, call["call_id"]): call for turn, call in again["asked"]}
    return run


def add_record(run: RunRecord, record: Record) -> None:
    """Apply a record to the run that it is about."""
    _apply(run, record)
    if not run.may_run_again:
        run.input, run.left_out = (), 0
    _note_record(run, record)


def _note_record(run: RunRecord, record: Record) -> None:
    run.seqs.append(record.seq)
    run.size_bytes += record.size_bytes + RECORD_COST_BYTES


def _apply(run: RunRecord, record: Record) -> None:
    payload = record.payload
    kind = payload["kind"]
    if kind == "answer":
        run.answers.setdefault(payload["turn"], cast(AnswerRecord, payload))
        run.failures, run.failing_since_ms = 0, None
    elif kind == "tool":
        # a later record holds the output after a guardrail
        run.tools[payload["turn"], payload["call_id"]] = cast(ToolRecord, payload)
        run.failures, run.failing_since_ms = 0, None
    elif kind == "sent":
        run.sent.setdefault((payload["turn"], payload["call_id"], payload["place"]), cast(SentRecord, payload))
    elif kind == "begun":
        run.begun.setdefault((payload["turn"], payload["call_id"], payload["place"]), cast(BegunRecord, payload))
    elif kind == "decision":
        run.decisions.setdefault((payload["turn"], payload["call_id"]), cast(DecisionRecord, payload))
    elif kind == "wait" and payload["waits"]:
        run.waiting.add(payload["attempt"])
    elif kind == "end":
        run.end, run.ended = cast(EndRecord, payload), record.seq
        # If its dead letter is retried, attempts are counted from 1 again.
        run.waiting.clear()
        run.retries, run.failures, run.failing_since_ms = 0, 0, None
    elif kind in ATTEMPT_ENDS:
        _end_attempt(run, kind, payload)


def _end_attempt(run: RunRecord, kind: str, payload: JsonMapping) -> None:
    """Apply the end of an attempt, or of a wait of an attempt."""
    run.waiting.discard(payload["attempt"])
    if kind in ("pause", "give_back", "defer"):
        run.returns += 1
    if kind == "pause":
        run.end, run.ended = None, 0  # it had failed, and its dead letter was retried
        run.asked.update({(payload["turn"], call["call_id"]): call for call in payload["calls"]})
    if kind == "retry":
        run.retries += 1
        run.failures += 1
    if kind in ("retry", "defer") and run.failing_since_ms is None:
        run.failing_since_ms = payload.get("clock_ms")  # absent in records of 0.2


class RestartFacts(TypedDict):
    """The field `again` of the `start` of a run that starts again: what the repeated records do not say."""

    retries: int
    returns: int
    asked: list[tuple[int, ApprovalRequest]]


def restart_records(key: RunKey, run: RunRecord, mail: int) -> list[NewRecord]:
    """The records with which a run starts again that the history has dropped: its dead letter was retried.

    They repeat the journal of the run, so that the fold has all of it again, and must be written in one append. In a
    fold that still has the run they change nothing.
    """
    again: RestartFacts = {
        "retries": run.retries,
        "returns": run.returns,
        "asked": [(turn, call) for (turn, _), call in run.asked.items()],
    }
    start = key.start(run.envelope, run.spec, run.seen, run.trace, run.release, mail)
    journal = (run.answers, run.tools, run.sent, run.begun, run.decisions)
    repeated = [cast(JsonObject, payload) for recorded in journal for payload in recorded.values()]
    return [
        replace(start, payload={**start.payload, "again": again}),
        *(NewRecord(start.topic, payload) for payload in repeated),
    ]


# --- Snapshots of the fold


class SnapshotRecord(TypedDict):
    """The payload of a `snapshot`: the fold of the records up to the seq `last`.

    It holds totals and settings, and names the runs of the fold instead of repeating them: `runs` maps each one to the
    seq of its start, and `spans` are the ranges of seqs that contain their records. `inputs` are the input of the runs
    that may still need it, as indices of `runs`, followed by the number of runs that were left out.
    """

    version: int
    last: int
    runs_max: int
    settings: RecordedSettings
    runs: dict[str, int]
    spans: list[tuple[int, int]]
    inputs: dict[str, tuple[list[int], int]]
    ended: int
    asked: int
    usage: JsonObject
    by_agent: Mapping[str, JsonObject]
    groups: list[tuple[str | None, str, str | None, int]]
    received: Mapping[str, int | None]


def snapshot_record(conversation: str, history: History) -> NewRecord | None:
    """A snapshot of this history; `None` if it is too large to be of use.

    It may be appended at any time and by any owner: it says which records it is the fold of. `run` and `agent` are
    there for older releases, which read both and ignore records of runs they do not know.
    """
    names = {name: index for index, name in enumerate(history.runs)}
    inputs = {
        run.run: ([names[name] for name in run.input if name in names], run.left_out)
        for run in history.runs.values()
        if run.may_run_again and (run.input or run.left_out)
    }
    dropped = history.dropped
    snapshot: SnapshotRecord = {
        "version": SNAPSHOT_VERSION,
        "last": history.last,
        "runs_max": history.runs_max,
        "settings": history.settings,
        "runs": {name: run.seqs[0] for name, run in history.runs.items()},
        "spans": _spans_of(history.runs.values()),
        "inputs": inputs,
        "ended": dropped.ended,
        "asked": dropped.asked,
        "usage": dropped.usage,
        "by_agent": dict(dropped.by_agent),
        "groups": [(*group, count) for group, count in dropped.groups.items()],
        "received": dict(dropped.received),
    }
    own = {"kind": "snapshot", "conversation_id": conversation, "run": "", "agent": ""}
    record = NewRecord(history_topic(conversation), {**own, **snapshot})
    return record if len(record.body) <= SNAPSHOT_MAX_BYTES else None


def _spans_of(runs: Iterable[RunRecord]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for seq in sorted({seq for run in runs for seq in run.seqs}):
        if spans and seq - spans[-1][1] <= SPAN_GAP:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return spans


def is_usable(record: Record, runs_max: int) -> bool:
    """Whether a record is a snapshot that a reader who needs this number of runs can start from."""
    payload = record.payload
    if record.erased or payload.get("kind") != "snapshot" or payload.get("version") != SNAPSHOT_VERSION:
        return False
    return bool(payload["runs_max"] >= runs_max)


def from_snapshot(snapshot: SnapshotRecord, records: Iterable[Record]) -> History:
    """The history of a snapshot. `records` are those in its spans, in order; others among them are ignored."""
    firsts = snapshot["runs"]
    runs: dict[str, RunRecord] = {}
    for record in records:
        name = record.payload.get("run")
        if record.erased or name not in firsts or record.seq > snapshot["last"]:
            continue
        # A run that was dropped and started again has earlier records, which are not part of the fold any more.
        if record.seq == firsts[name]:
            runs[name] = started_run(record)
            _note_record(runs[name], record)
        elif name in runs:
            add_record(runs[name], record)
    names = list(firsts)
    for name, (indices, left_out) in snapshot["inputs"].items():
        if name in runs:
            runs[name].input, runs[name].left_out = tuple(names[index] for index in indices), left_out
    dropped = DroppedRuns(
        ended=snapshot["ended"],
        asked=snapshot["asked"],
        usage=snapshot["usage"],
        by_agent=snapshot["by_agent"],
        groups={(kind, agent, scenario): count for kind, agent, scenario, count in snapshot["groups"]},
        received=snapshot["received"],
    )
    last = snapshot["last"]
    return History(runs, last, snapshot["settings"], dropped, last, snapshot["runs_max"])
