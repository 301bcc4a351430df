"""Clients that others have written, unchanged, against `/v1` of a gateway on a socket.

`openai_service` compares every body and event that its gateway sends with the published types. A client would not
report a field that it does not read.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import agents
import openai
import pytest
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr

from magent2.bus.memory import MemoryBus
from tests.support.model_server import Call, Json, Reply
from tests.support.openai_service import OpenAIService, openai_service

CLIENTS = Path(__file__).parents[1] / "clients"
TEXT_EVENTS = {
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
}
NODE = Path(__file__).parents[2] / ".venv" / "bin" / "node"


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


def said(request: Json) -> str:
    """The last text of the user in a request to the model."""
    texts = [item["content"] for item in request["input"] if item.get("role") == "user"]
    last = texts[-1]
    return last if isinstance(last, str) else "".join(part["text"] for part in last)


def answer(request: Json) -> Reply:
    """Calls a tool if the user asks for it, and otherwise repeats what the user said."""
    if request["input"][-1].get("type") == "function_call_output":
        return Reply(f"The output was {request['input'][-1]['output'][:40]}")
    text = said(request)
    if text == "weather":
        return Reply(calls=[Call("weather", {"city": "Oslo"})])
    if text == "call":
        return Reply(calls=[Call("pick", {})])
    return Reply(f"You said {text}.")


def checked_kinds(service: OpenAIService) -> set[str]:
    """The kinds of bodies and events that the gateway has sent, and that were compared with the published types."""
    return set(service.answers.seen)


async def run_node(script: str, service: OpenAIService) -> dict[str, Any]:
    """Run a script with the address and the key. Return what it prints."""
    process = await asyncio.create_subprocess_exec(
        NODE, CLIENTS / script, service.url, service.holder.text, stdout=-1, stderr=-1
    )
    printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    found: dict[str, Any] = json.loads(printed)
    return found


@pytest.mark.browser  # it needs the Node of the page
async def test_npm_openai(bus: MemoryBus) -> None:
    async with openai_service(bus, answer) as service:
        found = await run_node("openai.mjs", service)

    assert found == {
        "plain": "You said plain.",
        "continued": "You said again.",
        "streamed": "You said stream.",
        "final": "You said stream.",
        "resumed": "You said background.",
        "call": "pick",
        "answered": "The output was seven",
        "chat": "You said chat.",
        "chatStreamed": "You said chat stream.",
        "refused": "truncation",
    }
    assert checked_kinds(service) == {"response", "completion", "chunk", "error", *TEXT_EVENTS, "response.queued"}


@pytest.mark.browser
async def test_npm_ai_sdk(bus: MemoryBus) -> None:
    async with openai_service(bus, answer) as service:
        found = await run_node("ai-sdk.mjs", service)

    assert found.pop("own").startswith("The output was ")
    assert found == {
        "plain": "You said plain.",
        "continued": "You said again.",
        "streamed": "You said stream.",
        "steps": 2,
        "answered": "The output was seven",
        "chat": "You said chat.",
        "tokens": 12,
    }
    assert checked_kinds(service) == {"response", "completion", *TEXT_EVENTS}


def test_pypi_openai_without_an_event_loop(bus: MemoryBus) -> None:
    def talk(service: OpenAIService) -> Mapping[str, object]:
        client = openai.OpenAI(base_url=service.url, api_key=service.holder.text, max_retries=0)
        plain = client.responses.create(model="desk", input="plain")
        with client.responses.stream(model="desk", input="stream") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        chat = client.chat.completions.create(model="desk", messages=[{"role": "user", "content": "chat"}])
        found = client.responses.retrieve(plain.id)
        client.close()
        return {"plain": found.output_text, "stream": "".join(deltas), "chat": chat.choices[0].message.content}

    async def run() -> Mapping[str, object]:
        async with openai_service(bus, answer) as service:
            return await asyncio.to_thread(talk, service)

    assert asyncio.run(run()) == {"plain": "You said plain.", "stream": "You said stream.", "chat": "You said chat."}


async def test_pypi_openai_resumes_a_background_response_with_an_event_loop(bus: MemoryBus) -> None:
    gate = threading.Event()
    async with openai_service(bus, [Reply("One two three.", gate=gate)]) as service, service.client() as client:
        text, last, made = "", -1, ""
        stream = await client.responses.create(model="desk", input="count", background=True, stream=True)
        async for event in stream:
            last = event.sequence_number
            if event.type == "response.created":
                made = event.response.id
            if event.type == "response.output_text.delta":
                text += event.delta
                break
        await stream.close()
        gate.set()
        async for event in await client.responses.retrieve(made, stream=True, starting_after=last):
            text += event.delta if event.type == "response.output_text.delta" else ""
        found = await client.responses.retrieve(made)

    assert text == found.output_text == "One two three."
    assert (found.status, found.background, len(service.model.requests)) == ("completed", True, 1)


async def test_a_team_of_teams_with_openai_agents(bus: MemoryBus) -> None:
    """An agent of the SDK whose model is one of our agents, with a tool of its own and another one of our agents."""

    @agents.function_tool
    def pick() -> str:
        """Pick a number."""
        return "seven"

    async with openai_service(bus, answer) as service:
        client = AsyncOpenAI(base_url=service.url, api_key=service.holder.text, max_retries=0)
        model = agents.OpenAIResponsesModel("desk", client)
        other = agents.Agent("other", model=agents.OpenAIChatCompletionsModel("shop", client))
        outer = agents.Agent("outer", instructions="Be brief.", model=model, tools=[pick], handoffs=[other])
        config = agents.RunConfig(tracing_disabled=True)
        plain = await agents.Runner.run(outer, "plain", run_config=config)
        called = await agents.Runner.run(outer, "call", run_config=config)
        streamed = agents.Runner.run_streamed(outer, "stream", run_config=config)
        async for _ in streamed.stream_events():
            pass
        chat = await agents.Runner.run(other, "chat", run_config=config)
        await client.close()

    assert plain.final_output == "You said plain."
    assert called.final_output == "The output was seven"
    assert streamed.final_output == "You said stream."
    assert chat.final_output == "You said chat."
    assert service.model.requests[0]["instructions"].endswith("Be brief.")
    assert checked_kinds(service) == {"response", "completion", *TEXT_EVENTS}


async def test_langchain_openai(bus: MemoryBus) -> None:
    @langchain_tool
    def pick() -> str:
        """Pick a number."""
        return "seven"

    async with openai_service(bus, answer) as service:
        chat = ChatOpenAI(model="desk", base_url=service.url, api_key=SecretStr(service.holder.text), max_retries=0)
        responses = chat.model_copy(update={"use_responses_api": True})
        plain = await chat.ainvoke("plain")
        streamed = [chunk.text async for chunk in chat.astream("stream")]
        called = await chat.bind_tools([pick]).ainvoke("call")
        by_responses = await responses.ainvoke("plain")
        continued = await responses.ainvoke("again", previous_response_id=by_responses.response_metadata["id"])

    assert (plain.text, "".join(streamed)) == ("You said plain.", "You said stream.")
    assert [call["name"] for call in called.tool_calls] == ["pick"]
    assert (by_responses.text, continued.text) == ("You said plain.", "You said again.")
    assert checked_kinds(service) == {"response", "completion", "chunk"}
