"""From records of a stream to events of the Responses API, by tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from magent2.bus.records import Record
from magent2.gateway.openai_api.chat import completion
from magent2.gateway.openai_api.ids import BadId, ResponseId
from magent2.gateway.openai_api.mapping import EVENTS_PER_RECORD, ProtocolEvent, ResponseFacts, ResponseMapping
from magent2.gateway.openai_api.requests import ResponseRequest
from tests.support.openai_shapes import check_event, check_response

K = EVENTS_PER_RECORD
ID = ResponseId("s1", "m1", 10)
RUN: dict[str, Any] = {"run_id": "r1", "agent": "desk"}
QUESTION = {"event": "user_message", "message_id": "m1", "text": "hello"}
STARTED = {"event": "run", "status": "started", "envelope_id": "m1", **RUN}
RESTARTED = {**STARTED, "status": "restarted"}
FINISHED = {**STARTED, "status": "finished"}
STOPPED = {**STARTED, "status": "stopped", "reason": "by ann"}
FAILED = {**STARTED, "status": "failed", "reason": "the model did not answer"}
TEXT: dict[str, Any] = {"message_id": "r1/0", "turn": 0, **RUN}
OUTPUT = {"event": "output", "text": "one two", "usage": {"input_tokens": 7, "output_tokens": 5}, **TEXT}
CALLED = {"event": "tool_step", "status": "start", "name": "weather", "tool_call_id": "c1", "turn": 0, **RUN}
RETURNED = {**CALLED, "status": "success", "result_summary": "cold"}
APPROVAL = {"event": "approval", "status": "requested", "tool_call_id": "c1", "name": "pay", **RUN}


def token(text: str) -> dict[str, Any]:
    return {"event": "token", "text": text, "index": 0, **TEXT}


def facts(**more: Any) -> ResponseFacts:
    shown = {**ResponseRequest().echo(), "instructions": None, "tools": [], "text": {"format": {"type": "text"}}}
    base: ResponseFacts = {
        "model": "desk",
        "created_at": 1,
        "previous_response_id": None,
        "background": False,
        "store": True,
        "with_tool_calls": False,
        "fields": shown,
    }
    return {**base, **more}  # type: ignore[typeddict-item]


def records(*payloads: dict[str, Any] | None) -> list[Record]:
    """Records from seq 10 on. `None` is a record that retention has dropped."""
    return [
        Record("stream:s1", payload, f"id-{seq}", seq, 1000 * seq)
        for seq, payload in enumerate(payloads, 10)
        if payload is not None
    ]


def mapped(stream: Sequence[Record], **more: Any) -> tuple[ResponseMapping, list[ProtocolEvent]]:
    """The response and its events. Each of them is checked against the published types."""
    mapping = ResponseMapping(ID, facts(**more))
    events = [event for record in stream for event in mapping.take(record)]
    for event in events:
        check_event(event.payload())
    check_response(mapping.response())
    assert [event.number for event in events] == sorted({event.number for event in events})
    return mapping, events


def short(events: list[ProtocolEvent]) -> list[tuple[int, int, str]]:
    """Record, place and type of events, without `response.`."""
    return [(*divmod(event.number, K), event.type.removeprefix("response.")) for event in events]


ANSWERED = (QUESTION, STARTED, token("one "), token("two"), OUTPUT, FINISHED)
TEXT_CLOSED = [(4, 3, "output_text.done"), (4, 4, "content_part.done"), (4, 5, "output_item.done")]


@pytest.mark.parametrize(
    ("payloads", "expected", "status"),
    [
        ((QUESTION,), [(0, 0, "created")], "in_progress"),
        (
            ANSWERED,
            [
                (0, 0, "created"),
                (1, 63, "in_progress"),
                (2, 0, "output_item.added"),
                (2, 1, "content_part.added"),
                (2, 2, "output_text.delta"),
                (3, 2, "output_text.delta"),
                *TEXT_CLOSED,
                (5, 63, "completed"),
            ],
            "completed",
        ),
        (
            (QUESTION, STARTED, None, None, OUTPUT, FINISHED),  # the tokens were compacted
            [
                (0, 0, "created"),
                (1, 63, "in_progress"),
                (2, 0, "output_item.added"),
                (2, 1, "content_part.added"),
                *TEXT_CLOSED,
                (5, 63, "completed"),
            ],
            "completed",
        ),
        (
            (QUESTION, STARTED, token("one "), STOPPED),
            [
                (0, 0, "created"),
                (1, 63, "in_progress"),
                (2, 0, "output_item.added"),
                (2, 1, "content_part.added"),
                (2, 2, "output_text.delta"),
                (3, 5, "output_item.done"),
                (3, 63, "incomplete"),
            ],
            "cancelled",
        ),
        ((QUESTION, STARTED, FAILED), [(0, 0, "created"), (1, 63, "in_progress"), (2, 63, "failed")], "failed"),
        (  # tools of the agents are not shown unless they are asked for
            (QUESTION, STARTED, CALLED, RETURNED, FINISHED),
            [(0, 0, "created"), (1, 63, "in_progress"), (4, 63, "completed")],
            "completed",
        ),
        (  # after a decision on an approval, the run goes on: no text was lost
            (QUESTION, STARTED, APPROVAL, RESTARTED, FINISHED),
            [(0, 0, "created"), (1, 63, "in_progress"), (3, 63, "in_progress"), (4, 63, "completed")],
            "completed",
        ),
    ],
)
def test_records_have_these_events_at_these_places(
    payloads: tuple[dict[str, Any] | None, ...], expected: list[tuple[int, int, str]], status: str
) -> None:
    mapping, events = mapped(records(*payloads))

    assert short(events) == expected
    assert mapping.status == status


def test_the_response_has_the_text_and_the_usage() -> None:
    mapping, events = mapped(records(*ANSWERED))

    response = mapping.response()
    assert [item["content"][0]["text"] for item in response["output"]] == ["one two"]
    assert response["usage"]["total_tokens"] == 12
    assert events[-1].fields["response"] == response


def test_cached_and_reasoning_tokens_are_shown() -> None:
    usage = {"input_tokens": 7, "output_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 3}
    mapping, _ = mapped(records(QUESTION, STARTED, {**OUTPUT, "usage": usage}, FINISHED))

    shown, chat = mapping.response()["usage"], completion(mapping)["usage"]
    assert (shown["input_tokens_details"], shown["output_tokens_details"]) == (
        {"cached_tokens": 4},
        {"reasoning_tokens": 3},
    )
    assert chat["prompt_tokens_details"]["cached_tokens"] == 4
    assert chat["completion_tokens_details"]["reasoning_tokens"] == 3


def test_events_keep_their_numbers_when_the_tokens_are_gone() -> None:
    _, before = mapped(records(*ANSWERED))
    _, after = mapped(records(QUESTION, STARTED, None, None, OUTPUT, FINISHED))

    kept = [event for event in before if event.type != "response.output_text.delta"]
    assert kept == after
    assert [event.fields["text"] for event in after if event.type == "response.output_text.done"] == ["one two"]


def test_a_client_that_saw_the_item_opened_does_not_get_it_again_when_the_tokens_are_gone() -> None:
    others = {"event": "user_message", "message_id": "m2", "text": "another message"}
    stream = (QUESTION, STARTED, token("one "), others, token("two"), OUTPUT, FINISHED)
    _, before = mapped(records(*stream))
    _, after = mapped(records(*(None if payload["event"] == "token" else payload for payload in stream)))

    seen = next(event.number for event in before if event.type == "response.output_text.delta")
    resumed = [event.type for event in after if event.number > seen]
    assert resumed[0] == "response.output_text.done"


def test_a_restarted_run_closes_its_unfinished_text_and_opens_another() -> None:
    stream = records(QUESTION, STARTED, token("one tw"), RESTARTED, token("one "), OUTPUT, FINISHED)

    mapping, events = mapped(stream)

    done = [event.fields["item"] for event in events if event.type == "response.output_item.done"]
    added = [event.fields["item"]["id"] for event in events if event.type == "response.output_item.added"]
    assert [(item["id"], item["status"], item["content"] == []) for item in done] == [
        (added[0], "incomplete", True),
        (added[1], "completed", False),
    ]
    assert len(set(added)) == 2
    assert mapping.response()["output"] == [done[1]]


def test_steps_of_own_tools_are_items_with_our_prefix() -> None:
    other = {**CALLED, "tool_call_id": "c2"}
    again = (other, RESTARTED, other, {**RETURNED, "tool_call_id": "c2"})  # after a takeover, the call runs again
    stream = records(QUESTION, STARTED, CALLED, RETURNED, *again, OUTPUT, FINISHED)

    mapping, events = mapped(stream, with_tool_calls=True)

    first = mapping.response()["output"][0]
    assert (first["type"], first["name"], first["output"]) == ("magent2:tool_call", "weather", "cold")
    assert "function_call" not in {item["type"] for item in mapping.response()["output"]}
    assert [event.fields["output_index"] for event in events if event.type == "response.output_item.added"] == [0, 1, 2]


def test_records_of_other_messages_and_runs_have_no_events() -> None:
    other = {"run_id": "r2", "agent": "desk"}
    stream = records(
        QUESTION,
        {**QUESTION, "message_id": "m2"},
        {**STARTED, **other, "envelope_id": "m2"},
        {**token("x"), **other},
        {**OUTPUT, **other},
    )

    _, events = mapped(stream)

    assert [event.type for event in events] == ["response.created"]


def test_a_failed_run_that_is_retried_is_in_progress_again() -> None:
    mapping, _ = mapped(records(QUESTION, STARTED, FAILED, RESTARTED, OUTPUT, FINISHED))

    assert (mapping.status, mapping.response()["error"]) == ("completed", None)


def test_a_background_response_is_queued_first() -> None:
    mapping, events = mapped(records(QUESTION), background=True)

    assert [event.type for event in events] == ["response.created", "response.queued"]
    assert mapping.status == "queued"


# --- ids


@pytest.mark.parametrize("given", [ID, ResponseId("a:b/c", "m-1", 0, 3)])
def test_an_id_names_its_session_and_message(given: ResponseId) -> None:
    assert ResponseId.parse(str(given)) == given
    assert ResponseId.of_item(given.item("msg_", "0-1-0")) == given


@pytest.mark.parametrize("text", ["", "resp_", "resp_!!!", "msg_abc", "resp_YQ", "resp_" + "a" * 3000, "resp_é"])
def test_another_text_is_no_id(text: str) -> None:
    with pytest.raises(BadId):
        ResponseId.parse(text)


# --- tools of the client


def client_call(status: str, index: int = 0, turn: int = 1) -> dict[str, Any]:
    fields = {"tool_call_id": f"c{index}", "name": "pick", "arguments": '{"n":1}', "index": index, "count": 2}
    usage = {"input_tokens": 7, "output_tokens": 5}
    return {
        "event": "client_call",
        "status": status,
        "envelope_id": "m1",
        "turn": turn,
        "usage": usage,
        **fields,
        **RUN,
    }


PARKED = (QUESTION, STARTED, client_call("requested"), client_call("requested", 1))
ANSWERS = (client_call("answered"), client_call("answered", 1), RESTARTED)
TOTAL = {**OUTPUT, "usage": {"input_tokens": 20, "output_tokens": 9}}


def test_calls_of_the_clients_tools_complete_the_response() -> None:
    mapping, events = mapped(records(*PARKED, *ANSWERS, TOTAL, FINISHED))

    assert mapping.status == "completed"
    assert [(item["type"], item["call_id"], item["arguments"]) for item in mapping.response()["output"]] == [
        ("function_call", "c0", '{"n":1}'),
        ("function_call", "c1", '{"n":1}'),
    ]
    assert short(events)[-1] == (3, 63, "completed")
    assert mapping.response()["usage"]["total_tokens"] == 12


def test_the_outputs_begin_another_response_of_the_same_run() -> None:
    stream = records(*PARKED, *ANSWERS, TOTAL, FINISHED)
    mapping = ResponseMapping(ResponseId("s1", "m1", 12, 1), facts())
    events = [event for record in stream for event in mapping.take(record)]

    assert mapping.found
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert [item["content"][0]["text"] for item in mapping.response()["output"]] == ["one two"]
    assert mapping.response()["usage"]["input_tokens"] == 13  # without those of the response before


def test_a_steered_message_is_answered_by_the_run_that_has_seen_it() -> None:
    other = {**STARTED, "envelope_id": "m0"}
    seen = {"event": "message_received", "messages": [{"id": "m1", "outcome": "seen"}], **RUN}
    mapping, _ = mapped(records(QUESTION, seen, OUTPUT, {**other, "status": "finished"}))

    assert mapping.status == "completed"
