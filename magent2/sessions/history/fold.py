"""The fold of a history: the runs of a conversation as its records say, and what is left of old ones. Pure.

The fold is bounded. It holds the runs that a later run may need: those in progress, the last `runs_max` of each agent
and of each scenario, the last that asked for approval, and the earlier runs in the input of a run in progress. Of older
runs, of those that a compaction covers, and of those whose answer was replaced, it keeps totals. After at least
`SNAPSHOT_EVERY` records, a worker that starts a run writes a `snapshot` of the fold into the history. A reader needs
the last snapshot, the records of the runs in it, and what follows it, however long the history is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypedDict, cast

from magent2.bus.records import NewRecord, Record
from magent2.mail.headers import TRACE
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.sessions.history.records import (
    RELEASE,
    AnswerRecord,
    ApprovalRequest,
    BegunRecord,
    CompactionRecord,
    DecisionRecord,
    EndRecord,
    RecordedSettings,
    RunKey,
    SeenSteer,
    SentRecord,
    ToolRecord,
)

RUNS_MAX = 128  # earlier runs that a history holds for each agent and scenario, unless a runner asks for more
# Runs beyond that number which are not dropped yet. Between the read of a history and the start of the run that read
# it, runs of other agents may end. Without this reserve they would displace runs that the new run has in its input.
RUNS_RESERVE = 14
DROP_EVERY = 16  # runs; the fold looks for runs to drop at every start that makes their number a multiple of it
SNAPSHOT_EVERY = 128  # records between two snapshots, at least
SNAPSHOT_VERSION = 2  # readers ignore snapshots of other versions; those of 1 do not know compactions
COMPACTIONS_KEPT = 3  # of one agent or scenario; a run that started before the last one may need an earlier one
RECORD_COST_BYTES = 1500  # memory of a record besides the bytes of its payload (measured by `make bench-history`)


ATTEMPT_ENDS = frozenset({"pause", "retry", "defer", "give_back", "wait"})

RunGroup: TypeAlias = tuple[str | None, str, str | None]  # kind, agent and scenario of a run
KeptGroup: TypeAlias = tuple[str, str | None, str | None]  # see `_kept_groups`


@dataclass(frozen=True, slots=True)
class Compaction:
    """A compaction that later runs start from. `seq` is that of its record, `run` the run that made it."""

    seq: int
    run: str
    record: CompactionRecord

    @property
    def is_of_own_turns(self) -> bool:
        """Whether it covers a part of the run that made it, and so all earlier runs in the input of that run."""
        return self.record["through"]["run"] == self.run


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
    budgets: tuple[str, ...] = ()  # kinds of budgets that it waits for; empty if it is not paused for one
    compactions: list[CompactionRecord] = field(default_factory=list)  # the last one applies
    end: EndRecord | None = None
    ended: int = 0  # seq of its end
    superseded: str = ""  # the message that is answered instead, if its answer was replaced
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
    # The names of the earlier runs in its input, the compaction before them, and the number of runs left out. They are
    # fixed when it starts, and kept as long as it may still need its input: until it finishes or is stopped.
    input: tuple[str, ...] = ()
    base: Compaction | None = None
    left_out: int = 0
    covered: dict[KeptGroup, int] = field(default_factory=dict)  # for which runs, and the seq of their compaction
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
        return self.end is None or (self.end["status"] == "failed" and not self.superseded)

    def copy(self) -> RunRecord:
        return replace(
            self,
            answers=dict(self.answers),
            tools=dict(self.tools),
            sent=dict(self.sent),
            begun=dict(self.begun),
            asked=dict(self.asked),
            decisions=dict(self.decisions),
            compactions=list(self.compactions),
            waiting=set(self.waiting),
            seqs=list(self.seqs),
            covered=dict(self.covered),
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


def _scope_of(group: RunGroup) -> KeptGroup:
    """The runs that start from the same compactions: those of a scenario, or of an agent outside of scenarios."""
    kind, agent, scenario = group
    return ("agent", kind, agent) if scenario is None else ("scenario", kind, scenario)


@dataclass(frozen=True, slots=True)
class DroppedRuns:
    """What a history keeps of the ended runs that it has dropped.

    `groups` counts those that no compaction covers. `received` is, by agent, the highest seq of its inbox that such a
    run has received; `None` if an older release started the run and did not record it. `asked` is the number of them
    that asked for approval.
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
            groups[run.group] += not run.superseded and _scope_of(run.group) not in run.covered
            spent = run.end.get("usage") if run.end is not None else None
            if isinstance(spent, Mapping):
                usage = sum_usage(usage, spent)
                by_agent[run.agent] = sum_usage(by_agent.get(run.agent, {}), spent)
            # An agent gets the mail of a conversation in the order of its inbox, so a known seq replaces an unknown one
            # of an earlier run.
            steers = [steer["seq"] for turn in run.answers for steer in run.steers(turn)]
            received[run.agent] = max(received.get(run.agent) or 0, run.mail, *steers, 0) if run.mail else None
        return DroppedRuns(ended, asked, usage, by_agent, dict(+groups), received)

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
    last snapshot reaches. `compactions` are the last ones of each agent or scenario.
    """

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    last: int = 0
    settings: RecordedSettings = field(default_factory=RecordedSettings)
    dropped: DroppedRuns = field(default_factory=DroppedRuns)
    snapshot: int = 0
    runs_max: int = RUNS_MAX
    compactions: Mapping[KeptGroup, tuple[Compaction, ...]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        summaries = sum(
            RECORD_COST_BYTES + 4 * len(one.record.get("summary", ""))
            for kept in self.compactions.values()
            for one in kept
        )
        return RECORD_COST_BYTES + summaries + sum(run.size_bytes for run in self.runs.values())

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
        return History(
            fold.runs, records[-1].seq, fold.settings, fold.dropped, fold.snapshot, self.runs_max, fold.compactions
        )

    def earlier_runs(self, run: RunRecord) -> tuple[list[RunRecord], int]:
        """The ended runs that this run has in its input, in order, and the number of older ones that it has not.

        A run whose start is recorded has the same input in every attempt.
        """
        if run.seqs:
            return [self.runs[name] for name in run.input if name in self.runs], run.left_out
        own = _group_of(run.agent, run.spec)
        scope, uncovered = _scope_of(own), run.seen + 1
        ended = [
            other
            for other in self.runs.values()
            if 0 < other.ended <= run.seen
            and not other.superseded
            and other.covered.get(scope, uncovered) > run.seen
            and _sees(own, other.group)
        ]
        kept = ended[max(0, len(ended) - self.runs_max) :]
        return kept, len(ended) - len(kept) + self.dropped.visible_to(run)

    def compaction_before(self, run: RunRecord) -> Compaction | None:
        """The compaction that the input of this run starts with, if there is one: the last when it started."""
        if run.seqs:
            return run.base
        found = self.compactions.get(_scope_of(_group_of(run.agent, run.spec)), ())
        return next((one for one in reversed(found) if one.seq <= run.seen), None)


class _Fold:
    """Folds records into a copy of a history. Runs not in `_own` belong to that history, so they are copied first."""

    def __init__(self, before: History) -> None:
        self.runs = dict(before.runs)
        self.settings = before.settings
        self.dropped = before.dropped
        self.snapshot = before.snapshot
        self.compactions = dict(before.compactions)
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
        if kind == "compaction":
            self._cover(self.runs[name], record)
        elif kind == "superseded":
            self._uncover(self.runs[name])
        add_record(self._change(name), record)

    def _change(self, name: str) -> RunRecord:
        """The run, to be changed."""
        if name not in self._own:
            self.runs[name] = self.runs[name].copy()
            self._own.add(name)
        return self.runs[name]

    def _cover(self, run: RunRecord, record: Record) -> None:
        """Let later runs start from a compaction, without the earlier runs that it covers."""
        made = Compaction(record.seq, run.run, cast(CompactionRecord, record.payload))
        last = made.record["through"]["run"]
        if not made.is_of_own_turns and last not in run.input:
            return
        names = run.input if made.is_of_own_turns else run.input[: run.input.index(last) + 1]
        scope = _scope_of(run.group)
        for name in names:
            if name in self.runs:
                self._change(name).covered.setdefault(scope, made.seq)
        # Of the compactions that cover a part of this run, the last one is enough. The others stay: if the answer of
        # the run is replaced, later runs start from the one before.
        known = self.compactions.get(scope, ())
        for old in known:
            if old.run == run.run and old.is_of_own_turns:
                self._move_cover(scope, old.seq, made.seq)
        kept = [old for old in known if old.run != run.run or not old.is_of_own_turns]
        self.compactions[scope] = (*kept, made)[-COMPACTIONS_KEPT:]

    def _uncover(self, run: RunRecord) -> None:
        """Take back what covers a part of a run that is superseded: no later run may see that part."""
        scope = _scope_of(run.group)
        known = self.compactions.get(scope, ())
        for old in known:
            if old.run == run.run and old.is_of_own_turns:
                self._move_cover(scope, old.seq, None)
        if known:
            self.compactions[scope] = tuple(old for old in known if old.run != run.run or not old.is_of_own_turns)

    def _move_cover(self, scope: KeptGroup, old: int, new: int | None) -> None:
        """Say that runs which the compaction `old` covers are covered by another one, or by none."""
        for name in [name for name, run in self.runs.items() if run.covered.get(scope) == old]:
            covered = self._change(name).covered
            if new is None:
                del covered[scope]
            else:
                covered[scope] = new

    def _start(self, name: str, record: Record) -> None:
        run = started_run(record)
        if "again" in record.payload:
            self.dropped = self.dropped.without(run)
        now = History(self.runs, dropped=self.dropped, runs_max=self._before.runs_max, compactions=self.compactions)
        earlier, run.left_out = now.earlier_runs(run)
        run.input = tuple(other.run for other in earlier)
        run.base = now.compaction_before(run)
        note_record(run, record)
        self.runs[name] = run
        self._own.add(name)
        if len(self.runs) % DROP_EVERY == 0:
            self._drop()

    def _drop(self) -> None:
        """Drop the runs that no later run needs."""
        kept = _last_runs(self.runs.values(), self._before.runs_max + RUNS_RESERVE)
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


def _last_runs(runs: Reversible[RunRecord], runs_max: int) -> set[str]:
    """The runs that have not ended, and the last `runs_max` of each group. Of the superseded runs none counts.

    A covered run counts while few runs have started since: one of them may have been read before the compaction.
    """
    last: set[str] = set()
    newer: Counter[KeptGroup] = Counter()
    starts = sorted(run.seqs[0] for run in reversed(runs))
    for run in reversed(runs):
        if run.end is None:
            last.add(run.run)
        elif not run.superseded:
            groups = _kept_groups(run, starts)
            if any(newer[group] < runs_max for group in groups):
                last.add(run.run)
            newer.update(groups)
    return last


def _kept_groups(run: RunRecord, starts: Sequence[int]) -> list[KeptGroup]:
    """The groups of which a history keeps the last runs, as far as this run is in them. `starts` are all seqs."""
    kind, agent, scenario = run.group
    covered = run.covered.get(_scope_of(run.group))
    groups: list[KeptGroup] = []
    if covered is None or len(starts) - bisect_right(starts, covered) < RUNS_RESERVE:
        groups.append(("agent", kind, agent))
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
    if record.payload["kind"] == "compaction":
        run.compactions.append(cast(CompactionRecord, record.payload))
    else:
        _apply(run, record)
    if not run.may_run_again:
        run.input, run.base, run.left_out = (), None, 0
    note_record(run, record)


def note_record(run: RunRecord, record: Record) -> None:
    run.seqs.append(record.seq)
    run.size_bytes += record.size_bytes + RECORD_COST_BYTES


def _apply(run: RunRecord, record: Record) -> None:
    payload = record.payload
    kind = payload["kind"]
    run.budgets = tuple(budget for budget, _ in payload.get("budgets", ())) if kind == "pause" else ()
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
    elif kind == "superseded":
        run.superseded = payload["by"]
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
    fold that still has the run they change nothing. Compactions are not repeated: the run has the input of a new one.
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


def is_usable(record: Record, runs_max: int) -> bool:
    """Whether a record is a snapshot that a reader who needs this number of runs can start from."""
    payload = record.payload
    if record.erased or payload.get("kind") != "snapshot" or payload.get("version") != SNAPSHOT_VERSION:
        return False
    return bool(payload["runs_max"] >= runs_max)
