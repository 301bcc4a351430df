"""A fake Redis server that answers only the commands that identify a server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GREETINGS = {
    b"2": b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n",
    b"3": b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
}


class _Session(socketserver.StreamRequestHandler):
    """Answers INFO with the given text, HELLO and PING properly, and everything else with OK."""

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        while command := self._read_command():
            name = command[0].upper()
            if name == b"INFO":
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(self.server.info), self.server.info))
            elif name == b"HELLO":
                self.wfile.write(GREETINGS.get(command[1] if len(command) > 1 else b"2", GREETINGS[b"2"]))
            else:
                self.wfile.write(b"+OK\r\n")

    def _read_command(self) -> list[bytes]:
        header = self.rfile.readline()
        if not header.startswith(b"*"):
            return []
        parts = []
        for _ in range(int(header[1:])):
            size = int(self.rfile.readline()[1:])
            parts.append(self.rfile.read(size + 2)[:-2])
        return parts


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, info: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.info = info


@contextmanager
def fake_redis(**info: str) -> Iterator[str]:
    """The URL of a server with this INFO answer."""
    text = "# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in info.items())
    with _Server(text.encode()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()
        thread.join()
