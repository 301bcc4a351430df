"""Restate: a virtual object per conversation; each call of the model and of the tool is a `ctx.run` step."""

from __future__ import annotations

import json
from typing import Any

import restate
from openai import AsyncOpenAI
from work import INSTRUCTIONS, MODEL, note

SCHEMA = {
    "type": "object",
    "properties": {"conversation": {"type": "string"}, "step": {"type": "integer"}},
    "required": ["conversation", "step"],
}
TOOL = {"type": "function", "function": {"name": "note", "description": "Make a note.", "parameters": SCHEMA}}

client = AsyncOpenAI()
conversation = restate.VirtualObject("Conversation")


async def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    return completion.choices[0].message.model_dump(exclude_none=True)


async def call_tool(arguments: str) -> str:
    return await note(**json.loads(arguments))


@conversation.handler()
async def message(ctx: restate.ObjectContext, text: str) -> str:
    messages = await ctx.get("messages") or [{"role": "system", "content": INSTRUCTIONS}]
    messages.append({"role": "user", "content": text})
    ctx.set("messages", messages)
    while True:
        said = await ctx.run_typed("model", call_model, messages=messages)
        messages.append(said)
        if not said.get("tool_calls"):
            ctx.set("messages", messages)
            return str(said["content"])
        for call in said["tool_calls"]:
            result = await ctx.run_typed("tool", call_tool, arguments=call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@conversation.handler(kind="shared")
async def history(ctx: restate.ObjectSharedContext) -> list[dict[str, Any]]:
    return await ctx.get("messages") or []


app = restate.app([conversation])
