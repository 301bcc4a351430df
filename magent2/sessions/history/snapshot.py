"""Snapshots of the fold of a history, from which a reader starts instead of reading all records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, cast

from magent2.bus.records import NewRecord, Record
from magent2.models.address import history_topic
from magent2.models.json_types import JsonObject
from magent2.sessions.history.fold import (
    SNAPSHOT_VERSION,
    Compaction,
    DroppedRuns,
    History,
    KeptGroup,
    RunRecord,
    add_record,
    note_record,
    started_run,
)
from magent2.sessions.history.records import CompactionRecord, RecordedSettings

SNAPSHOT_MAX_BYTES = 1 << 19  # a larger snapshot is not written
SPAN_GAP = 32  # records; ranges of a snapshot that are closer are read as one


class SnapshotRecord(TypedDict):
    """The payload of a `snapshot`: the fold of the records up to the seq `last`.

    It holds totals and settings, and names the runs of the fold instead of repeating them: `runs` maps each one to the
    seq of its start, and `spans` are the ranges of seqs that contain their records. `inputs` are the input of the runs
    that may still need it, as indices of `runs`, followed by the number of runs that were left out. `bases` are the
    compactions that their input starts with, and `compactions` those of later runs, by the seqs of their records.
    `covered` has, for each group of runs that share compactions, the indices of covered runs and the compaction.
    """

    version: int
    last: int
    runs_max: int
    settings: RecordedSettings
    runs: dict[str, int]
    spans: list[tuple[int, int]]
    inputs: dict[str, tuple[list[int], int]]
    bases: dict[str, int]
    compactions: list[tuple[str, str | None, str | None, list[int]]]
    covered: list[tuple[str, str | None, str | None, list[tuple[int, int]]]]
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
    again = [run for run in history.runs.values() if run.may_run_again]
    with_input = (run for run in again if run.input or run.left_out)
    inputs = {run.run: (_places(run.input, names), run.left_out) for run in with_input}
    bases = {run.run: run.base.seq for run in again if run.base is not None}
    kept = {one.seq for found in history.compactions.values() for one in found} | set(bases.values())
    dropped = history.dropped
    snapshot: SnapshotRecord = {
        "version": SNAPSHOT_VERSION,
        "last": history.last,
        "runs_max": history.runs_max,
        "settings": history.settings,
        "runs": {name: run.seqs[0] for name, run in history.runs.items()},
        "spans": _spans_of(kept.union(*(run.seqs for run in history.runs.values()))),
        "inputs": inputs,
        "bases": bases,
        "compactions": _compaction_seqs(history),
        "covered": [(*scope, runs) for scope, runs in _covered_runs(history, names).items()],
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


def _places(runs: Iterable[str], names: Mapping[str, int]) -> list[int]:
    return [names[name] for name in runs if name in names]


def _compaction_seqs(history: History) -> list[tuple[str, str | None, str | None, list[int]]]:
    """The seqs of the compactions, by scope."""
    return [(*scope, [one.seq for one in found]) for scope, found in history.compactions.items() if found]


def _covered_runs(history: History, names: Mapping[str, int]) -> dict[KeptGroup, list[tuple[int, int]]]:
    """The runs that compactions cover, by scope: the place of each in the snapshot, and the seq of the compaction."""
    covered: dict[KeptGroup, list[tuple[int, int]]] = {}
    for run in history.runs.values():
        for scope, seq in run.covered.items():
            covered.setdefault(scope, []).append((names[run.run], seq))
    return covered


def _spans_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if spans and seq - spans[-1][1] <= SPAN_GAP:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return spans


def from_snapshot(snapshot: SnapshotRecord, records: Iterable[Record]) -> History:
    """The history of a snapshot. `records` are those in its spans, in order; others among them are ignored."""
    firsts = snapshot["runs"]
    runs: dict[str, RunRecord] = {}
    made: dict[int, Compaction] = {}
    for record in records:
        name = record.payload.get("run")
        if record.erased or record.seq > snapshot["last"]:
            continue
        if record.payload.get("kind") == "compaction":
            made[record.seq] = Compaction(record.seq, str(name), cast(CompactionRecord, record.payload))
        if name not in firsts:
            continue
        # A run that was dropped and started again has earlier records, which are not part of the fold any more.
        if record.seq == firsts[name]:
            runs[name] = started_run(record)
            note_record(runs[name], record)
        elif name in runs:
            add_record(runs[name], record)
    _restore_inputs(runs, snapshot, made)
    dropped = DroppedRuns(
        ended=snapshot["ended"],
        asked=snapshot["asked"],
        usage=snapshot["usage"],
        by_agent=snapshot["by_agent"],
        groups={(kind, agent, scenario): count for kind, agent, scenario, count in snapshot["groups"]},
        received=snapshot["received"],
    )
    compactions = {
        (part, kind, name): tuple(made[seq] for seq in seqs if seq in made)
        for part, kind, name, seqs in snapshot["compactions"]
    }
    last = snapshot["last"]
    return History(runs, last, snapshot["settings"], dropped, last, snapshot["runs_max"], compactions)


def _restore_inputs(runs: dict[str, RunRecord], snapshot: SnapshotRecord, made: Mapping[int, Compaction]) -> None:
    """Set what the records of a run do not say: its input, and which compactions cover it."""
    names = list(snapshot["runs"])
    for name, (indices, left_out) in snapshot["inputs"].items():
        if name in runs:
            runs[name].input, runs[name].left_out = tuple(names[index] for index in indices), left_out
    for name, seq in snapshot["bases"].items():
        if name in runs:
            runs[name].base = made.get(seq)
    for part, kind, group, covered in snapshot["covered"]:
        for index, seq in covered:
            if names[index] in runs:
                runs[names[index]].covered[part, kind, group] = seq
