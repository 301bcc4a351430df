"""A small real model server: HTTP over a socket, streaming APIs of models, scripted answers.

    with ModelServer([Reply("Hello there")]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0)

It has the Responses API. `apis` names others: `chat` (chat completions) and `anthropic` (messages). It records its
requests. Connections are kept alive as real servers do, with one thread each.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias

from tests.support.model_protocols import anthropic_events, arguments_of, chat_chunks
from tests.support.waiting import DEADLINE_S, eventually

GATE_TIMEOUT_S = 2 * DEADLINE_S  # a test that waits for the answer without opening the gate fails first

Json: TypeAlias = dict[str, Any]

PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass(frozen=True)
class Call:
    """A tool call of the model. Arguments that are text are sent as they are. `status` is that of its item."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = "call-1"
    status: str = "completed"


@dataclass(frozen=True)
class Reply:
    """What the model answers to one request, and how it goes wrong.

    `items`        whole output items, before the text and the calls: what a provider's own tools leave.
    `status`       another status than 200 answers with an error document and no stream.
    `ask_again`    whether that answer tells the client to try once more by itself.
    `retry_after`  the header of that name in that answer.
    `break_after`  cut the connection after so many tokens.
    `end_after`    end the stream after so many tokens as if all were well, but without `response.completed`.
    `fail_after`   after so many tokens report `response.failed`.
    `cut_off`      the answer ends where its limit of tokens is reached: `response.incomplete`, `finish_reason: length`.
    `filtered`     the filter of the provider ends the answer there: reason or `finish_reason` `content_filter`.
    `pause_s`      between two tokens.
    `gate`         hold back every token after the first until the gate opens.
    `silent`       hold back the whole answer until the event is set: a server that hangs.
    `refusal`      a text with which the model refuses, in place of an answer.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    items: Sequence[Json] = ()
    status: int = 200
    ask_again: bool = False
    retry_after: str | None = None
    break_after: int | None = None
    end_after: int | None = None
    fail_after: int | None = None
    cut_off: bool = False
    filtered: bool = False
    pause_s: float = 0.0
    gate: threading.Event | None = None
    silent: threading.Event | None = None
    usage: tuple[int, int] = (7, 5)
    refusal: str = ""

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"\S+\s*|\s+", self.text)

    def wait(self, sent: int) -> None:
        """Wait before the next token, of which `sent` were sent."""
        if sent and self.gate is not None:
            self.gate.wait(GATE_TIMEOUT_S)
        if sent and self.pause_s:
            time.sleep(self.pause_s)


Answer: TypeAlias = Callable[[Json], Reply]


class ModelServer:
    """Answers the n-th request with the n-th reply, or each with what a function says."""

    def __init__(self, replies: Iterable[Reply] | Answer, apis: Sequence[str] = ("responses",)) -> None:
        self.requests: list[Json] = []
        self.headers: list[Mapping[str, str]] = []  # of each request
        self.not_found: list[str] = []  # paths of requests for an API that it does not have
        self.paths = {PATHS[api] for api in apis}
        self.hung_up = threading.Event()  # a client went away in the middle of an answer
        self._answer = replies if callable(replies) else None
        self._replies = iter(()) if callable(replies) else iter(list(replies))
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _Handler, self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="model-server", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def hear_clients_out(self) -> None:
        """Wait until all requests of clients that have ended are recorded. A killed one may have just sent its last.

        All clients must have ended: this waits until no connection is open.
        """
        # Connections are accepted in their order, so all earlier ones have been accepted when this one is closed.
        with socket.create_connection(("127.0.0.1", self._http.server_address[1])) as last:
            last.shutdown(socket.SHUT_WR)
            last.recv(1)
        eventually(lambda: not self._http.connections)

    @property
    def root(self) -> str:
        """The address without the version, which clients of Anthropic add themselves."""
        return self.url.removesuffix("/v1")

    def take(self, request: Json, headers: Mapping[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            if self._answer is not None:
                return self._answer(request)
            return next(self._replies, Reply(status=400, text="no more replies are scripted"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], model: ModelServer) -> None:
        super().__init__(address, handler)
        self.model = model
        self.connections: set[object] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.connections.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect between requests; show any other error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        if path not in self.server.model.paths:
            self.server.model.not_found.append(path)
            self._send_error(404, f"no such path: {path}")
            return
        reply = self.server.model.take(request, {name.lower(): value for name, value in self.headers.items()})
        if reply.silent is not None:
            reply.silent.wait(GATE_TIMEOUT_S)
        if reply.status != 200:
            self._send_error(reply.status, reply.text or "scripted failure", reply.ask_again, reply.retry_after)
        else:
            self._stream(reply, self._events(path, reply, request))

    def _events(self, path: str, reply: Reply, request: Json) -> Iterator[str]:
        """The lines of the stream."""
        if path == PATHS["chat"]:
            yield from (f"data: {data}\n\n" for data in chat_chunks(reply, request))
        elif path == PATHS["anthropic"]:
            for event in anthropic_events(reply, request):
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        else:
            for number, event in enumerate(stream_events(reply)):
                yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"

    def _send_error(self, status: int, message: str, ask_again: bool = False, retry_after: str | None = None) -> None:
        body = json.dumps({"error": {"message": message, "type": "scripted", "code": None, "param": None}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("x-should-retry", "true" if ask_again else "false")
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, reply: Reply, lines: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines:
                self._chunk(line)
            if reply.break_after is None:
                self._chunk("")
                return
        except (BrokenPipeError, ConnectionResetError):
            self.server.model.hung_up.set()
        self.close_connection = True

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *args: Any) -> None:
        """Do not log requests; they are recorded."""


def stream_events(reply: Reply) -> Iterator[Json]:
    """The events of one streamed response, up to where it goes wrong."""
    yield {"type": "response.created", "response": _response(reply, "in_progress", [])}
    output: list[Json] = []
    for item in reply.items:
        yield {"type": "response.output_item.added", "output_index": len(output), "item": item}
        yield {"type": "response.output_item.done", "output_index": len(output), "item": item}
        output.append(item)
    if reply.text:
        place = len(output)
        yield {"type": "response.output_item.added", "output_index": place, "item": {**_message(""), "content": []}}
        for sent, token in enumerate(reply.tokens):
            if sent in (reply.break_after, reply.end_after):
                return
            if sent == reply.fail_after:
                failed = {**_response(reply, "failed", []), "error": {"code": "server_error", "message": "scripted"}}
                yield {"type": "response.failed", "response": failed}
                return
            reply.wait(sent)
            yield {"type": "response.output_text.delta", "delta": token, "logprobs": [], **_place(place)}
        output.append(_message(reply.text))
        yield {"type": "response.output_item.done", "output_index": place, "item": output[-1]}
    if reply.refusal:
        item = {**_message(""), "content": [{"type": "refusal", "refusal": reply.refusal}]}
        yield {"type": "response.output_item.added", "output_index": len(output), "item": {**item, "content": []}}
        yield {"type": "response.refusal.delta", "delta": reply.refusal, **_place(len(output))}
        yield {"type": "response.output_item.done", "output_index": len(output), "item": item}
        output.append(item)
    for call in reply.calls:
        item = _function_call(call)
        yield {"type": "response.output_item.added", "output_index": len(output), "item": {**item, "arguments": ""}}
        yield {"type": "response.output_item.done", "output_index": len(output), "item": item}
        output.append(item)
    if reply.cut_off or reply.filtered:
        details = {"incomplete_details": {"reason": "max_output_tokens" if reply.cut_off else "content_filter"}}
        yield {"type": "response.incomplete", "response": {**_response(reply, "incomplete", output), **details}}
        return
    yield {"type": "response.completed", "response": _response(reply, "completed", output)}


def _place(index: int) -> Json:
    return {"item_id": "msg-1", "output_index": index, "content_index": 0}


def _message(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": "msg-1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _function_call(call: Call) -> Json:
    return {
        "id": f"fc-{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments_of(call),
        "status": call.status,
    }


def _response(reply: Reply, status: str, output: list[Json]) -> Json:
    asked, said = reply.usage
    usage = {
        "input_tokens": asked,
        "output_tokens": said,
        "total_tokens": asked + said,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if status in ("completed", "incomplete") else None,
    }
