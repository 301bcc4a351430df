"""Receivers of messages: a fake connector with injected failures, and a real HTTP server for webhooks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from magent2.connectors.interface import DeliveryReceipt, OutgoingMessage
from magent2.directory.connectors import Capabilities


@dataclass
class FakeConnector:
    """A connector that records messages. For each message it first raises the next of `failures`, if any.

    `only` has the failures of single messages, by their text.
    """

    takes_key: bool = False
    failures: list[Exception | None] = field(default_factory=list)
    arrived: list[OutgoingMessage] = field(default_factory=list)
    gate: asyncio.Event | None = None
    only: dict[str, list[BaseException]] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(text=True, files=True, reply_to=True, takes_key=self.takes_key)

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        failures = self.only.get(message.text) or self.failures
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        self.arrived.append(message)
        if self.gate is not None:
            await self.gate.wait()
        return DeliveryReceipt(f"r{len(self.arrived)}")

    async def aclose(self) -> None:
        return None

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.arrived]


@dataclass
class ReceivedPost:
    headers: dict[str, str]
    body: bytes

    def is_signed_by(self, secret: str) -> bool:
        """Verify the signature as `docs/writing-a-connector.md` describes, without code of the package."""
        timestamp, key = self.headers["x-magent2-timestamp"], self.headers["idempotency-key"]
        text = b".".join([b"v1", timestamp.encode(), key.encode(), self.body])
        wanted = f"v1={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"
        return hmac.compare_digest(wanted, self.headers["x-magent2-signature"])

    @property
    def text(self) -> str:
        return str(json.loads(self.body)["text"])


@dataclass
class WebhookReceiver:
    """Answers each POST with the next of `answers` (a status, headers and a body), then with 200."""

    port: int = 0
    posts: list[ReceivedPost] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)  # `None` closes the connection without an answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.posts.append(await _read_post(reader))
            answer = self.answers.pop(0) if self.answers else ok()
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        finally:
            writer.close()


async def _read_post(reader: asyncio.StreamReader) -> ReceivedPost:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return ReceivedPost(headers, await reader.readexactly(int(headers["content-length"])))


def ok(body: bytes = b'{"id": "theirs-1"}') -> bytes:
    return answer("200 OK", body)


def answer(status: str, body: bytes = b"", headers: Sequence[str] = ()) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await server.wait_closed()


@contextmanager
def webhook_server() -> Iterator[WebhookReceiver]:
    """A receiver on threads, for tests that block. It answers every whole POST with 200."""
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            if len(body) < int(headers["content-length"]):
                return  # a client that was killed has sent a part of it
            receiver.posts.append(ReceivedPost(headers, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the base class
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
