"""A Redis server for tests, on a port and in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import quiet_port
from tests.support.waiting import eventually

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
MISSING = (
    "redis-server is not on PATH; install it with `apt-get install redis-server`, or leave these tests out: SKIP=redis"
)


def skip_if_left_out() -> None:
    if "redis" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=redis leaves the Redis tests out")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class RedisServer:
    """A server process. `options` are command line options; without any, nothing is persisted."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = quiet_port()
        self.options = options or ("--save", "", "--appendonly", "no")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start the server first"
        return self._process.pid

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.fail(MISSING)
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        with (self.folder / "redis.log").open("ab") as output:
            self._process = subprocess.Popen([program, *place, *self.options], stdout=output, stderr=output)
        eventually(self._answers, START_DEADLINE_S)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"redis-server ended at once:\n{(self.folder / 'redis.log').read_text()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_DEADLINE_S)
            self._process = None
