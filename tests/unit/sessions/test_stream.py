"""The second rendering: one stored record, one flat event."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.bus.records import Record
from magent2.models.api.messages import TranscriptMessage
from magent2.models.envelope import OutputEvent, TokenEvent, ToolStepEvent
from magent2.models.events import CompactedEvent, ErrorEvent, HandoffEvent, MessageEvent, RunEvent, SessionEvent
from magent2.sessions.folds import TranscriptFold, transcript
from magent2.sessions.history import sum_usage
from magent2.sessions.stream import FlatEvent, event_payload, flat_event, stream_record

FIELDS = [
    "session_id", "seq", "type", "message_id", "token_seq", "role", "agent_id", "text", "final", "reason", "data",
    "timestamp_ms",
]  # fmt: skip


def record(event: Any, seq: int = 7, **more: Any) -> Record:
    return Record("stream:s1", {**event_payload(event), **more}, "x", seq=seq, at_ms=1000)


def shown(event: Any, **more: Any) -> FlatEvent:
    found = flat_event("s1", record(event, **more))
    assert found is not None
    assert list(found) == FIELDS
    return found


def some(event: Any, *names: str, **more: Any) -> tuple[Any, ...]:
    found = shown(event, **more)
    return tuple(dict(found)[name] for name in names)


def test_every_event_says_whose_it_is_and_when_it_was() -> None:
    assert some(SessionEvent(conversation_id="s1", status="updated"), "session_id", "seq", "timestamp_ms") == (
        "s1",
        7,
        1000,
    )


def run_event(status: str) -> dict[str, Any]:
    return {"event": "run", "conversation_id": "s1", "run_id": "r1", "status": status}


def test_a_token_is_a_draft_of_its_run_and_what_ends_the_text_closes_it() -> None:
    text = {"conversation_id": "s1", "run_id": "r1", "message_id": "r1/0", "text": "hi"}

    assert stream_record({**text, "event": "token"}).draft == "r1"
    closing = [{**text, "event": "output"}, {**text, "event": "message"}]
    closing += [run_event(status) for status in ("restarted", "stopped", "failed")]
    assert [stream_record(event).closes for event in closing] == ["r1"] * 5
    assert [stream_record(run_event(status)).closes for status in ("started", "finished")] == [None, None]


def test_a_token_without_a_run_is_a_draft_of_its_message_or_none() -> None:
    text = {"conversation_id": "s1", "text": "hi"}

    assert stream_record({**text, "event": "token", "message_id": "m1"}).draft == "m1"
    assert stream_record({**text, "event": "output", "message_id": "m1"}).closes == "m1"
    assert stream_record({**text, "event": "token"}).draft is None


def test_what_a_person_says_is_a_message() -> None:
    event = {"event": "user_message", "message_id": "m1", "sender": "user:ann", "recipient": "chat:s1", "text": "hi"}

    assert some(event, "type", "role", "message_id", "text", "final") == ("message", "user", "m1", "hi", True)
    assert shown(event)["data"] == {"sender": "user:ann", "recipient": "chat:s1"}


def test_a_token_is_a_numbered_piece() -> None:
    event = TokenEvent(conversation_id="s1", text="he", index=3)

    found = shown(event, agent="desk", message_id="r/0")

    assert (found["type"], found["token_seq"], found["text"], found["final"]) == ("token", 3, "he", False)
    assert (found["role"], found["agent_id"], found["message_id"]) == ("assistant", "desk", "r/0")


def test_an_output_is_the_final_message_and_names_what_it_answers() -> None:
    event = OutputEvent(conversation_id="s1", text="hello", usage={"total_tokens": 2})

    found = shown(event, agent="desk", message_id="r/1", reply_to="m1")

    assert (found["type"], found["role"], found["final"], found["text"]) == ("message", "assistant", True, "hello")
    assert found["data"] == {"usage": {"total_tokens": 2}, "reply_to": "m1"}


def test_the_output_of_a_tool_run_by_hand_is_no_message() -> None:
    event = OutputEvent(conversation_id="s1", text="hello")

    assert some(event, "type", "role", run_kind="tool") == ("output", "tool")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"status": "start", "args": {"a": 1}}, ("tool_call", None, None)),
        ({"status": "success", "result_summary": "4"}, ("tool_result", "4", None)),
        ({"status": "error", "result_summary": "", "error": "no"}, ("tool_result", "", "no")),
        ({}, ("tool_call", None, None)),
        ({"result_summary": "4"}, ("tool_result", "4", None)),
    ],
)
def test_a_step_is_a_call_or_its_result(step: dict[str, Any], expected: tuple[Any, ...]) -> None:
    event = ToolStepEvent(conversation_id="s1", name="sum", tool_call_id="c1", **step)

    assert some(event, "type", "text", "reason") == expected
    assert shown(event)["data"]["name"] == "sum"


def test_a_handoff_names_who_goes_on_and_why() -> None:
    event = HandoffEvent(conversation_id="s1", source="desk", target="shop", reason="manual_switch")

    assert some(event, "type", "agent_id", "reason") == ("handoff", "shop", "manual_switch")
    assert shown(event)["data"]["source"] == "desk"


def test_others_go_by_their_name() -> None:
    run = RunEvent(conversation_id="s1", status="failed", envelope_id="m1", run_id="r", agent="desk", reason="why")
    error = ErrorEvent(conversation_id="s1", code="run_failed", message="it broke", retry_in_s=1.0)
    message = MessageEvent(conversation_id="s1", text="let me look", message_id="r/0", agent="desk")

    assert some(run, "type", "agent_id", "reason", "final") == ("run", "desk", "why", True)
    assert shown(run)["data"] == {"run_id": "r", "status": "failed", "envelope_id": "m1"}
    assert some(error, "type", "text", "reason", "data") == ("error", "it broke", "run_failed", {"retry_in_s": 1.0})
    assert some(message, "type", "role", "final") == ("message", "assistant", True)


def test_a_change_of_the_session_says_what_has_changed() -> None:
    event = SessionEvent(conversation_id="s1", status="updated", data={"changed": ["overlay"]})

    assert some(event, "type", "reason", "data") == ("session", "updated", {"changed": ["overlay"]})


@pytest.mark.parametrize("kind", [None, 7, "", "two\nlines", "x" * 65])
def test_a_record_that_does_not_say_what_it_is_is_called_a_record(kind: Any) -> None:
    assert some({"event": kind}, "type") == ("record",)


def test_an_erased_record_shows_nothing() -> None:
    assert flat_event("s1", Record("stream:s1", {}, "x", seq=1, erased=True)) is None


def test_the_transcript_is_what_was_said() -> None:
    question = {"event": "user_message", "message_id": "m1", "sender": "user:ann", "text": "hi"}
    token = TokenEvent(conversation_id="s1", text="he", index=0)
    answer = OutputEvent(conversation_id="s1", text="hello")
    by_hand = OutputEvent(conversation_id="s1", text="{}")
    records = [
        record(question, 1),
        record(token, 2),
        record(answer, 3, agent="desk", message_id="r/0", reply_to="m1"),
        record(by_hand, 4, run_kind="tool"),
    ]

    lines = transcript("s1", records)

    assert [(line["seq"], line["role"], line["agent_id"], line["text"]) for line in lines] == [
        (1, "user", None, "hi"),
        (3, "assistant", "desk", "hello"),
    ]
    assert [line["reply_to"] for line in lines] == [None, "m1"]


def compacted(through_run: str, summary: str | None = "They met.") -> CompactedEvent:
    return CompactedEvent(
        conversation_id="s1", reason="size", summary=summary, model="small", tokens_before=900, tokens_after=300,
        through_run=through_run, run_id="r2", agent="desk",
    )  # fmt: skip


def test_the_transcript_has_the_summary_of_a_compaction_and_what_it_covers() -> None:
    lines = transcript("s1", [record(compacted("r1"), 5), record(compacted("r1", None), 6)])

    assert [(line["seq"], line["role"], line["agent_id"], line["text"]) for line in lines] == [
        (5, "system", "desk", "They met."),
        (6, "system", "desk", ""),
    ]
    assert lines[0]["compaction"] == {
        "reason": "size", "model": "small", "run_id": "r2", "through_run": "r1", "through_turn": None,
        "tokens_before": 900, "tokens_after": 300,
    }  # fmt: skip
    for line in lines:
        TranscriptMessage.model_validate(line)


def test_a_compaction_of_turns_leaves_the_transcript_with_its_run_and_one_of_earlier_runs_stays() -> None:
    fold = TranscriptFold("s1")
    fold.take(record({**run_event("started"), "run_id": "r2", "envelope_id": "m2"}, 4))
    fold.take(record(compacted("r1"), 5))
    fold.take(record(compacted("r2"), 6))

    fold.supersede({"event": "superseded", "run_id": "r2", "envelope_id": "m2", "messages": []})

    assert [line["seq"] for line in fold.lines] == [5]


def test_usage_adds_up_also_inside() -> None:
    first = {"total_tokens": 2, "details": {"cached": 1}, "model": "small"}

    assert sum_usage(sum_usage({}, first), {"total_tokens": 3, "details": {"cached": 4, "new": 1}, "flag": True}) == {
        "total_tokens": 5,
        "details": {"cached": 5, "new": 1},
    }
