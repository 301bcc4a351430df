"""A fake PostgreSQL server that lets every client in, tells its version, and answers no statement."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PROTOCOL = 3 << 16  # a start-up message; other numbers ask for encryption
REFUSED_ENCRYPTION = b"N"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class _Session(socketserver.StreamRequestHandler):
    """Greets a client as a server of the given version does, and reads until the client leaves."""

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        while self._read_start() != PROTOCOL:
            self.wfile.write(REFUSED_ENCRYPTION)
        parameters = {"server_version": self.server.version, "client_encoding": "UTF8"}
        stated = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in parameters.items())
        let_in, key, ready = _message(b"R", struct.pack("!i", 0)), _message(b"K", bytes(8)), _message(b"Z", b"I")
        self.wfile.write(let_in + stated + key + ready)
        while self.rfile.read(1):
            pass

    def _read_start(self) -> int:
        size, number = struct.unpack("!ii", self.rfile.read(8))
        self.rfile.read(size - 8)
        return int(number)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, version: str) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.version = version


@contextmanager
def fake_postgres(version: str) -> Iterator[str]:
    """The URL of a server of this version."""
    with _Server(version) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"postgresql://magent2@127.0.0.1:{server.server_address[1]}/magent2"
        server.shutdown()
        thread.join()
