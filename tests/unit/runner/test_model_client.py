"""The client converts neither requests nor events by trying every type, and gets what the library gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from openai import AsyncOpenAI, omit
from openai._models import construct_type
from openai._utils import PropertyInfo, async_maybe_transform, is_given
from openai.resources.responses import responses
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from typing_extensions import get_type_hints, is_typeddict

from magent2.runner.model_client import _BY_TYPE, _VARIANTS, UNCONVERTED, UNCONVERTED_CHAT, ModelClient, _TypedEvent
from tests.support.model_server import Call, ModelServer, Reply

KEY = "any"
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "look_up",
        "description": "Look something up.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}, "from": {"type": ["string", "null"]}},
            "required": ["what", "from"],
            "additionalProperties": False,
        },
    },
    {"type": "web_search", "filters": None, "search_context_size": "low"},
]
INPUT: list[Any] = [
    {"role": "user", "content": "plain text"},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "parts"},
            {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AA=="},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "short"}],
        "encrypted_content": "x",
    },
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "look_up",
        "arguments": '{"what": "\\u00fc"}',
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c1", "output": "found ü 🙂"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "answer", "annotations": [], "logprobs": []}],
    },
    {"type": "unknown_to_the_library", "created_at": 1.5, "nested": {"from": None}},
]


def renamed(annotation: Any, path: str, seen: set[str]) -> Iterator[str]:
    """Yield the fields below a type that the library would rename or format."""
    if repr(annotation) in seen:
        return
    seen.add(repr(annotation))
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    if any(isinstance(note, PropertyInfo) and (note.alias or note.format) for note in notes):
        yield path
    for inner in get_args(annotation):
        yield from renamed(inner, path, seen)
    if is_typeddict(annotation):
        for name, inner in get_type_hints(annotation, include_extras=True).items():
            yield from renamed(inner, f"{path}.{name}", seen)


MESSAGES: list[Any] = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "parts"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "found ü"},
]


@pytest.mark.parametrize("request_type", [CompletionCreateParamsStreaming, CompletionCreateParamsNonStreaming])
def test_the_library_renames_no_field_of_a_chat_either(request_type: Any) -> None:
    fields = get_type_hints(request_type, include_extras=True)
    seen: set[str] = set()

    assert [found for part in UNCONVERTED_CHAT for found in renamed(fields[part], part, seen)] == []
    assert len(seen) > 50, "the types were not followed"


@pytest.mark.parametrize("tools", [omit, [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]])
async def test_the_body_of_a_chat_is_that_of_the_library(tools: Any) -> None:
    with ModelServer([Reply("one"), Reply("two")], apis=["chat"]) as server:
        for kind in (AsyncOpenAI, ModelClient):
            async with kind(base_url=server.url, api_key=KEY, max_retries=0) as client:
                stream: Any = await client.chat.completions.create(
                    model="m", stream=True, messages=MESSAGES, tools=tools, extra_body={"top_k": 1}
                )
                async for _ in stream:
                    pass
        library, ours = server.requests

    assert ours == library
    assert ours["messages"] == MESSAGES


@pytest.mark.parametrize("request_type", [ResponseCreateParamsStreaming, ResponseCreateParamsNonStreaming])
def test_the_library_renames_no_field_of_the_parts_that_are_sent_as_they_are(request_type: Any) -> None:
    fields = get_type_hints(request_type, include_extras=True)
    seen: set[str] = set()

    assert [found for part in UNCONVERTED for found in renamed(fields[part], part, seen)] == []
    assert len(seen) > 500, "the types were not followed"


def test_the_search_for_renamed_fields_finds_one() -> None:
    assert list(renamed(Annotated[str, PropertyInfo(alias="from")], "to", set())) == ["to"]


@pytest.mark.parametrize("extra", [None, {"seed": 1}, {"tools": []}], ids=["none", "other", "the same field"])
async def test_the_body_of_a_request_is_that_of_the_library(extra: dict[str, Any] | None) -> None:
    with ModelServer([Reply("one"), Reply("two")]) as server:
        for kind in (AsyncOpenAI, ModelClient):
            async with kind(base_url=server.url, api_key=KEY, max_retries=0) as client:
                given: dict[str, Any] = {
                    "input": INPUT,
                    "tools": TOOLS,
                    "instructions": "be brief",
                    "extra_body": extra,
                }
                stream: Any = await client.responses.create(model="m", stream=True, **given)
                async for _ in stream:
                    pass
        library, ours = server.requests

    assert ours == library
    assert ours["input"] == INPUT


async def test_input_and_tools_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[dict[str, Any]] = []

    async def convert(data: dict[str, Any], expected_type: Any) -> Any:
        converted.append(data)
        return await async_maybe_transform(data, expected_type)

    monkeypatch.setattr(responses, "async_maybe_transform", convert)
    with ModelServer([Reply("one")]) as server:
        client = ModelClient(base_url=server.url, api_key=KEY, max_retries=0)
        request = client.responses.with_streaming_response.create(model="m", stream=True, input=INPUT, tools=TOOLS)
        async with client, request as response:
            await response.read()

    (given,) = converted
    assert not any(is_given(given[part]) for part in UNCONVERTED)
    assert server.requests[0]["input"] == INPUT


# --- events

REPLIES = [
    Reply("some words of an answer"),
    Reply(calls=[Call("look_up", {"what": "it"})]),
    Reply("then fails", fail_after=1),
    Reply("found", items=[{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "x"}}]),
]
ODD_EVENTS: list[Any] = [
    {"type": "response.output_text.delta", "delta": "fields are missing"},
    {"type": "response.output_text.delta", "delta": 7, "item_id": None, "sequence_number": "one"},
    {"type": "response.completed", "response": {"id": "r", "output": [{"type": "not known"}]}, "sequence_number": 1},
    {"type": "response.not_known", "delta": "x"},
    {"type": ["not", "text"]},
    {},
    [],
    "text",
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.text or "a call")
async def test_the_events_of_an_answer_are_those_of_the_library(reply: Reply) -> None:
    answers = []
    with ModelServer([reply, reply]) as server:
        for kind in (AsyncOpenAI, ModelClient):
            async with kind(base_url=server.url, api_key=KEY, max_retries=0) as client:
                stream = await client.responses.create(model="m", stream=True, input="hello")
                answers.append([event async for event in stream])
    library, ours = answers

    assert ours == library
    assert len(ours) > 2


@pytest.mark.parametrize("event", ODD_EVENTS, ids=str)
def test_an_event_that_does_not_match_its_type_is_what_the_library_makes_of_it(event: Any) -> None:
    library = construct_type(type_=ResponseStreamEvent, value=event)

    ours = _TypedEvent.build(response=None, data=event)

    assert type(ours) is type(library)
    assert ours == library


def test_every_event_of_the_library_is_known_by_its_type() -> None:
    assert set(_BY_TYPE.values()) == set(_VARIANTS)
    assert len(_BY_TYPE) == len(_VARIANTS), "two events have the same type"
