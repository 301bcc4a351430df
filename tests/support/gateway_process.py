"""A gateway in a process of its own, and raw connections to it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import orjson

from tests.support.command_line import CommandLine
from tests.support.waiting import DEADLINE_S

TOKEN = "0123456789abcdefghij"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, as bytes on the wire."""

    head: str
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(" ", 2)[1]) if self.head else 0

    @property
    def code(self) -> str:
        """The code of the problem document. Fails if the response is not one."""
        assert "content-type: application/problem+json" in self.head.lower(), self.head
        return str(orjson.loads(self.body)["code"])


@dataclass(slots=True)
class RawClient:
    """A connection that sends exactly the bytes that it is given."""

    plain: socket.socket
    received: bytes = b""

    def send(self, data: bytes) -> bool:
        """Send bytes. Return whether the other end still takes them."""
        try:
            self.plain.sendall(data)
        except OSError:
            return False
        return True

    def answer(self) -> Answer:
        """Read one response with a `Content-Length`. The head is empty if the connection closed instead."""
        while b"\r\n\r\n" not in self.received:
            if not self._receive():
                return Answer("", b"")
        head, _, rest = self.received.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        length = int(found[1]) if found else 0
        while len(rest) < length and self._receive():
            rest = self.received.partition(b"\r\n\r\n")[2]
        self.received = rest[length:]
        return Answer(head.decode(), rest[:length])

    def read_to_end(self) -> bytes:
        """Read until the other end closes."""
        while self._receive():
            pass
        return self.received

    def _receive(self) -> bool:
        try:
            data = self.plain.recv(1 << 16)
        except TimeoutError:
            raise AssertionError(f"nothing arrived for {DEADLINE_S:g} s, and the connection is open") from None
        except OSError:
            return False
        self.received += data
        return bool(data)

    def close(self) -> None:
        with suppress(OSError):
            self.plain.close()


def open_connection(port: int, source: str = "127.0.0.1") -> RawClient:
    """Connect to a port of this machine from one of its addresses."""
    plain = socket.create_connection(("127.0.0.1", port), DEADLINE_S, (source, 0))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return RawClient(plain)


@dataclass(slots=True)
class GatewayProcess:
    """A gateway in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    clients: list[RawClient] = field(default_factory=list)

    def connect(self) -> RawClient:
        client = open_connection(self.port)
        self.clients.append(client)
        return client

    def ask(self, head: str, body: bytes = b"") -> Answer:
        """Send one request on a new connection and return its response."""
        client = self.connect()
        client.send(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = client.answer()
        client.close()
        return answer

    def health(self) -> int:
        return self.ask("GET /health HTTP/1.1\nhost: localhost").status

    def post(self, path: str, body: bytes, method: str = "POST") -> Answer:
        """Send JSON with the token of the gateway."""
        lines = (
            f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {TOKEN}",
            "content-type: application/json", f"content-length: {len(body)}",
        )  # fmt: skip
        return self.ask("\n".join(lines), body)

    def holds(self, client: RawClient) -> bool:
        """Whether the gateway has the other end of this connection open. The kernel gives a closed end no inode."""
        ends = f":{self.port:04X}", f":{client.plain.getsockname()[1]:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any((line[1][-5:], line[2][-5:]) == ends and line[9] != "0" for line in lines)

    def memory_mib(self) -> float:
        """The resident memory of the process."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES / MIB


@contextmanager
def gateway_process(folder: Path, module: str = "magent2.cli", **limits: float) -> Iterator[GatewayProcess]:
    """Start a gateway on a free port with these limits, and end it afterwards. `module` has the command line."""
    variables = {f"MAGENT2_LIMIT_{name.upper()}": str(value) for name, value in limits.items()}
    with CommandLine(folder, MAGENT2_TOKEN=TOKEN, **variables) as commands:
        process = commands.start_module(module, "gateway", "--port", "0", "--bus", f"sqlite:///{folder / 'log.db'}")
        assert process.stdout is not None
        said = ""
        while (found := ADDRESS.search(said)) is None:
            line = process.stdout.readline()
            assert line, f"the gateway ended: {said} {process.communicate()[1]}"
            said += line
        gateway = GatewayProcess(process, int(found[1]))
        assert process.stderr is not None
        # Each refusal is a line of the log. A full pipe would stop the gateway.
        Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield gateway
        finally:
            for client in gateway.clients:
                client.close()
