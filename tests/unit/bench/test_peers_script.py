"""The scripted model of `make bench-peers`: what it answers, and what it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from bench.peers.contestant import PLACEHOLDER
from bench.peers.http_client import HttpClient, Refused
from bench.peers.model_server import ModelServer
from bench.peers.script import Ledger, NotScripted, Reply, Task, reply_to

TASK = Task("c-1", turns=2, tokens=3)
USER = {"role": "user", "content": TASK.message()}
CALL = {"type": "function_call", "call_id": "x", "name": "note", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "x", "output": "noted"}


def test_the_model_calls_the_tool_until_the_request_has_all_results() -> None:
    first = reply_to({"input": [USER]})
    second = reply_to({"input": [USER, CALL, RESULT]})
    last = reply_to({"input": [USER, CALL, RESULT, CALL, RESULT]})

    assert [first.calls_tool, second.calls_tool, last.calls_tool] == [True, True, False]
    assert json.loads(second.arguments) == {"conversation": "c-1", "step": 1}


def test_both_apis_and_both_forms_of_content_get_the_same_reply() -> None:
    parts = {"role": "user", "content": [{"type": "input_text", "text": TASK.message()}]}
    tool = {"role": "tool", "tool_call_id": "x", "content": "noted"}

    assert reply_to({"input": TASK.message()}) == reply_to({"messages": [USER]}) == Reply(TASK, 0)
    assert reply_to({"input": [parts, CALL, RESULT]}) == reply_to({"messages": [USER, tool]}) == Reply(TASK, 1)


def test_results_before_the_last_message_of_the_user_do_not_count() -> None:
    assert reply_to({"input": [USER, CALL, RESULT, USER]}).step == 0


def test_a_request_without_a_tag_is_refused() -> None:
    with pytest.raises(NotScripted):
        reply_to({"input": "hello"})


def test_a_call_for_the_same_step_of_a_conversation_counts_as_made_twice() -> None:
    ledger = Ledger()
    for step in (0, 1, 1, 2, 1):
        ledger.account("c-1").model_called(step, now_s=0.0)
    for step in (0, 0):
        ledger.account("c-2").tools[step] += 1
    ledger.account("other").tools[0] += 5

    sums = ledger.sums("c-")

    assert (sums["model_calls"], sums["model_calls_twice"]) == (5, 2)
    assert (sums["tool_calls"], sums["tool_calls_twice"]) == (2, 1)


def test_a_turn_takes_from_the_response_to_the_next_request() -> None:
    account = Ledger().account("c-1")
    account.model_called(0, now_s=10.0)
    account.answered_s = 10.5
    account.model_called(1, now_s=10.75)
    account.model_called(1, now_s=11.0)  # after a crash; no response was sent in between

    assert account.gaps_ms == [250.0]


# --- over HTTP ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = await asyncio.start_server(ModelServer().serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def model(port: int) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key=PLACEHOLDER, base_url=f"http://127.0.0.1:{port}/v1") as client:
        yield client


@pytest.mark.parametrize("turns", [0, 1])
async def test_the_client_of_openai_reads_a_streamed_response_like_a_whole_one(model: AsyncOpenAI, turns: int) -> None:
    asked = Task("c-1", turns, tokens=20).message()

    whole = await model.responses.create(model="m", input=asked)
    async with model.responses.stream(model="m", input=asked) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        streamed = await stream.get_final_response()

    assert [item.type for item in whole.output] == ["function_call" if turns else "message"]
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert "".join(deltas) == whole.output_text == ("" if turns else Task("c-1", 0, 20).answer())


@pytest.mark.parametrize("turns", [0, 1])
async def test_the_client_of_openai_reads_a_streamed_completion_like_a_whole_one(
    model: AsyncOpenAI, turns: int
) -> None:
    task = Task("c-1", turns, tokens=20)

    whole = await model.chat.completions.create(model="m", messages=[{"role": "user", "content": task.message()}])
    streamed = await model.chat.completions.create(
        model="m", messages=[{"role": "user", "content": task.message()}], stream=True
    )
    deltas = [chunk.choices[0].delta async for chunk in streamed if chunk.choices]

    text = "".join(delta.content or "" for delta in deltas)
    names = [call.function.name for delta in deltas for call in delta.tool_calls or [] if call.function]
    assert text == (whole.choices[0].message.content or "") == ("" if turns else task.answer())
    assert names == (["note"] if turns else [])
    assert len(whole.choices[0].message.tool_calls or []) == turns


async def test_the_server_counts_models_and_tools_by_conversation(model: AsyncOpenAI, port: int) -> None:
    counter = HttpClient(port)
    waiting = asyncio.create_task(counter.json("GET", "/wait?c-&2"))
    for _ in range(2):
        await model.responses.create(model="m", input=TASK.message())
        await counter.json("POST", "/tool", {"conversation": "c-1", "step": 0})

    sums = await counter.json("GET", "/sums?c-")

    assert (await waiting) == {"reached": True}
    assert (sums["model_calls_twice"], sums["tool_calls_twice"]) == (1, 1)
    assert await counter.json("GET", "/seen?c-") == ["c-1"]


async def test_a_route_that_the_model_does_not_have_is_named(port: int) -> None:
    with pytest.raises(Refused, match="has no GET /v1/models"):
        await HttpClient(port).json("GET", "/v1/models")
