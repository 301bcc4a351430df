"""Answers over `/v1` that are cut off, and answers that have to match a schema, from a real model server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Read
from tests.support.model_server import Call, Reply
from tests.support.openai_service import openai_service
from tests.support.openai_shapes import check_event, check_response
from tests.support.worker_fixture import dead_letters, history

HALF = "This is half of an ans"
CUT = Reply(HALF, cut_off=True, usage=(7, 5))


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


# --- answers that are cut off


async def test_an_answer_that_is_cut_off_is_incomplete_and_not_tried_again(bus: MemoryBus) -> None:
    async with openai_service(bus, [CUT, Reply("The rest.")]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi", max_output_tokens=5)
        found = await client.responses.retrieve(made.id)
        more = await client.responses.create(model="desk", input="go on", previous_response_id=made.id)

    check_response(made.model_dump(exclude_unset=True, warnings=False))
    assert made.incomplete_details is not None
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (made.output_text, getattr(made.output[0], "status", None), found == made) == (HALF, "incomplete", True)
    assert (more.status, more.output_text, more.incomplete_details) == ("completed", "The rest.", None)
    assert [request["max_output_tokens"] for request in service.model.requests[:1]] == [5]
    assert len(service.model.requests) == 2
    assert made.conversation is not None
    marks = history(bus, made.conversation.id)
    assert [mark["status"] for mark in marks if mark["kind"] == "end"] == ["finished", "finished"]
    assert dead_letters(bus, "desk") == []


async def test_the_stream_of_an_answer_that_is_cut_off_ends_as_incomplete(bus: MemoryBus) -> None:
    async with openai_service(bus, [CUT]) as service, service.client() as client:
        events = [event async for event in await client.responses.create(model="desk", input="hi", stream=True)]

    for event in events:
        check_event(event.model_dump(exclude_unset=True, warnings=False))
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert (last.response.incomplete_details.reason, last.response.output_text) == ("max_output_tokens", HALF)


async def test_a_chat_completion_that_is_cut_off_has_the_finish_reason_length(bus: MemoryBus) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    async with openai_service(bus, [CUT, CUT]) as service, service.client() as client:
        made = await client.chat.completions.create(model="desk", messages=messages, max_completion_tokens=5)
        stream = await client.chat.completions.create(model="desk", messages=messages, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]

    assert (made.choices[0].finish_reason, made.choices[0].message.content) == ("length", HALF)
    assert "".join(choice.delta.content or "" for choice in chunks) == HALF
    assert chunks[-1].finish_reason == "length"


async def test_an_answer_that_a_filter_breaks_off_has_that_reason(bus: MemoryBus) -> None:
    filtered = Reply(HALF, filtered=True)
    messages: Any = [{"role": "user", "content": "hi"}]
    async with openai_service(bus, [filtered, filtered]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi")
        chat = await client.chat.completions.create(model="desk", messages=messages)

    assert made.incomplete_details is not None
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "content_filter")
    assert (made.output_text, chat.choices[0].finish_reason) == (HALF, "content_filter")


async def test_a_call_that_is_cut_off_is_not_made(bus: MemoryBus) -> None:
    cut = Reply("Let me see.", calls=[Call("weather", '{"ci', status="incomplete")], cut_off=True)
    async with openai_service(bus, [cut]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi")

    assert (made.status, made.output_text, len(service.model.requests)) == ("incomplete", "Let me see.", 1)


# --- outputs of the client's tools


async def test_outputs_that_come_with_other_options_are_refused_and_do_not_reach_the_run(bus: MemoryBus) -> None:
    pick: Any = {"type": "function", "name": "pick", "parameters": {"type": "object"}, "strict": None}
    given: Any = [{"type": "function_call_output", "call_id": "call-1", "output": "one"}]
    async with (
        openai_service(bus, [Reply(calls=[Call("pick")]), Reply("Done.")]) as service,
        service.client() as client,
    ):
        asked = await client.responses.create(model="desk", input="pick", tools=[pick])
        with pytest.raises(openai.BadRequestError, match="differs from that of the run"):
            await client.responses.create(previous_response_id=asked.id, input=given, instructions="Other ones.")
        accepted = bus.call(Read("control:desk")).records
        made = await client.responses.create(previous_response_id=asked.id, input=given)

    assert not accepted
    assert made.output_text == "Done."


async def test_the_choice_of_a_tool_that_there_is_not_fails_the_run_and_names_it(bus: MemoryBus) -> None:
    pick: Any = {"type": "function", "name": "pick", "parameters": {"type": "object"}, "strict": None}
    async with openai_service(bus, [Reply("Done.")]) as service, service.client() as client:
        failed = await client.responses.create(
            model="desk", input="hi", tools=[pick], tool_choice={"type": "function", "name": "pack"}
        )
        made = await client.responses.create(
            model="desk", input="hi", tools=[pick], tool_choice={"type": "function", "name": "pick"}
        )

    assert failed.error is not None
    assert "'pack'" in failed.error.message
    assert made.output_text == "Done."
    (request,) = service.model.requests
    assert request["tool_choice"] == {"type": "function", "name": "pick"}


async def test_an_answer_that_the_model_refuses_is_an_error_by_name(bus: MemoryBus) -> None:
    refusal = Reply(refusal="I will not.")
    messages: Any = [{"role": "user", "content": "hi"}]
    async with openai_service(bus, [refusal, refusal]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi")
        with pytest.raises(openai.InternalServerError) as chat:
            await client.chat.completions.create(model="desk", messages=messages)

    assert made.error is not None
    assert (made.status, made.error.code, chat.value.code) == ("failed", "model_refused", "model_refused")
    assert "I will not." in made.error.message


# --- answers that have to match a schema


class City(BaseModel):
    """What the model is asked for."""

    name: str
    people: int


OSLO = '{"name": "Oslo", "people": 700000}'
WRONG = '{"name": "Oslo"}'


async def test_the_parse_helpers_return_the_model(bus: MemoryBus) -> None:
    messages: Any = [{"role": "user", "content": "where?"}]
    async with openai_service(bus, [Reply(OSLO), Reply(WRONG), Reply(OSLO)]) as service, service.client() as client:
        made = await client.responses.parse(model="desk", input="where?", text_format=City)
        chat = await client.chat.completions.parse(model="desk", messages=messages, response_format=City)

    assert made.output_parsed == chat.choices[0].message.parsed == City(name="Oslo", people=700_000)
    shapes = [request["text"]["format"]["schema"]["required"] for request in service.model.requests]
    assert shapes == [["name", "people"]] * 3
    assert "does not match its schema" in str(service.model.requests[2]["input"])


async def test_an_answer_that_does_not_match_twice_is_an_error_by_name(bus: MemoryBus) -> None:
    messages: Any = [{"role": "user", "content": "where?"}]
    async with openai_service(bus, [Reply(WRONG)] * 4) as service, service.client() as client:
        made = await client.responses.parse(model="desk", input="where?", text_format=City)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.parse(model="desk", messages=messages, response_format=City)

    assert made.error is not None
    assert (made.status, made.error.code) == ("failed", "output_mismatch")
    assert "people" in made.error.message
    assert (refused.value.status_code, refused.value.code) == (502, "output_mismatch")
    assert len(service.model.requests) == 4
