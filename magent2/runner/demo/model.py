"""The demo model: an SDK model that answers from `script.py` and streams like a real one, deterministic and offline."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import cast

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

from magent2.runner.demo.script import (
    Items,
    Line,
    ScriptedCall,
    ScriptedStep,
    ScriptedText,
    next_line,
    script,
    tour_line,
)
from magent2.runner.echo import pieces
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

__all__ = ["DemoModel", "script"]

MODEL_NAME = "demo"
ID_BYTES = 8
STEP_PAUSE_S = 0.2  # between two words that announce a step: enough time to steer or stop the run

OutputItem = ResponseOutputMessage | ResponseFunctionToolCall


class DemoModel(Model):
    """Answers from the script, and streams word by word. `pause_s` is the pause between two words."""

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
        handoffs: list[Handoff],
        tracing: object,
        **server_state: object,
    ) -> ModelResponse:
        items = _items_of(input)
        response = build_response(_line(items, tools, handoffs), items)
        counts = cast(ResponseUsage, response.usage)
        usage = Usage(1, counts.input_tokens, output_tokens=counts.output_tokens, total_tokens=counts.total_tokens)
        return ModelResponse(output=response.output, usage=usage, response_id=None)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  the SDK's name for it
        model_settings: object,
        tools: list[Tool],
        output_schema: object,
        handoffs: list[Handoff],
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


def _items_of(request: str | list[TResponseInputItem]) -> Items:
    return [{"role": "user", "content": request}] if isinstance(request, str) else request


def _line(items: Items, tools: Sequence[Tool], handoffs: Sequence[Handoff]) -> Line:
    names = [tool.name for tool in tools]
    targets = {handoff.agent_name: handoff.tool_name for handoff in handoffs}
    return tour_line(items, names) or next_line(items, names, targets)


def build_response(line: Line, items: Items) -> Response:
    """The whole response. Its ids derive from the request, so that the same conversation gets the same response."""
    request = json.dumps(items, sort_keys=True, default=str)
    name = hashlib.blake2b(request.encode(errors="replace"), digest_size=ID_BYTES).hexdigest()
    output = _output_items(line, name)
    tokens_in = len(pieces(request))
    tokens_out = sum(len(pieces(_text(item))) for item in output)
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
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            total_tokens=tokens_in + tokens_out,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        ),
    )


def _output_items(line: Line, name: str) -> list[OutputItem]:
    if isinstance(line, ScriptedText):
        return [_message(line.text, name)]
    if isinstance(line, ScriptedStep):
        return [_message(line.text, name), _call(line.call, f"{name}-0")]
    return [_call(call, f"{name}-{index}") for index, call in enumerate(line)]


def _message(text: str, name: str) -> OutputItem:
    part = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
    return ResponseOutputMessage(id=f"msg-{name}", type="message", role="assistant", status="completed", content=[part])


def _call(call: ScriptedCall, name: str) -> OutputItem:
    return ResponseFunctionToolCall(
        id=f"fc-{name}",
        type="function_call",
        call_id=f"call-{name}",
        name=call.tool,
        arguments=json.dumps(dict(call.arguments), ensure_ascii=False),
        status="completed",
    )


def _text(item: OutputItem) -> str:
    """The text of a message, the arguments of a call."""
    if isinstance(item, ResponseFunctionToolCall):
        return item.arguments
    return "".join(part.text for part in item.content if isinstance(part, ResponseOutputText))


def stream_events(response: Response) -> Iterator[TResponseStreamEvent]:
    """The events with which a server streams a response: created, each item word by word, completed."""
    created = response.model_copy(update={"output": [], "status": "in_progress", "usage": None})
    yield ResponseCreatedEvent(type="response.created", response=created, sequence_number=0)
    number = 1
    for index, item in enumerate(cast(list[OutputItem], response.output)):
        for event in _item_events(index, item, number):
            yield event
            number += 1
    yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=number)


def _item_events(index: int, item: OutputItem, first: int) -> Iterator[TResponseStreamEvent]:
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


# --- The agents of `magent2 demo`: they stream, call a tool and hand off.

SECOND = "Ada"


def demo_team(first: str, pause_s: float) -> OpenAIAgentsRunner:
    """A runner for an agent named `first`, which has a clock tool and can hand off to an agent named Ada."""

    @function_tool
    async def current_time() -> str:
        """The current time in UTC."""
        return f"It is {datetime.now(UTC):%H:%M} UTC."

    model = DemoModel(pause_s)
    colleague = Agent(name=SECOND, model=model, tools=[current_time])
    return OpenAIAgentsRunner(Agent(name=first, model=model, tools=[current_time], handoffs=[colleague]))
