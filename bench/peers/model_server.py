"""The model of all contestants: an HTTP server with a script, which also counts calls. Run as a process.

It speaks the Responses API and Chat Completions, streamed or whole, as far as the contestants use them.
It is written on sockets, so that it takes little of the processor that the contestants need.

| route | does |
|---|---|
| `POST /v1/responses`, `POST /v1/chat/completions` | answers as `bench/peers/script.py` says |
| `POST /tool` | counts one run of the tool: `{"conversation", "step"}` |
| `GET /sums?PREFIX` | returns the sums of the conversations with that prefix |
| `GET /seen?PREFIX` | returns the names of the conversations that have called the model or the tool |
| `GET /wait?PREFIX&N` | answers when the tool has run N times in these conversations |
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from bench.peers.script import TOOL_NAME, Ledger, NotScripted, Reply, reply_to, words
from bench.support.report import run

MODEL = "scripted"
BODY_MAX_BYTES = 16 * 1024 * 1024
TOKENS_AT_ONCE = 8  # then other conversations have a turn
WAIT_MAX_S = 120.0
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
RESPONSE_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 20,
}


class ModelServer:
    """Serves connections and keeps the ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._counted = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until the client closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                await self._answer(f"{method} {target}", await _body(head, reader), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection, or was killed
        finally:
            writer.close()

    async def _answer(self, route: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        path, _, query = route.partition("?")
        match path:
            case "POST /v1/responses" | "POST /v1/chat/completions":
                await self._say(path.endswith("responses"), orjson.loads(body), writer)
            case "POST /tool":
                done = orjson.loads(body)
                self.ledger.account(done["conversation"]).tools[done["step"]] += 1
                async with self._counted:
                    self._counted.notify_all()
                _send(writer, {"noted": done["step"]})
            case "GET /sums":
                _send(writer, self.ledger.sums(query))
            case "GET /seen":
                _send(writer, [name for name in self.ledger.accounts if name.startswith(query)])
            case "GET /wait":
                prefix, _, count = query.partition("&")
                _send(writer, {"reached": await self._reached(prefix, int(count))})
            case _:
                _send(writer, {"error": {"message": f"the scripted model has no {path}"}}, "404 Not Found")

    async def _reached(self, prefix: str, count: int) -> bool:
        try:
            async with asyncio.timeout(WAIT_MAX_S), self._counted:
                await self._counted.wait_for(lambda: self.ledger.tools_of(prefix) >= count)
        except TimeoutError:
            return False
        return True

    async def _say(self, responses: bool, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            reply = reply_to(request)
        except NotScripted as error:
            _send(writer, {"error": {"message": str(error)}}, "400 Bad Request")
            return
        account = self.ledger.account(reply.task.conversation)
        account.model_called(reply.step, time.perf_counter())
        if not request.get("stream"):
            _send(writer, whole_response(reply) if responses else whole_completion(reply))
        else:
            writer.write(STREAM_HEAD)
            frames = response_frames(reply) if responses else completion_frames(reply)
            for number, frame in enumerate(frames):
                writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                if number % TOKENS_AT_ONCE == TOKENS_AT_ONCE - 1:
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
        account.answered_s = time.perf_counter()


async def _body(head: str, reader: asyncio.StreamReader) -> bytes:
    length = 0
    for line in head.lower().split("\r\n"):
        if line.startswith("content-length:"):
            length = int(line.partition(":")[2])
    if length > BODY_MAX_BYTES:
        raise ConnectionError(f"a body of {length} bytes; BODY_MAX_BYTES is {BODY_MAX_BYTES}")
    return await reader.readexactly(length)


def _send(writer: asyncio.StreamWriter, value: object, status: str = "200 OK") -> None:
    body = orjson.dumps(value)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


# --- Chat Completions --------------------------------------------------------------------------------------------


def whole_completion(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if reply.calls_tool:
        message["tool_calls"] = [_tool_call(reply)]
    else:
        message["content"] = reply.task.answer()
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return {**_completion("chat.completion"), "choices": [choice], "usage": USAGE}


def completion_frames(reply: Reply) -> Iterator[bytes]:
    if reply.calls_tool:
        yield _chunk({"role": "assistant", "content": None, "tool_calls": [{"index": 0, **_tool_call(reply)}]})
    else:
        yield _chunk({"role": "assistant", "content": ""})
        for word in words(reply.task.tokens):
            yield _chunk({"content": word})
    yield _chunk({}, _finish(reply))
    yield _data({**_completion("chat.completion.chunk"), "choices": [], "usage": USAGE})
    yield b"data: [DONE]\n\n"


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls_tool else "stop"


def _tool_call(reply: Reply) -> dict[str, Any]:
    return {"id": reply.call_id, "type": "function", "function": {"name": TOOL_NAME, "arguments": reply.arguments}}


def _completion(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1_700_000_000, "model": MODEL}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return _data({**_completion("chat.completion.chunk"), "choices": [choice]})


# --- Responses ---------------------------------------------------------------------------------------------------


def whole_response(reply: Reply) -> dict[str, Any]:
    return _response("completed", [_item(reply, "completed")], RESPONSE_USAGE)


def response_frames(reply: Reply) -> Iterator[bytes]:
    number = iter(range(1_000_000))

    def event(kind: str, **fields: Any) -> bytes:
        return b"event: %b\n%b" % (kind.encode(), _data({"type": kind, "sequence_number": next(number), **fields}))

    item = _item(reply, "completed")
    place = {"item_id": item["id"], "output_index": 0}
    yield event("response.created", response=_response("in_progress", [], None))
    if reply.calls_tool:
        yield event(
            "response.output_item.added", output_index=0, item={**item, "arguments": "", "status": "in_progress"}
        )
        yield event("response.function_call_arguments.delta", **place, delta=reply.arguments)
        yield event("response.function_call_arguments.done", **place, name=TOOL_NAME, arguments=reply.arguments)
    else:
        part = {**place, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield event("response.output_item.added", output_index=0, item={**item, "content": [], "status": "in_progress"})
        yield event("response.content_part.added", **part, part=empty)
        for word in words(reply.task.tokens):
            yield event("response.output_text.delta", **part, delta=word, logprobs=[])
        yield event("response.output_text.done", **part, text=reply.task.answer(), logprobs=[])
        yield event("response.content_part.done", **part, part=item["content"][0])
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=whole_response(reply))


@lru_cache(maxsize=4096)
def _item(reply: Reply, status: str) -> dict[str, Any]:
    name = f"{reply.task.conversation}_{reply.step}"
    if reply.calls_tool:
        return {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": reply.call_id,
            "name": TOOL_NAME,
            "arguments": reply.arguments,
            "status": status,
        }
    text = {"type": "output_text", "text": reply.task.answer(), "annotations": [], "logprobs": []}
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": [text]}


def _response(status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": MODEL,
        "output": output,
        "parallel_tool_calls": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }


def _data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def serve(port: int) -> None:
    server = await asyncio.start_server(ModelServer().serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.model_server", description="Serve a scripted model.")
    parser.add_argument("--port", type=int, required=True)
    run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
