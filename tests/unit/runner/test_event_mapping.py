from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Usage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel

from magent2.bus.records import encode_object
from magent2.models.envelope import TokenEvent, ToolStepEvent
from magent2.runner.event_mapping import (
    ARG_MAX_CHARS,
    ARGS_MAX,
    RESULT_MAX_CHARS,
    SDK_TOOL_FAILED,
    EventMapper,
    MappedHandoff,
    as_text,
    plain_text,
    short_args,
    usage_of,
)
from tests.support.record_sdk_events import SCENES, record, stream

FIXTURES = Path(__file__).parents[2] / "fixtures" / "sdk_events"


def recorded(scene: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((FIXTURES / f"{scene}.json").read_text())["events"]
    return events


def mapped(events: list[Any], mapper: EventMapper | None = None) -> list[Any]:
    chosen = mapper or EventMapper("conv")
    found = [chosen.map(event) for event in events]
    return [event for event in found if event is not None]


def shape(event: Any) -> tuple[Any, ...]:
    if isinstance(event, TokenEvent):
        return ("token", event.index, event.text)
    if isinstance(event, ToolStepEvent):
        return (event.status, event.name, event.tool_call_id, event.args, event.result_summary)
    return ("handoff", event.source, event.target)


EXPECTED = {
    "text_only": [("token", 0, "Hello there.")],
    "tools": [
        ("token", 0, "Let me see."),
        ("start", "work", "c1", {"n": 1}, None),
        ("start", "work", "c2", {"n": 9}, None),
        ("success", "work", "c1", {}, "did 1"),
        ("error", "work", "c2", {}, SDK_TOOL_FAILED),
        ("token", 1, "All done."),
    ],
    "handoff": [("handoff", "Dev", "Ops"), ("token", 0, "Ops here.")],
}


@pytest.mark.parametrize("scene", SCENES)
def test_recorded_events_are_mapped(scene: str) -> None:
    assert [shape(event) for event in mapped(recorded(scene))] == EXPECTED[scene]


@pytest.mark.parametrize("scene", SCENES)
async def test_the_sdks_own_objects_are_mapped_the_same(scene: str) -> None:
    agent = SCENES[scene]()

    assert [shape(event) for event in mapped(list(await stream(agent)))] == EXPECTED[scene]


@pytest.mark.parametrize("scene", SCENES)
async def test_the_recordings_are_what_the_installed_sdk_streams(scene: str) -> None:
    """If this fails after an update of the SDK: record the events again, read the difference, adapt the mapping."""
    assert await record(scene) == json.loads((FIXTURES / f"{scene}.json").read_text())


def test_without_a_final_output_the_last_message_is_the_output() -> None:
    mapper = EventMapper("conv")
    mapped(recorded("tools"), mapper)

    assert mapper.output().text == "All done."
    assert mapper.output("final").text == "final"


ASSISTANT_MESSAGES = [
    {"type": "assistant_message", "final": True, "text": "done", "usage": {"input_tokens": 3, "total_tokens": 5}},
    {"role": "assistant", "content": "done", "usage": {"input_tokens": 3, "total_tokens": 5}},
    {"role": "assistant", "content": [{"text": "do"}, {"text": "ne"}], "usage": {"input_tokens": 3, "total_tokens": 5}},
]


@pytest.mark.parametrize("as_item", [True, False], ids=["item", "event"])
@pytest.mark.parametrize("found", ASSISTANT_MESSAGES, ids=["typed", "role", "parts"])
def test_a_dict_that_is_an_assistant_message_is_the_text_and_usage_of_the_output(
    found: dict[str, Any], as_item: bool
) -> None:
    event = {"type": "run_item_stream_event", "data": found} if as_item else found
    mapper = EventMapper("conv")

    assert mapped([{"type": "raw_response_event", "data": {"delta": "thinking"}}, event], mapper)[1:] == []

    assert mapper.output().text == "done"
    assert mapper.output().usage == {"input_tokens": 3, "total_tokens": 5}
    assert mapper.output("final", {"total_tokens": 9}).usage == {"total_tokens": 9}


@pytest.mark.parametrize(
    "found", [{"role": "user", "content": "hi"}, {"type": "message", "role": "user", "text": "hi"}]
)
def test_a_message_of_another_role_is_not_the_output(found: dict[str, Any]) -> None:
    mapper = EventMapper("conv")

    assert mapped([found, {"type": "run_item_stream_event", "data": found}], mapper) == []

    assert mapper.output().text == ""


def test_a_structured_output_is_json() -> None:
    class Answer(BaseModel):
        city: str

    assert EventMapper("conv").output(Answer(city="Zürich")).text == '{"city": "Zürich"}'


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        "text",
        {"type": "raw_response_event"},
        {"type": "raw_response_event", "data": {"type": "response.function_call_arguments.delta", "delta": "{}"}},
        {"type": "raw_response_event", "data": {"type": "response.output_text.delta", "delta": ""}},
        {"type": "run_item_stream_event"},
        {"type": "run_item_stream_event", "name": "reasoning_item_created", "item": {"type": "reasoning_item"}},
        {"type": "run_item_stream_event", "name": "handoff_occured", "item": {}},
        SimpleNamespace(type="agent_updated_stream_event", new_agent=None),
        SimpleNamespace(type="from_a_later_release"),
    ],
)
def test_unknown_events_are_skipped(event: object) -> None:
    assert EventMapper("conv").map(event) is None


def call(arguments: object, call_id: str = "c1") -> dict[str, Any]:
    item = {"type": "tool_call_item", "raw_item": {"name": "work", "arguments": arguments, "call_id": call_id}}
    return {"type": "run_item_stream_event", "name": "tool_called", "item": item}


def result(output: object, call_id: str = "c1") -> dict[str, Any]:
    item = {"type": "tool_call_output_item", "raw_item": {"call_id": call_id, "output": "raw"}, "output": output}
    return {"type": "run_item_stream_event", "name": "tool_output", "item": item}


def test_long_results_and_arguments_are_cut() -> None:
    start, end = mapped([call(json.dumps({"text": "a" * 9999})), result("b" * 9999)])

    assert len(start.args["text"]) == ARG_MAX_CHARS
    assert len(end.result_summary) == RESULT_MAX_CHARS
    assert start.args["text"].endswith("…")
    assert end.result_summary.endswith("…")


@pytest.mark.parametrize("arguments", ['{"left_out": null, "given": 1}', {"left_out": None, "given": 1}])
def test_an_argument_that_is_null_is_shown_as_null(arguments: object) -> None:
    assert short_args(arguments) == {"left_out": None, "given": 1}


def test_a_value_that_contains_itself_is_shown_as_text() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop

    assert short_args(loop) == {"self": "{'self': {...}}"}


def test_arguments_over_the_limit_are_only_counted() -> None:
    shown = short_args({f"a{number}": number for number in range(ARGS_MAX + 8)})

    assert len(shown) == ARGS_MAX + 1
    assert shown["…"] == "8 more"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"n": 1}', {"n": 1}),
        ({"n": [1, {"m": None}]}, {"n": [1, {"m": None}]}),
        ("", {}),
        (None, {}),
        ("{not json", {"arguments": "{not json"}),
        ("[1, 2]", {"arguments": [1, 2]}),
        ('{"n": NaN, "m": 123456789012345678901234}', {"n": "NaN", "m": "123456789012345678901234"}),
        ('{"half": "\\ud83d"}', {"half": "?"}),
    ],
)
def test_any_arguments_of_a_model_can_be_stored(arguments: object, shown: dict[str, Any]) -> None:
    (start,) = mapped([call(arguments)])

    assert start.args == shown
    assert encode_object(start.model_dump(mode="json"), "event")


def test_a_result_that_is_not_text_is_json() -> None:
    (end,) = mapped([result({"ok": True, "topics": ["chat:a"]})])

    assert end.result_summary == '{"ok": true, "topics": ["chat:a"]}'


def test_a_value_that_contains_itself_is_still_text() -> None:
    knot: list[Any] = []
    knot.append(knot)

    assert as_text(knot) == "[[...]]"


def test_a_result_without_its_call_still_has_a_name() -> None:
    (end,) = mapped([result("fine", call_id="never seen")])

    assert (end.name, end.status, end.tool_call_id) == ("unknown", "success", "never seen")


def test_a_refusal_in_the_result_is_an_error() -> None:
    (end,) = mapped([result({"ok": False, "error": "not friends"})])

    assert (end.status, end.error) == ("error", "not friends")


def test_a_noted_failure_is_on_the_result() -> None:
    mapper = EventMapper("conv")
    mapper.note_failure("c1", "ValueError: too much work")

    (start, end) = mapped([call("{}"), result("Sorry, that went wrong.")], mapper)

    assert (start.status, end.status, end.error) == ("start", "error", "ValueError: too much work")


def test_a_hosted_tool_is_named_after_its_type() -> None:
    item = {"type": "tool_call_item", "raw_item": {"type": "web_search_call", "id": "ws1", "action": {"query": "tea"}}}

    (start,) = mapped([{"type": "run_item_stream_event", "name": "tool_called", "item": item}])

    assert (start.name, start.args, start.tool_call_id) == ("web_search", {"query": "tea"}, "ws1")


def test_a_handoff_is_a_value_of_its_own() -> None:
    (handoff, _) = mapped(recorded("handoff"))

    assert handoff == MappedHandoff("Dev", "Ops")


def test_usage_that_counts_nothing_is_left_out() -> None:
    assert EventMapper("conv").output("x", {"requests": 0, "input_tokens": 0}).usage is None


def test_cached_and_reasoning_tokens_are_counted_if_there_are_any() -> None:
    usage = Usage(
        requests=1,
        input_tokens=9,
        output_tokens=4,
        total_tokens=13,
        input_tokens_details=InputTokensDetails(cached_tokens=7, cache_write_tokens=0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
    )

    assert usage_of(usage) == {
        "requests": 1,
        "input_tokens": 9,
        "output_tokens": 4,
        "total_tokens": 13,
        "cached_tokens": 7,
    }


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"type": "text", "text": "here is Emma"}, "here is Emma"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "text", "text": "one"}, {"type": "image", "data": "…"}], None),
        ([], "[]"),
        ({"text": "no block"}, '{"text": "no block"}'),
    ],
)
def test_the_blocks_of_text_of_an_mcp_server_are_shown_as_text(output: object, shown: str | None) -> None:
    assert as_text(plain_text(output)) == (json.dumps(output, ensure_ascii=False) if shown is None else shown)
