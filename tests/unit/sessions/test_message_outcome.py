"""What became of one message, read from the stream."""

from __future__ import annotations

from typing import Any

from magent2.bus.records import Record
from magent2.sessions.message_outcome import EVENTS_MAX, MessageOutcome


def fold(*payloads: dict[str, Any]) -> MessageOutcome:
    exchange = MessageOutcome("m1")
    for seq, payload in enumerate(payloads, 1):
        exchange.take(Record("stream:s1", payload, f"@{seq}", seq=seq))
    return exchange


def run(status: str, envelope: str = "m1", **more: Any) -> dict[str, Any]:
    return {"event": "run", "status": status, "envelope_id": envelope, "run_id": f"run-{envelope}", **more}


QUESTION = {"event": "user_message", "message_id": "m1", "text": "hi"}
OUTPUT = {
    "event": "output",
    "run_id": "run-m1",
    "message_id": "run-m1/0",
    "text": "hello",
    "usage": {"total_tokens": 2},
}


def test_it_keeps_what_belongs_to_the_message() -> None:
    other = {"event": "output", "run_id": "run-m2", "text": "not mine"}

    exchange = fold(
        {"event": "session"}, QUESTION, run("started", "m2"), run("started"), other, OUTPUT, run("finished")
    )

    assert [record.seq for record in exchange.records] == [2, 4, 6, 7]
    assert (exchange.status, exchange.text, exchange.message_id) == ("finished", "hello", "run-m1/0")
    assert exchange.usage == {"total_tokens": 2}


def test_it_is_not_over_before_the_run_is() -> None:
    assert fold(QUESTION, run("started"), OUTPUT).status is None
    assert fold(QUESTION, run("started"), run("finished", "m2")).status is None


def test_a_run_that_begins_again_is_not_over() -> None:
    failed = (QUESTION, run("started"), run("failed", reason="no"))

    assert (fold(*failed).status, fold(*failed).reason) == ("failed", "no")
    assert fold(*failed, run("restarted")).status is None
    assert fold(*failed, run("restarted"), OUTPUT, run("finished")).status == "finished"


def test_each_call_is_told_once_with_its_result() -> None:
    step = {"event": "tool_step", "run_id": "run-m1", "turn": 0, "agent": "desk", "name": "sum"}

    exchange = fold(
        run("started"),
        {**step, "tool_call_id": "c1", "status": "start", "args": {"a": 1}},
        {**step, "tool_call_id": "c2", "status": "start"},
        {**step, "tool_call_id": "c1", "status": "success", "result_summary": "4", "duration_ms": 3},
    )

    first, second = exchange.tool_calls()
    assert first == {
        "tool_call_id": "c1", "name": "sum", "agent_id": "desk", "args": {"a": 1}, "status": "success", "result": "4",
        "error": None, "duration_ms": 3,
    }  # fmt: skip
    assert (second["tool_call_id"], second["status"], second["result"]) == ("c2", "start", None)


def test_a_very_long_answer_leaves_out_drafts_and_nothing_else() -> None:
    token = {"event": "token", "run_id": "run-m1", "text": "x"}

    exchange = fold(run("started"), *[token] * (EVENTS_MAX + 10), OUTPUT, run("finished"))

    assert len(exchange.records) == EVENTS_MAX + 2
    assert exchange.records[-2].payload is OUTPUT
