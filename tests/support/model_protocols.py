"""The streams of two other APIs of models: chat completions, and the messages of Anthropic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tests.support.model_server import Call, Reply

Json: TypeAlias = dict[str, Any]


def arguments_of(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))


def chat_chunks(reply: Reply, request: Json) -> Iterator[str]:
    """The data of one streamed chat completion, up to where it goes wrong. Counts tokens only if it is asked to."""

    def chunk(**fields: Any) -> str:
        facts = {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": []}
        return json.dumps({**facts, **fields})

    def choice(delta: Json, reason: str | None = None) -> str:
        return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": reason}])

    yield choice({"role": "assistant", "content": ""})
    for sent, token in enumerate(reply.tokens):
        if sent in (reply.break_after, reply.end_after):
            return
        reply.wait(sent)
        yield choice({"content": token})
    if reply.refusal:
        yield choice({"refusal": reply.refusal})
    for index, call in enumerate(reply.calls):
        arguments = arguments_of(call)
        named = {"name": call.name, "arguments": ""}
        yield choice({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": named}]})
        for part in (arguments[:3], arguments[3:]):
            yield choice({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    usual = "tool_calls" if reply.calls else "stop"
    yield choice({}, "length" if reply.cut_off else "content_filter" if reply.filtered else usual)
    if (request.get("stream_options") or {}).get("include_usage"):
        asked, said = reply.usage
        yield chunk(usage={"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said})
    yield "[DONE]"


def anthropic_events(reply: Reply, request: Json) -> Iterator[Json]:
    """The events of one streamed message of Anthropic, up to where it goes wrong."""
    asked, said = reply.usage
    message = {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": asked, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": message}
    index = 0
    if reply.text:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for sent, token in enumerate(reply.tokens):
            if sent in (reply.break_after, reply.end_after):
                return
            reply.wait(sent)
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": token}}
        yield {"type": "content_block_stop", "index": 0}
        index = 1
    for place, call in enumerate(reply.calls, index):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield {"type": "content_block_start", "index": place, "content_block": block}
        arguments = arguments_of(call)
        for part in (arguments[:3], arguments[3:]):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    usual = "tool_use" if reply.calls else "end_turn"
    reason = "max_tokens" if reply.cut_off else "refusal" if reply.filtered else usual
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": said},
    }
    yield {"type": "message_stop"}
