"""The demo model: deterministic, offline, and able to do what a real one does. Its lines are in `demo_script.py`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from agents import Agent, Handoff, Model, ModelResponse, Tool, TResponseInputItem, Usage, function_tool
from agents.items import TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from magent2.runner.demo.script import Line, ScriptedCall, ScriptedStep, ScriptedText, next_line, script, tour_line
from magent2.runner.echo import pieces
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

__all__ = ["DemoModel", "script"]

MODEL_NAME = "demo"
ID_BYTES = 8
STEP_PAUSE_S = 0.2  # between two words that announce a step: time enough to say something

Item = ResponseOutputMessage | ResponseFunctionToolCall


class DemoModel(Model):
    """Follows the script, word by word. `pause_s` between two words makes it look alive."""

    model = MODEL_NAME

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  the SDK's name for it
        model_settings: object,
        tools: list[Tool],
        output_schema: object,
        handoffs: list[Handoff[Any, Any]],
        tracing: object,
        **server_state: object,
    ) -> ModelResponse:
        items = _items_of(input)
        response = build_response(_line(items, tools, handoffs), items)
        used = cast(ResponseUsage, response.usage)
        usage = Usage(1, used.input_tokens, output_tokens=used.output_tokens, total_tokens=used.total_tokens)
        return ModelResponse(output=response.output, usage=usage, response_id=None)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  the SDK's name for it
        model_settings: object,
        tools: list[Tool],
        output_schema: object,
        handoffs: list[Handoff[Any, Any]],
        tracing: object,
        **server_state: object,
    ) -> AsyncIterator[TResponseStreamEvent]:
        items = _items_of(input)
        line = _line(items, tools, handoffs)
        pause_s = STEP_PAUSE_S if isinstance(line, ScriptedStep) else self._pause_s
        for event in stream_events(build_response(line, items)):
            if event.type == "response.output_text.delta" and pause_s:
                await asyncio.sleep(pause_s)
            yield event


def _items_of(asked: str | list[TResponseInputItem]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else cast(list[dict[str, Any]], asked)


def _line(items: list[dict[str, Any]], tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]]) -> Line:
    names = [tool.name for tool in tools]
    targets = {handoff.agent_name: handoff.tool_name for handoff in handoffs}
    return tour_line(items, names) or next_line(items, names, targets)


def build_response(line: Line, items: Sequence[Mapping[str, Any]]) -> Response:
    """The whole answer. Its ids derive from the input, so the same conversation gets the same answer."""
    asked = json.dumps(items, sort_keys=True, default=str)
    name = hashlib.blake2b(asked.encode(errors="replace"), digest_size=ID_BYTES).hexdigest()
    output = _items(line, name)
    read, written = len(pieces(asked)), sum(len(pieces(text)) for text in _texts(output))
    return Response(
        id=f"demo-{name}",
        created_at=0,
        model=MODEL_NAME,
        object="response",
        output=list(output),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        status="completed",
        usage=ResponseUsage(
            input_tokens=read,
            output_tokens=written,
            total_tokens=read + written,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        ),
    )


def _items(line: Line, name: str) -> list[Item]:
    if isinstance(line, ScriptedText):
        return [_message(line.text, name)]
    if isinstance(line, ScriptedStep):
        return [_message(line.text, name), _call(line.use, f"{name}-0")]
    return [_call(use, f"{name}-{index}") for index, use in enumerate(line)]


def _message(words: str, name: str) -> Item:
    text = ResponseOutputText(type="output_text", text=words, annotations=[], logprobs=[])
    return ResponseOutputMessage(id=f"msg-{name}", type="message", role="assistant", status="completed", content=[text])


def _call(use: ScriptedCall, name: str) -> Item:
    return ResponseFunctionToolCall(
        id=f"fc-{name}",
        type="function_call",
        call_id=f"call-{name}",
        name=use.tool,
        arguments=json.dumps(dict(use.arguments), ensure_ascii=False),
        status="completed",
    )


def _texts(output: Sequence[Item]) -> list[str]:
    return [item.arguments if isinstance(item, ResponseFunctionToolCall) else _text(item) for item in output]


def _text(message: ResponseOutputMessage) -> str:
    return "".join(part.text for part in message.content if isinstance(part, ResponseOutputText))


def stream_events(response: Response) -> Iterator[TResponseStreamEvent]:
    """The answer as a server streams it: begun, each item with its words, completed."""
    begun = response.model_copy(update={"output": [], "status": "in_progress", "usage": None})
    yield ResponseCreatedEvent(type="response.created", response=begun, sequence_number=0)
    number = 1
    for index, item in enumerate(cast(list[Item], response.output)):
        for event in _item_events(index, item, number):
            yield event
            number += 1
    yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=number)


def _item_events(index: int, item: Item, first: int) -> Iterator[TResponseStreamEvent]:
    empty: dict[str, object] = {"content": []} if isinstance(item, ResponseOutputMessage) else {"arguments": ""}
    added = item.model_copy(update={**empty, "status": "in_progress"})
    yield ResponseOutputItemAddedEvent(
        type="response.output_item.added", item=added, output_index=index, sequence_number=first
    )
    words = pieces(_text(item)) if isinstance(item, ResponseOutputMessage) else []
    for number, word in enumerate(words, first + 1):
        yield ResponseTextDeltaEvent(
            type="response.output_text.delta",
            delta=word,
            item_id=item.id or "",
            output_index=index,
            content_index=0,
            logprobs=[],
            sequence_number=number,
        )
    yield ResponseOutputItemDoneEvent(
        type="response.output_item.done", item=item, output_index=index, sequence_number=first + 1 + len(words)
    )


# --- Two demo agents that can do what there is to show: stream, tell the time, hand over to each other.

SECOND = "Ada"


def demo_team(first: str, pause_s: float) -> OpenAIAgentsRunner:
    """A runner whose agent, called `first`, has a clock and a colleague called Ada."""

    @function_tool
    def current_time() -> str:
        """The time, in UTC."""
        return f"It is {datetime.now(UTC):%H:%M} UTC."

    model = DemoModel(pause_s)
    colleague: Agent[Any] = Agent(name=SECOND, model=model, tools=[current_time])
    return OpenAIAgentsRunner(Agent(name=first, model=model, tools=[current_time], handoffs=[colleague]))
