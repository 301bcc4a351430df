"""The fold of a history stays small, and a snapshot with the records after it gives the same fold as all records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Trim
from magent2.bus.records import NewRecord, Record
from magent2.sessions.folds import session_usage
from magent2.sessions.history import (
    CompactionRecord,
    History,
    RunKey,
    RunRecord,
    Through,
    read_history,
    restart_records,
    settings_record,
    snapshot_record,
)
from magent2.sessions.history.records import EndStatus
from magent2.sessions.history.snapshot import from_snapshot

RUNS_MAX = 2
EVERYTHING = 1_000_000  # runs; a fold with this limit drops none
SPECS: dict[str, dict[str, Any]] = {
    "Ann": {"kind": "message", "scenario_id": "desk"},
    "Bob": {"kind": "message", "scenario_id": "desk"},
    "Cyd": {"kind": "message"},
    "Dan": {"kind": "tool", "scenario_id": "desk"},
}
Scope: TypeAlias = tuple[str, str]  # a kind of runs, and a scenario or an agent
STATUSES: tuple[EndStatus, ...] = ("finished", "failed", "stopped")


@contextmanager
def small_window() -> Iterator[None]:
    """Make the fold drop runs early and often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magent2.sessions.history.fold.RUNS_RESERVE", 1)
        patch.setattr("magent2.sessions.history.fold.DROP_EVERY", 2)
        patch.setattr("magent2.sessions.history.snapshot.SPAN_GAP", 3)
        yield


@dataclass
class GeneratedHistory:
    """A history as workers write it, one step at a time, with both folds of it."""

    records: list[Record] = field(default_factory=list)
    bounded: History = field(default_factory=lambda: History(runs_max=RUNS_MAX))
    whole: History = field(default_factory=lambda: History(runs_max=EVERYTHING))
    inputs: dict[str, tuple[list[str], int]] = field(default_factory=dict)  # of each run, as of its start
    bases: dict[str, str] = field(default_factory=dict)  # the summary that each run starts with
    covered: dict[Scope, dict[str, str]] = field(default_factory=dict)  # by scope: covered runs, and for what own turns
    summaries: dict[Scope, dict[int, str]] = field(default_factory=dict)  # by scope and seq
    of_own_turns: dict[str, dict[Scope, int]] = field(default_factory=dict)  # by run and scope: the seq of the last one
    started: int = 0

    def write(self, *records: NewRecord) -> None:
        seq = len(self.records)
        new = [_stored(record, seq + number) for number, record in enumerate(records, 1)]
        self.records += new
        self.bounded = self.bounded.followed_by(new)
        self.whole = self.whole.followed_by(new)

    def step(self, agent: str, action: str, status: EndStatus, choice: int) -> None:
        run = next((run for run in self.whole.runs.values() if run.agent == agent and run.end is None), None)
        if action == "settings":
            self.write(settings_record("one", {"overlay": f"overlay {choice}"}))
        elif action == "snapshot":
            self._snapshot(choice)
        elif action == "superseded":
            self._supersede()
        elif action == "again":
            self._start_again(agent, run, choice)
        elif action == "compaction":
            self._compact(run, choice)
        elif run is None:
            self._start(agent)
        else:
            self.write(_record_of(run, action, status, choice))

    def _start(self, agent: str) -> None:
        self.started += 1
        key, seen = RunKey("one", f"run-{self.started}", agent), self.whole.last
        envelope = {"id": f"message-{self.started}", "sender": "user:ann"}
        covered = self.covered.get(scope_of(agent), {})
        ended = [
            run
            for run in self.whole.runs.values()
            if 0 < run.ended <= seen and not run.superseded and _may_see(agent, run) and run.run not in covered
        ]
        self.bases[key.run] = max(self.summaries.get(scope_of(agent), {}).items(), default=(0, ""))[1]
        self.inputs[key.run] = [run.run for run in ended[-RUNS_MAX:]], max(0, len(ended) - RUNS_MAX)
        self.write(key.start(envelope, SPECS[agent], seen, mail=self.started))

    def _start_again(self, agent: str, open_run: RunRecord | None, choice: int) -> None:
        """Retry the dead letter of a failed run, as a worker does."""
        failed = [run for run in self.whole.runs.values() if run.agent == agent and _has_failed(run)]
        if open_run is not None or not failed:
            return
        run = failed[choice % len(failed)]
        key = RunKey("one", run.run, agent)
        if run.run not in self.bounded.runs:
            again = replace(run, seen=self.whole.last)
            self.inputs.pop(run.run)  # it sees what a new run would see
            self.write(*restart_records(key, again, mail=self.started))
        self.write(key.pause(99, 2, []))

    def _supersede(self) -> None:
        """Replace the last answer, which is possible while no run is in progress."""
        talk = [run for run in self.whole.runs.values() if run.spec["kind"] != "tool" and not run.superseded]
        if talk and all(run.end is not None for run in self.whole.runs.values()):
            last = talk[-1].run
            self.write(RunKey("one", last, talk[-1].agent).superseded(f"message-{self.started + 1}"))
            for name, seq in self.of_own_turns.pop(last, {}).items():
                self.summaries[name].pop(seq)
                self.covered[name] = {run: maker for run, maker in self.covered[name].items() if maker != last}

    def _compact(self, run: RunRecord | None, choice: int) -> None:
        """Let a run in progress cover some of its input, or a part of itself too."""
        if run is None or run.run not in self.inputs or run.spec["kind"] == "tool":
            return
        names, scope = self.inputs[run.run][0], scope_of(run.agent)
        own = choice % 3 == 0
        if not own and not names:
            return
        through: Through = {"run": run.run, "turn": 0} if own else {"run": names[choice % len(names)]}
        covered = names if own else names[: names.index(through["run"]) + 1]
        seq = len(self.records) + 1
        made: CompactionRecord = {
            "turn": len(run.answers),
            "through": through,
            "reason": "size",
            "tokens_before": 9,
            "tokens_after": 5,
            "summary": f"summary {seq}",
        }
        self.write(RunKey("one", run.run, run.agent).compaction(made))
        for name in covered:
            self.covered.setdefault(scope, {}).setdefault(name, run.run if own else "")
        self.summaries.setdefault(scope, {})[seq] = f"summary {seq}"
        if own:
            if run.run in self.of_own_turns:
                self.summaries[scope].pop(self.of_own_turns[run.run][scope])
            self.of_own_turns[run.run] = {scope: seq}

    def _snapshot(self, choice: int) -> None:
        """Write a snapshot of some moment before: other owners may have written since."""
        known = self.records[: len(self.records) - choice % 4]
        snapshot = snapshot_record("one", History(runs_max=RUNS_MAX).followed_by(known))
        assert snapshot is not None
        self.write(snapshot)


def scope_of(agent: str) -> Scope:
    """The runs that start from the same compactions. A manual tool run is of another kind than the messages."""
    spec = SPECS[agent]
    return spec["kind"], spec.get("scenario_id") or agent


def _may_see(agent: str, other: RunRecord) -> bool:
    own, spec = SPECS[agent], other.spec
    if spec["kind"] == "tool" or spec["kind"] != own["kind"]:
        return False
    return other.agent == agent or ("scenario_id" in own and spec.get("scenario_id") == own["scenario_id"])


def _has_failed(run: RunRecord) -> bool:
    return run.end is not None and run.end["status"] == "failed" and not run.superseded


def _stored(record: NewRecord, seq: int) -> Record:
    payload = orjson.loads(record.body)
    return Record(record.topic, payload, f"@{seq}", seq, 0, dict(record.headers), size_bytes=len(record.body))


def _record_of(run: RunRecord, action: str, status: EndStatus, choice: int) -> NewRecord:
    key, turn = RunKey("one", run.run, run.agent), len(run.answers)
    if action == "answer":
        steer = {"id": f"steer-{choice}", "source": "user:ann", "text": "hurry", "seq": choice}
        return key.answer(turn, {"output": []}, run.agent, [steer] if choice % 2 else [])  # type: ignore[list-item]
    if action == "tool":
        return key.tool(turn, f"call-{choice}", "weather", "sunny")
    if action == "pause":
        call = {"call_id": f"call-{choice}", "name": "pay", "speaker": run.agent, "expires_ms": 1}
        return key.pause(turn, 1, [call])  # type: ignore[list-item]
    if action == "decision":
        return key.decision(turn, f"call-{choice}", "approved", "user:ann")
    if action == "retry":
        return key.retry(1, choice)
    if action == "defer":
        return key.defer(1, choice)
    if action == "wait":
        return key.wait(1, waits=bool(choice % 2))
    return key.end(status, "text", {"input_tokens": choice, "details": {"cached": 1}} if status == "finished" else None)


ACTIONS = st.sampled_from(
    (
        "end",
        "end",
        "end",
        "end",
        "answer",
        "tool",
        "pause",
        "decision",
        "retry",
        "defer",
        "wait",
        "settings",
        "snapshot",
        "again",
        "superseded",
        "superseded",
        "compaction",
        "compaction",
    )
)
STEPS = st.lists(
    st.tuples(st.sampled_from(tuple(SPECS)), ACTIONS, st.sampled_from(STATUSES), st.integers(0, 9)), max_size=80
)
Steps = list[tuple[str, str, EndStatus, int]]


def generate(steps: Steps) -> GeneratedHistory:
    history = GeneratedHistory()
    for step in steps:
        history.step(*step)
    return history


def spanned(records: Sequence[Record], payload: dict[str, Any]) -> list[Record]:
    return [record for record in records if any(first <= record.seq <= last for first, last in payload["spans"])]


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_snapshot_of_any_moment_and_the_records_after_it_give_the_fold_of_all(steps: Steps) -> None:
    with small_window():
        history = generate(steps)
        for moment in range(len(history.records) + 1):
            snapshot = snapshot_record("one", History(runs_max=RUNS_MAX).followed_by(history.records[:moment]))
            assert snapshot is not None
            payload = orjson.loads(snapshot.body)

            loaded = from_snapshot(payload, spanned(history.records, payload))

            after = loaded.followed_by(history.records[moment:])
            assert replace(after, snapshot=0) == replace(history.bounded, snapshot=0)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_reader_gets_the_fold_of_all_records(steps: Steps) -> None:
    with small_window(), pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_PAGE", "PAGE_MAX"):
            patch.setattr(f"magent2.sessions.history.reader.{name}", 3)
        patch.setattr("magent2.sessions.history.reader.READ_ON_MAX", 5)
        history, bus = generate(steps), MemoryBus()
        known: History | None = None
        for number, record in enumerate(history.records):
            bus.call(Append(records=(NewRecord(record.topic, record.payload, headers=record.headers),)))
            if number % 7 == 0:
                known = run_sync(bus, read_history, "one", known, RUNS_MAX)

        anew = run_sync(bus, read_history, "one", None, RUNS_MAX)
        on = run_sync(bus, read_history, "one", known, RUNS_MAX)

        bus.close()
        assert _without_ids(anew) == _without_ids(history.bounded)
        assert _without_ids(on) == _without_ids(history.bounded)


def _without_ids(history: History) -> History:
    """The history without the sizes of its records: the first record of an append may get an id."""
    runs = {name: replace(run, size_bytes=0) for name, run in history.runs.items()}
    return replace(history, runs=runs)


@settings(max_examples=200, deadline=None)
@given(STEPS)
@example([("Ann", "end", "finished", 0), ("Ann", "compaction", "finished", 0), ("Dan", "end", "finished", 0)])
def test_the_small_fold_answers_like_one_that_drops_nothing(steps: Steps) -> None:
    with small_window():
        history = generate(steps)
        bounded, whole = history.bounded, history.whole

        assert session_usage(bounded) == session_usage(whole)
        assert bounded.settings == whole.settings
        unended = {name for name, run in whole.runs.items() if run.end is None}
        assert unended <= bounded.runs.keys()
        for name, run in bounded.runs.items():
            assert _journal(run) == _journal(whole.runs[name])
            assert run.compactions == whole.runs[name].compactions or name not in history.inputs
            if run.end is None and name in history.inputs:
                earlier, left_out = bounded.earlier_runs(run)
                assert ([other.run for other in earlier], left_out) == history.inputs[name]
                base = bounded.compaction_before(run)
                assert ("" if base is None else base.record["summary"]) == history.bases[name]


def _journal(run: RunRecord) -> tuple[object, ...]:
    journal = run.answers, run.tools, run.sent, run.begun, run.asked, run.decisions
    return run.agent, run.envelope, run.spec, *journal, run.end, run.ended, run.retries, run.returns


def test_the_fold_of_a_thousand_runs_holds_the_last_ones() -> None:
    history = History()
    for number in range(1_000):
        key = RunKey("one", f"run-{number}", "Ann")
        records = key.start({"id": str(number)}, {}, history.last), key.end("finished", "hi", {"total_tokens": 2})
        history = history.followed_by(
            [_stored(record, history.last + place) for place, record in enumerate(records, 1)]
        )

    assert 128 <= len(history.runs) <= 158
    assert session_usage(history) == {
        "usage": {"total_tokens": 2_000},
        "runs": 1_000,
        "by_agent": {"Ann": {"total_tokens": 2_000}},
    }


def test_a_snapshot_outlives_the_records_that_retention_removed() -> None:
    bus, history = MemoryBus(), GeneratedHistory()
    with small_window():
        history.step("Ann", "settings", "finished", 1)
        for _ in range(40):
            history.step("Ann", "end", "finished", 3)
        history.step("Ann", "snapshot", "finished", 0)
        for record in history.records:
            bus.call(Append(records=(NewRecord(record.topic, record.payload, headers=record.headers),)))
        bus.call(Trim("history:one", keep=5))

        left = run_sync(bus, read_history, "one", None, RUNS_MAX)

    bus.close()
    assert left.settings == {"overlay": "overlay 1"}
    assert session_usage(left)["runs"] >= 16  # those that had left the fold
    assert [run.end is not None for run in left.runs.values()] == [True, True]  # those whose start is left


def test_a_snapshot_of_another_version_is_ignored() -> None:
    bus, history = MemoryBus(), GeneratedHistory()
    for _ in range(10):
        history.step("Ann", "end", "finished", 3)
    snapshot = snapshot_record("one", history.bounded)
    assert snapshot is not None
    for record in history.records:
        bus.call(Append(records=(NewRecord(record.topic, record.payload),)))
    bus.call(Append(records=(NewRecord("history:one", {**snapshot.payload, "version": 3, "runs": "other"}),)))

    found = run_sync(bus, read_history, "one", None, RUNS_MAX)

    bus.close()
    assert found.runs.keys() == history.bounded.runs.keys()
