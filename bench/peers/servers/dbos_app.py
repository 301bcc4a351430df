"""DBOS: the agent's loop is a workflow, each call of the model and of the tool is a step, tokens go to a stream."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from dbos import DBOS, DBOSConfig, SetWorkflowID
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI
from work import INSTRUCTIONS, MODEL, note

STREAM = "tokens"
SCHEMA = {
    "type": "object",
    "properties": {"conversation": {"type": "string"}, "step": {"type": "integer"}},
    "required": ["conversation", "step"],
}
TOOL = {"type": "function", "function": {"name": "note", "description": "Make a note.", "parameters": SCHEMA}}

config: DBOSConfig = {"name": "bench", "log_level": "WARNING", "run_admin_server": False}
if url := os.environ.get("BENCH_DATABASE_URL"):
    config["system_database_url"] = url
DBOS(config=config)
client = AsyncOpenAI()


@DBOS.step()
async def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Call the model, write the pieces of its text to the stream, and return its message."""
    text, calls = "", []
    async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], stream=True):
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        if delta.content:
            text += delta.content
            await DBOS.write_stream_async(STREAM, delta.content)
        calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or []]
    return {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}


@DBOS.step()
async def call_tool(arguments: str) -> str:
    return await note(**json.loads(arguments))


@DBOS.workflow()
async def answer(text: str) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": text},
    ]
    while True:
        said = await call_model(messages)
        messages.append(said)
        if "tool_calls" not in said:
            await DBOS.close_stream_async(STREAM)
            return str(said["content"])
        for call in said["tool_calls"]:
            result = await call_tool(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    DBOS.launch()  # also recovers the workflows that were running when the process ended
    yield
    DBOS.destroy()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/conversations/{conversation}/messages")
async def message(conversation: str, text: str = Body(embed=True)) -> StreamingResponse:
    with SetWorkflowID(conversation):
        await DBOS.start_workflow_async(answer, text)
    return StreamingResponse(pieces(conversation), media_type="text/event-stream")


@app.get("/conversations/{conversation}/stream")
async def stream(conversation: str) -> StreamingResponse:
    return StreamingResponse(pieces(conversation), media_type="text/event-stream")


async def pieces(conversation: str) -> AsyncIterator[str]:
    async for piece in DBOS.read_stream_async(conversation, STREAM):
        yield f"data: {json.dumps({'delta': piece})}\n\n"
    handle = await DBOS.retrieve_workflow_async(conversation)
    yield f"data: {json.dumps({'output': await handle.get_result()})}\n\n"


@app.get("/conversations/{conversation}")
async def status(conversation: str) -> dict[str, Any]:
    found = await DBOS.get_workflow_status_async(conversation)
    return {"status": found.status if found else None}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), log_level="warning")
