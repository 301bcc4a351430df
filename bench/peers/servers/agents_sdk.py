"""The OpenAI Agents SDK alone, behind a FastAPI route, with the SQLite session of the SDK."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from agents import Agent, Runner, SQLiteSession, function_tool
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from openai.types.responses import ResponseTextDeltaEvent
from work import INSTRUCTIONS, MODEL, note

MAX_TURNS = 25  # the default of 10 ends a run of ten turns with an error
DATABASE = "sessions.db"

app = FastAPI()
agent = Agent(name="bench", instructions=INSTRUCTIONS, model=MODEL, tools=[function_tool(note)])


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/conversations/{conversation}/messages")
async def message(conversation: str, text: str = Body(embed=True)) -> StreamingResponse:
    return StreamingResponse(answer(conversation, text), media_type="text/event-stream")


async def answer(conversation: str, text: str) -> AsyncIterator[str]:
    session = SQLiteSession(conversation, DATABASE)
    try:
        result = Runner.run_streamed(agent, text, session=session, max_turns=MAX_TURNS)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                yield f"data: {json.dumps({'delta': event.data.delta})}\n\n"
        yield f"data: {json.dumps({'output': result.final_output})}\n\n"
    finally:
        session.close()


@app.get("/conversations/{conversation}")
async def items(conversation: str) -> list[Any]:
    session = SQLiteSession(conversation, DATABASE)
    try:
        return list(await session.get_items())
    finally:
        session.close()


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), log_level="warning")
