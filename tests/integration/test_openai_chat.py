"""`/v1/chat/completions` as OpenAI's own client sees it, over a socket, with a team on a scripted model server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Read, Topics
from magent2.bus.retention import RetentionPolicy
from magent2.worker import sweeper
from tests.support.model_server import Call, Reply
from tests.support.openai_service import openai_service
from tests.support.worker_fixture import LEASE_S, until

TEXT = "One two three."
ASK: Any = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "hi"}]
PICK: Any = {"type": "function", "function": {"name": "pick", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


def sessions(bus: MemoryBus) -> int:
    return len(bus.call(Topics("stream:")).topics)


async def test_a_completion_is_a_session_of_its_own_that_is_deleted_at_the_end(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        made = await client.chat.completions.create(model="desk", messages=ASK, max_tokens=50)

    ChatCompletion.model_validate(made.model_dump(), strict=False)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (TEXT, "stop")
    assert made.usage is not None
    assert made.usage.total_tokens == 12
    assert [item["content"] for item in service.model.requests[0]["input"]] == ["Rules.", "hi"]
    assert service.model.requests[0]["max_output_tokens"] == 50
    assert sessions(bus) == 0


async def test_a_stored_completion_stays(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        await client.chat.completions.create(model="house", messages=ASK, store=True)

    assert sessions(bus) == 1


async def test_a_stream_gives_the_text_in_chunks_and_the_usage_if_asked(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(model="desk", messages=ASK, stream=True, stream_options=options)
        chunks = [ChatCompletionChunk.model_validate(chunk.model_dump()) async for chunk in stream]
        await until(lambda: sessions(bus) == 0)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12


async def test_the_stream_helper_accumulates_the_completion(bus: MemoryBus) -> None:
    async with (
        openai_service(bus, [Reply(TEXT)]) as service,
        service.client() as client,
        client.chat.completions.stream(model="desk", messages=ASK) as stream,
    ):
        final = await stream.get_final_completion()

    assert final.choices[0].message.content == TEXT


async def test_calls_of_the_requests_tools_end_the_completion(bus: MemoryBus) -> None:
    call = Reply("Let me pick.", calls=[Call("pick", {"n": 1}, "call-a")])
    async with openai_service(bus, [call, call, Reply("Done.")]) as service, service.client() as client:
        asked = await client.chat.completions.create(model="desk", messages=ASK, tools=[PICK])
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="desk", messages=ASK, tools=[PICK], stream=True
            )
        ]
        message = asked.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": "call-a", "content": "seven"}
        messages: Any = [*ASK, message.model_dump(exclude_none=True), result]
        made = await client.chat.completions.create(model="desk", messages=messages, tools=[PICK])
        await until(lambda: sessions(bus) == 0)

    assert asked.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert [item.id for item in message.tool_calls] == ["call-a"]
    assert made.choices[0].message.content == "Done."
    assert [item.get("output") for item in service.model.requests[2]["input"]][-1] == "seven"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}
PICTURE: Any = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
BAD_NAME = {"name": "a b", "schema": {"type": "object"}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"seed": 1}, "seed"),
    ({"logit_bias": {"1": 2}}, "logit_bias"),
    ({"logprobs": True}, "logprobs"),
    ({"stop": ["x"]}, "stop"),
    ({"audio": {"voice": "a"}}, "audio"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
    ({"messages": []}, "messages"),
    ({"messages": [*ASK, {"role": "assistant", "tool_calls": [CALL]}, *ASK]}, "messages[2].tool_calls[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL]}, RESULT, RESULT]}, "messages[2]"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}, {**RESULT, "content": [{"type": "image_url"}]}]},
        "messages[1].content[0].type",
    ),
    ({"messages": [*ASK, {"role": "user", "content": [{"type": "text"}]}]}, "messages[2].content[0].text"),
    ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].image_url"),
    (
        {"messages": [{"role": "user", "content": [{**PICTURE, "image_url": "x"}]}]},
        "messages[0].content[0].image_url",
    ),
    ({"stream_options": {"colour": 1}}, "stream_options.colour"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f", "colour": 1}}]}, "tools[0].function.colour"),
    ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    ({"response_format": {"type": "json_schema", "json_schema": BAD_NAME}}, "response_format.json_schema.name"),
    ({"temperature": 5}, "temperature"),
    ({"colour": "red"}, "colour"),
]


async def test_what_cannot_be_honoured_is_refused_by_name(bus: MemoryBus) -> None:
    async with openai_service(bus, []) as service, service.client() as client:
        for body, param in REFUSED:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.post("/chat/completions", body={"model": "desk", "messages": ASK, **body}, cast_to=object)
            assert refused.value.param == param, body

    assert sessions(bus) == 0


# --- what is not to be stored


async def test_a_completion_whose_client_left_is_deleted_all_the_same(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "FORGET_CHECK_S", 0.05)
    monkeypatch.setattr(sweeper, "FORGET_AFTER_S", 0.0)
    gate = threading.Event()
    sweeping = asyncio.create_task(sweeper.keep_sweeping(bus, RetentionPolicy, "sweeping", LEASE_S))
    async with openai_service(bus, [Reply(TEXT, gate=gate)]) as service, service.client() as client:
        stream = await client.chat.completions.create(model="desk", messages=ASK, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        assert sessions(bus) == 1
        gate.set()
        await until(lambda: sessions(bus) == 0)

    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    assert await session_parts(bus) == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_parallel_completions_with_one_key_are_one_run_and_deleted_afterwards(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(sweeper, "FORGET_CHECK_S", 0.05)
    headers = {"Idempotency-Key": "k1"}
    sweeping = asyncio.create_task(sweeper.keep_sweeping(bus, RetentionPolicy, "sweeping", LEASE_S))

    async def ask(client: openai.AsyncOpenAI) -> str:
        if not stream:
            made = await client.chat.completions.create(model="desk", messages=ASK, extra_headers=headers)
            return made.choices[0].message.content or ""
        chunks = await client.chat.completions.create(model="desk", messages=ASK, extra_headers=headers, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        texts = await asyncio.gather(*(ask(client) for _ in range(10)))
        texts.append(await ask(client))  # an answer that was lost on the way
        monkeypatch.setattr(sweeper, "FORGET_AFTER_S", 0.0)
        await until(lambda: sessions(bus) == 0)
        with pytest.raises(openai.APIStatusError) as late:
            await ask(client)

    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    assert (set(texts), len(service.model.requests)) == ({TEXT}, 1)
    assert (late.value.status_code, late.value.code) == (410, "response_deleted")


async def session_parts(bus: MemoryBus) -> list[str]:
    """What the log still has of sessions: topics, and mail in inboxes that has a text."""
    inbox = [str(record.payload) for record in bus.call(Read("chat:desk")).records if not record.erased]
    return [*inbox, *(info.topic for info in bus.call(Topics("history:")).topics)]
