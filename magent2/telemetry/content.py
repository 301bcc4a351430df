"""Message content as JSON for span attributes, in the form of OpenTelemetry's conventions for generative AI. Pure.

A message is `{"role", "parts"}`. A part is text, a `tool_call` or a `tool_call_response`; of any other item only the
type is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import orjson

CONTENT_MAX_CHARS = 20_000  # of one attribute

Part: TypeAlias = dict[str, object]


def input_messages(request: object) -> str:
    """The input of a model call: a text, or items of the Responses API."""
    if isinstance(request, str):
        return _json([{"role": "user", "parts": [_text(request)]}])
    items = request if isinstance(request, Sequence) else ()
    return _json([{"role": role, "parts": parts} for role, parts in map(_message, map(_as_mapping, items))])


def output_messages(output: object) -> str:
    """The answer of a model as one message, however many items it consists of."""
    items = [_as_mapping(item) for item in output] if isinstance(output, Sequence) else []
    parts = [part for item in items for part in _message(item)[1]]
    return _json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason(output)}])


def finish_reason(output: object) -> str:
    items = output if isinstance(output, Sequence) else ()
    return "tool_call" if any(_as_mapping(item).get("type") == "function_call" for item in items) else "stop"


def content_text(value: object) -> str:
    """Arguments or result of a tool: a text as it is, anything else as JSON."""
    return value[:CONTENT_MAX_CHARS] if isinstance(value, str) else _json(value)


def _message(item: Mapping[str, object]) -> tuple[object, list[Part]]:
    """Role and parts of one item."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call: Part = {"type": "tool_call", "id": item.get("call_id"), "name": item.get("name")}
        return "assistant", [{**call, "arguments": item.get("arguments")}]
    if kind == "function_call_output":
        return "tool", [{"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}]
    if kind != "message":
        return "assistant", [{"type": str(kind)}]
    content = item.get("content")
    pieces: Sequence[object] = [content] if isinstance(content, str) else ()
    if isinstance(content, Sequence) and not isinstance(content, str):
        pieces = content
    return item.get("role", "assistant"), [_part(piece) for piece in pieces]


def _part(piece: object) -> Part:
    if isinstance(piece, str):
        return _text(piece)
    found = _as_mapping(piece)
    return _text(found["text"]) if "text" in found else {"type": str(found.get("type", "unknown"))}


def _text(text: object) -> Part:
    return {"type": "text", "content": text}


def _as_mapping(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else {"type": type(value).__name__}


def _json(value: object) -> str:
    return orjson.dumps(value, default=str).decode()[:CONTENT_MAX_CHARS]
