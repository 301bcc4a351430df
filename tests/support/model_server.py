"""A small real model server: HTTP over a socket, the streaming Responses API, scripted answers.

    with ModelServer([Reply("Hello there")]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0)

It records its requests. Connections are kept alive as real servers do, with one thread each.
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

from tests.support.waiting import eventually

GATE_TIMEOUT_S = 30.0  # a test that never opens its gate fails, it does not hang

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call of the model. Arguments that are text are sent as they are."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = "call-1"


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
    `pause_s`      between two tokens.
    `gate`         hold back every token after the first until the gate opens.
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
    pause_s: float = 0.0
    gate: threading.Event | None = None
    usage: tuple[int, int] = (7, 5)

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"\S+\s*|\s+", self.text)


Answer: TypeAlias = Callable[[Json], Reply]


class ModelServer:
    """Answers the n-th request with the n-th reply, or each with what a function says."""

    def __init__(self, replies: Iterable[Reply] | Answer) -> None:
        self.requests: list[Json] = []
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

    def take(self, request: Json) -> Reply:
        with self._lock:
            self.requests.append(request)
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
        reply = self.server.model.take(request)
        if not self.path.endswith("/responses"):
            self._send_error(404, f"no such path: {self.path}")
        elif reply.status != 200:
            self._send_error(reply.status, reply.text or "scripted failure", reply.ask_again, reply.retry_after)
        else:
            self._stream(reply)

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

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number, event in enumerate(stream_events(reply)):
                self._chunk(f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n")
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
            _wait(reply, sent)
            yield {"type": "response.output_text.delta", "delta": token, "logprobs": [], **_place(place)}
        output.append(_message(reply.text))
        yield {"type": "response.output_item.done", "output_index": place, "item": output[-1]}
    for call in reply.calls:
        item = _function_call(call)
        yield {"type": "response.output_item.added", "output_index": len(output), "item": {**item, "arguments": ""}}
        yield {"type": "response.output_item.done", "output_index": len(output), "item": item}
        output.append(item)
    yield {"type": "response.completed", "response": _response(reply, "completed", output)}


def _wait(reply: Reply, sent: int) -> None:
    if sent and reply.gate is not None:
        reply.gate.wait(GATE_TIMEOUT_S)
    if sent and reply.pause_s:
        time.sleep(reply.pause_s)


def _place(index: int) -> Json:
    return {"item_id": "msg-1", "output_index": index, "content_index": 0}


def _message(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": "msg-1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _function_call(call: Call) -> Json:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    return {
        "id": f"fc-{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
        "status": "completed",
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
        "usage": usage if status == "completed" else None,
    }
