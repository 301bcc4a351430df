"""Programs for the shell of a test, forked with their imports already done.

Each is a small script that sends its arguments, environment, folder and files to the test process over a Unix socket.
The test process starts the module with them, passes a SIGTERM on, and answers with the exit code.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import TracebackType
from typing import Any, Self

from tests.support.forked_processes import start_module

CHUNK_BYTES = 65_536

# The handler is set before the request is sent, so that no signal is lost. Without `site` this starts in 20 ms.
SCRIPT = """#!{python} -IS
import json, os, signal, socket, sys
test = socket.socket(socket.AF_UNIX)
test.connect({address!r})
signal.signal(signal.SIGTERM, lambda *_: test.send(b"t"))
job = {{"arguments": {first!r} + sys.argv[1:], "variables": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(test, [b"j"], [0, 1, 2])
test.sendall(json.dumps(job).encode() + b"\\n")
sys.exit(int(test.recv(16)))
"""


class ForkedCommands:
    """Runs the programs of its scripts. Those that still run when the context ends are killed."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="magent2-")  # short: the path of a socket has at most 100 characters
        self._address = f"{self._folder.name}/socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen()
        self._accepting = Thread(target=self._accept, daemon=True)
        self._serving: list[Thread] = []
        self._started: list[subprocess.Popen[Any]] = []

    def write_script(self, path: Path, *first: str) -> None:
        """Write a program that takes the arguments of Python, with these before its own; the first is `-m`."""
        path.write_text(SCRIPT.format(python=sys.executable, address=self._address, first=list(first)))
        path.chmod(0o755)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                script, _ = self._listener.accept()
                self._serving.append(Thread(target=self._serve, args=(script,), daemon=True))
                self._serving[-1].start()

    def _serve(self, script: socket.socket) -> None:
        """Run the program of one script."""
        with script, script.makefile("rb", buffering=0) as lines:
            _, files, _, _ = socket.recv_fds(script, 1, 3)
            process = _start(json.loads(lines.readline()), files)
            self._started.append(process)
            answering = Thread(target=_answer, args=(script, process), daemon=True)
            answering.start()
            while lines.read(1):
                process.terminate()
            process.kill()
            answering.join()

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for process in self._started:
            process.kill()
        for serving in self._serving:
            serving.join()
        self._folder.cleanup()


def _start(job: dict[str, Any], files: list[int]) -> subprocess.Popen[Any]:
    option, module, *arguments = job["arguments"]
    assert option == "-m", job["arguments"]
    stdin, stdout, stderr = files
    try:
        return start_module(
            module,
            arguments,
            job["variables"],
            folder=Path(job["folder"]),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    finally:
        for file in files:
            os.close(file)


def _answer(script: socket.socket, process: subprocess.Popen[Any]) -> None:
    code = process.wait()
    with suppress(OSError):  # the script is gone
        script.send(str(code if code >= 0 else 128 - code).encode())
        script.shutdown(socket.SHUT_RDWR)
