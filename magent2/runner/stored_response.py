"""A model's answer as the journal keeps it: what it takes to give the SDK the same answer again, and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agents import ModelResponse, Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage

from magent2.runner.event_mapping import INT_MAX_DIGITS, encodable

# A server repeats the request in its answer (instructions, tools, settings), at length; nothing of that is kept.
KEPT = {"id", "created_at", "model", "object", "output", "status", "usage"}
REPLACED: Mapping[str, Any] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}

TEXT = "output_text"


def answer_json(response: Response) -> dict[str, Any]:
    return {**response.model_dump(mode="json", include=KEPT, exclude_unset=True), **REPLACED}


def completed_event(answer: Mapping[str, Any]) -> ResponseCompletedEvent:
    """The recorded answer as the end of a stream, as lenient as the client is with what a server says."""
    return ResponseCompletedEvent(type="response.completed", response=_response(answer), sequence_number=0)


def model_response(answer: Mapping[str, Any]) -> ModelResponse:
    """The recorded answer as the SDK has it where nothing is streamed."""
    response = _response(answer)
    usage = Usage(requests=1)
    if (used := response.usage) is not None:
        usage.input_tokens, usage.output_tokens, usage.total_tokens = (
            used.input_tokens,
            used.output_tokens,
            used.total_tokens,
        )
    return ModelResponse(output=response.output, usage=usage, response_id=response.id or None)


def response_of(answer: ModelResponse) -> Response:
    """The other way round: an answer that was not streamed, as one that was."""
    used = answer.usage
    return Response.model_construct(
        id=answer.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=answer.output,
        status="completed",
        usage=ResponseUsage.model_construct(
            input_tokens=used.input_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens=used.output_tokens,
            output_tokens_details=used.output_tokens_details,
            total_tokens=used.total_tokens,
        ),
    )


def _response(answer: Mapping[str, Any]) -> Response:
    return Response.model_construct(**answer)


def text_of(answer: Mapping[str, Any]) -> str:
    """All that the answer says, but for its calls."""
    parts = (part for item in messages_of(answer) for part in item.get("content") or ())
    return "".join(encodable(part["text"]) for part in parts if part.get("type") == TEXT and part.get("text"))


def messages_of(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [item for item in answer.get("output", ()) if item.get("type") == "message"]


def storable(value: object) -> Any:
    """The value with nothing in it that a log would refuse: a model can write halves of characters, and any number."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(name)): storable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value if is_plain(value) else str(value)


def is_plain(value: object) -> bool:
    """Whether JSON gives back exactly this value."""
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, str):
        return encodable(value) == value
    if isinstance(value, int):
        return len(str(abs(value))) <= INT_MAX_DIGITS
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is list:
        return all(is_plain(item) for item in cast(list[object], value))
    return type(value) is dict and all(isinstance(name, str) and is_plain(item) for name, item in value.items())
