"""Compactions in the fold of a history: what later runs start with, and what the fold and its snapshots keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from magent2.bus.records import NewRecord, Record
from magent2.sessions.folds import NO_SUMMARY, SUMMARY_HEADING, model_input, session_usage
from magent2.sessions.history import CompactionRecord, History, RunKey, RunRecord, Through, snapshot_record
from magent2.sessions.history.fold import SNAPSHOT_EVERY
from magent2.sessions.history.snapshot import from_snapshot

TALK: dict[str, Any] = {"kind": "message"}
DESK: dict[str, Any] = {"kind": "message", "scenario_id": "desk"}


@dataclass
class Written:
    """A history as workers write it."""

    records: list[Record] = field(default_factory=list)
    history: History = field(default_factory=History)

    def write(self, *records: NewRecord) -> int:
        for record in records:
            seq, payload = len(self.records) + 1, orjson.loads(record.body)
            self.records.append(Record(record.topic, payload, f"@{seq}", seq, 0, {}, size_bytes=len(record.body)))
            self.history = self.history.followed_by(self.records[-1:])
        return len(self.records)

    def start(self, name: str, agent: str = "Ann", spec: dict[str, Any] = TALK) -> RunKey:
        key = RunKey("one", name, agent)
        envelope = {"id": f"message-{name}", "sender": "user:ann", "content": f"question {name}"}
        self.write(key.start(envelope, spec, self.history.last, mail=1))
        return key

    def answer(self, key: RunKey, turn: int = 0) -> None:
        text = [{"type": "output_text", "text": f"answer {key.run}/{turn}"}]
        self.write(key.answer(turn, {"output": [{"type": "message", "role": "assistant", "content": text}]}, key.agent))

    def run(self, name: str, agent: str = "Ann", spec: dict[str, Any] = TALK) -> RunKey:
        """Write a whole run."""
        key = self.start(name, agent, spec)
        self.answer(key)
        self.write(key.end("finished", "done", {"total_tokens": 1}))
        return key

    def compact(self, key: RunKey, through: Through, turn: int = 0, summary: str | None = "summary") -> int:
        made: CompactionRecord = {
            "turn": turn,
            "through": through,
            "reason": "size",
            "tokens_before": 9,
            "tokens_after": 5,
        }
        if summary is not None:
            made["summary"] = summary
        return self.write(key.compaction(made))

    def input_of(self, name: str = "next", agent: str = "Ann", spec: dict[str, Any] = TALK) -> list[str]:
        """The texts in the input of a run that starts now."""
        run = RunRecord(name, agent, {"content": f"question {name}", "sender": "user:ann"}, spec, self.history.last)
        return [str(item["content"]) for item in model_input(self.history, run).items if item.get("role") == "user"]


def summarised(text: str) -> str:
    return f"{SUMMARY_HEADING}\n\n{text}"


def test_a_later_run_starts_with_the_summary_and_the_runs_behind_it() -> None:
    written = Written()
    for name in ("a", "b", "c"):
        written.run(name)
    key = written.start("d")
    written.compact(key, {"run": "b"})
    written.answer(key)
    written.write(key.end("finished"))

    assert written.input_of() == [summarised("summary"), "question c", "question d", "question next"]


def test_the_turns_that_a_run_has_compacted_are_not_shown_to_later_runs() -> None:
    written = Written()
    written.run("a")
    key = written.start("b")
    for turn in range(4):
        written.answer(key, turn)
        if turn == 2:
            written.compact(key, {"run": "b", "turn": 1}, turn=3)
    written.write(key.end("finished"))

    assert written.input_of() == [summarised("summary"), "question b", "question next"]
    run = RunRecord("next", "Ann", {"content": "next"}, TALK, written.history.last)
    shown = str(model_input(written.history, run).items)
    assert "answer b/2" in shown
    assert "answer b/1" not in shown


def test_a_compaction_without_a_summary_says_so() -> None:
    written = Written()
    written.run("a")
    key = written.start("b")
    written.compact(key, {"run": "a"}, summary=None)
    written.write(key.end("finished"))

    assert written.input_of() == [NO_SUMMARY, "question b", "question next"]


def test_agents_of_a_scenario_share_their_compactions_and_others_do_not() -> None:
    written = Written()
    written.run("a", "Ann", DESK)
    key = written.start("b", "Bob", DESK)
    written.compact(key, {"run": "a"})
    written.write(key.end("finished"))

    assert written.input_of(agent="Ann", spec=DESK)[0] == summarised("summary")
    assert written.input_of(agent="Ann", spec=TALK) == ["question a", "question next"]


def test_a_replaced_answer_takes_back_the_summary_of_its_own_turns_only() -> None:
    written = Written()
    for name in ("a", "b"):
        written.run(name)
    key = written.start("c")
    written.compact(key, {"run": "a"}, summary="of a")
    written.answer(key)
    written.answer(key, 1)
    written.compact(key, {"run": "c", "turn": 0}, turn=2, summary="with the secret of c")
    written.compact(key, {"run": "c", "turn": 1}, turn=3, summary="with more of c")
    written.write(key.end("finished"))
    assert written.input_of()[0] == summarised("with more of c")

    written.write(key.superseded("message-d"))

    assert written.input_of() == [summarised("of a"), "question b", "question next"]


def test_a_run_keeps_the_input_that_it_started_with() -> None:
    written = Written()
    for name in ("a", "b"):
        written.run(name, "Ann", DESK)
    slow = written.start("slow", "Bob", DESK)
    key = written.start("c", "Ann", DESK)
    written.compact(key, {"run": "b"})
    written.write(key.end("finished"))

    shown = model_input(written.history, written.history.runs[slow.run])

    assert [name for name, _ in shown.runs] == ["a", "b"]
    assert written.input_of(spec=DESK)[0] == summarised("summary")


def test_a_run_that_read_the_history_before_a_compaction_does_not_start_with_it() -> None:
    written = Written()
    for name in ("a", "b"):
        written.run(name, "Ann", DESK)
    seen = written.history.last
    key = written.start("c", "Ann", DESK)
    written.compact(key, {"run": "b"})
    late = RunKey("one", "late", "Bob")

    written.write(late.start({"id": "message-late", "content": "late"}, DESK, seen))
    written.compact(key, {"run": "b"}, summary="another", turn=1)

    run = written.history.runs["late"]
    assert (run.input, run.base) == (("a", "b"), None)
    assert written.history.compaction_before(run) is None


def test_the_compaction_that_a_run_started_with_stays_its_own() -> None:
    written = Written()
    written.run("a", "Ann", DESK)
    key = written.start("b", "Ann", DESK)
    written.compact(key, {"run": "a"}, summary="first")
    slow = written.start("slow", "Bob", DESK)
    written.compact(key, {"run": "b", "turn": 0}, summary="second", turn=1)

    assert summarised("first") in str(model_input(written.history, written.history.runs[slow.run]).items[0]["content"])


def long_history(runs: int, every: int) -> Written:
    """Many runs, of which each `every`-th compacts all runs before it."""
    written = Written()
    for number in range(runs):
        key = written.start(f"run-{number}")
        if number and number % every == 0:
            written.compact(key, {"run": f"run-{number - 1}"}, summary=f"up to {number}")
        written.answer(key)
        written.write(key.end("finished", "done", {"total_tokens": 1}))
    return written


@pytest.mark.parametrize("runs", [300, 1_200])
def test_the_fold_and_its_snapshot_stay_small_however_long_the_history_is(runs: int) -> None:
    written = long_history(runs, every=20)

    snapshot = snapshot_record("one", written.history)

    assert snapshot is not None
    assert len(written.history.runs) <= 60
    assert len(snapshot.body) < 8_000
    assert session_usage(written.history)["runs"] == runs
    spanned = sum(last - first + 1 for first, last in orjson.loads(snapshot.body)["spans"])
    assert spanned <= 60 * 4 + SNAPSHOT_EVERY


def test_a_snapshot_names_a_compaction_whose_run_the_fold_has_dropped() -> None:
    """The compaction is needed for as long as no other one is made, also when its run is far behind."""
    written = Written()
    written.run("a")
    key = written.start("b")
    written.compact(key, {"run": "b", "turn": 0}, turn=1, summary="long ago")
    written.answer(key)
    written.write(key.end("finished"))
    for number in range(400):
        written.run(f"run-{number}")
    assert "b" not in written.history.runs
    snapshot = snapshot_record("one", written.history)
    assert snapshot is not None
    payload = orjson.loads(snapshot.body)

    spans = payload["spans"]
    loaded = from_snapshot(payload, [one for one in written.records if any(a <= one.seq <= b for a, b in spans)])

    written.history = loaded
    assert written.input_of()[0] == summarised("long ago")


def test_a_compaction_of_a_run_that_the_history_does_not_have_is_ignored() -> None:
    written = Written()
    written.run("a")
    written.compact(RunKey("one", "unknown", "Ann"), {"run": "a"})
    key = written.start("b")
    written.compact(key, {"run": "never seen"})
    written.write(key.end("finished"))

    assert written.input_of() == ["question a", "question b", "question next"]
