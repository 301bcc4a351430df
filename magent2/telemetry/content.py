"""What was said, in the form that the conventions for generative AI give it, for spans that may hold it. Pure.

A message is `{"role", "parts"}`; a part is text, a `tool_call` or a `tool_call_response`; all else is its type alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

CONTENT_MAX_CHARS = 20_000  # of one attribute

Message: TypeAlias = dict[str, Any]


def asked_messages(given: object) -> str:
    """What a model is asked: a text, or items of the Responses API."""
    if isinstance(given, str):
        return _json([{"role": "user", "parts": [_text(given)]}])
    items = given if isinstance(given, Sequence) else ()
    return _json([_message(_plain(item)) for item in items])


def answered_message(output: object) -> str:
    """What it answered: one message, whatever items it came in."""
    items = [_plain(item) for item in output] if isinstance(output, Sequence) else []
    parts = [part for item in items for part in _message(item)["parts"]]
    return _json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason(output)}])


def finish_reason(output: object) -> str:
    items = output if isinstance(output, Sequence) else ()
    return "tool_call" if any(_plain(item).get("type") == "function_call" for item in items) else "stop"


def shown(said: object) -> str:
    """Arguments and results of tools: a text as it is, all else as JSON."""
    return said[:CONTENT_MAX_CHARS] if isinstance(said, str) else _json(said)


def _message(item: Mapping[str, Any]) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"type": "tool_call", "id": item.get("call_id"), "name": item.get("name")}
        return {"role": "assistant", "parts": [{**call, "arguments": item.get("arguments")}]}
    if kind == "function_call_output":
        response = {"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}
        return {"role": "tool", "parts": [response]}
    if kind != "message":
        return {"role": "assistant", "parts": [{"type": str(kind)}]}
    said = item.get("content")
    pieces = [said] if isinstance(said, str) else said or ()
    return {"role": item.get("role", "assistant"), "parts": [_part(piece) for piece in pieces]}


def _part(piece: object) -> Message:
    if isinstance(piece, str):
        return _text(piece)
    found = _plain(piece)
    return _text(found["text"]) if "text" in found else {"type": str(found.get("type", "unknown"))}


def _text(text: str) -> Message:
    return {"type": "text", "content": text}


def _plain(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else {"type": type(value).__name__}


def _json(value: object) -> str:
    return orjson.dumps(value, default=str).decode()[:CONTENT_MAX_CHARS]
