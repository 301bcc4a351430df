"""A model's response as the journal stores it: what the SDK needs to get the same response again, and no more.

Images in a response are stored beside it, as blobs. A `message` event names each of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from agents import ModelResponse, Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionToolCall, ResponseUsage

from magent2.bus.operations import PutBlob
from magent2.bus.records import NewRecord
from magent2.models.events import MessageEvent
from magent2.models.json_types import JsonMapping, JsonObject, encodable, storable
from magent2.runner.context import RunContext
from magent2.sessions.stream import event_payload, stream_record

# A server repeats the request in its response (instructions, tools, settings), at length. None of that is stored.
STORED_FIELDS = {"id", "created_at", "model", "object", "output", "status", "usage", "incomplete_details"}

IMAGE_CALL = "image_generation_call"
IMAGE_MAX_BYTES = 8 << 20
IMAGE_REJECTED = "[The model returned an image that is invalid or too large. It was not stored.]"
IMAGE_SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png", b"RIFF": "image/webp"}

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")  # of a lone surrogate, or of a pair, which stays

StoredAnswer: TypeAlias = JsonMapping  # a response as the Responses API defines it

log = logging.getLogger(__name__)


# --- The response.


def answer_json(response: Response) -> JsonObject:
    """The response as JSON. Fields that the SDK requires and that are not stored get default values."""
    stored = response.model_dump(mode="json", include=STORED_FIELDS, exclude_unset=True)
    return {**stored, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def repair_arguments(response: Response) -> None:
    """Replace lone surrogates in the arguments of calls. The SDK encodes them and would fail the whole run."""
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall) and _SURROGATE_ESCAPE.search(item.arguments):
            try:
                item.arguments = json.dumps(storable(json.loads(item.arguments)))
            except ValueError:  # not JSON: the tool reports that to the model
                continue


def completed_event(answer: StoredAnswer) -> ResponseCompletedEvent:
    """The stored response as the last event of a stream. Not validated: the client does not validate it either."""
    response = Response.model_construct(**answer)
    return ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def model_response(answer: StoredAnswer) -> ModelResponse:
    """The stored response in the form that the SDK uses without streaming."""
    response = Response.model_construct(**answer)
    usage = Usage(requests=1)
    if (counts := response.usage) is not None:
        usage.input_tokens = counts.input_tokens
        usage.output_tokens = counts.output_tokens
        usage.total_tokens = counts.total_tokens
    return ModelResponse(output=response.output, usage=usage, response_id=response.id or None)


def response_of(answer: ModelResponse) -> Response:
    """A response that was not streamed, in the form of one that was."""
    counts = answer.usage
    return Response.model_construct(
        id=answer.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=answer.output,
        status="completed",
        usage=ResponseUsage.model_construct(
            input_tokens=counts.input_tokens,
            input_tokens_details=counts.input_tokens_details,
            output_tokens=counts.output_tokens,
            output_tokens_details=counts.output_tokens_details,
            total_tokens=counts.total_tokens,
        ),
    )


def text_of(answer: StoredAnswer) -> str:
    """The text of all messages in the response."""
    messages: Sequence[JsonObject] = [item for item in answer.get("output", ()) if item.get("type") == "message"]
    parts = (part for item in messages for part in item.get("content") or ())
    return "".join(encodable(part["text"]) for part in parts if part.get("type") == "output_text" and part.get("text"))


# --- Images.


async def store_images(
    context: RunContext, answer: StoredAnswer, event_fields: JsonObject
) -> tuple[StoredAnswer, list[NewRecord]]:
    """Store the images of a response. Return the response without them, and the records of the events that show them.

    `event_fields` are added to each event.
    """
    output: Sequence[JsonObject] = answer.get("output", ())
    if not any(item.get("type") == IMAGE_CALL and item.get("result") for item in output):
        return answer, []
    records: list[NewRecord] = []
    items: list[JsonObject] = []
    for item in output:
        if item.get("type") == IMAGE_CALL and item.get("result"):
            records.append(await _store_image(context, str(item["result"]), event_fields))
            items.append({**item, "result": ""})
        else:
            items.append(item)
    return {**answer, "output": items}, records


async def _store_image(context: RunContext, encoded: str, event_fields: JsonObject) -> NewRecord:
    data = _decode_image(encoded)
    if data is None:
        log.warning("an image was not stored", extra={"run_id": context.run_id, "chars": len(encoded)})
        event = MessageEvent(conversation_id=context.conversation_id, text=IMAGE_REJECTED)
        return stream_record({**event_payload(event), **event_fields})
    name = await context.bus.acall(PutBlob(data))
    attachment = {"sha256": name, "media_type": _media_type(data), "bytes": len(data)}
    event = MessageEvent(conversation_id=context.conversation_id, text="", attachments=[attachment])
    return replace(stream_record({**event_payload(event), **event_fields}), blobs=(name,))


def _decode_image(encoded: str) -> bytes | None:
    """The image, if it has a known type and is not too large."""
    if len(encoded) > IMAGE_MAX_BYTES * 4 // 3 + 4:  # the size of its base64 form
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if _media_type(data) is not None else None


def _media_type(data: bytes) -> str | None:
    return next((kind for signature, kind in IMAGE_SIGNATURES.items() if data.startswith(signature)), None)
