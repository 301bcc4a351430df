"""Python programs as processes that are forked from one that is warm, where the system can, else started anew."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, AnyStr

from tests.support.fork_server import REQUEST_MAX_BYTES

ROOT = Path(__file__).parents[2]
PYCACHE = str(ROOT / ".cache" / "pycache")
FORK_SERVER = "tests.support.fork_server"
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl: orphans of our children become our own
END_DEADLINE_S = 10.0

File = int | IO[Any] | None


def start_module(
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    stdin: File = subprocess.PIPE,
    stdout: File = subprocess.PIPE,
    stderr: File = subprocess.PIPE,
    text: bool = False,
    cold: bool = False,
) -> subprocess.Popen[Any]:
    """`python -m MODULE ARGUMENTS…`, with this environment and no other. What is `cold` is a new program anywhere."""
    made = subprocess.Popen if cold or sys.platform != "linux" else ForkedProcess
    command = [sys.executable, "-m", module, *arguments]
    return made(command, cwd=ROOT, env=dict(variables), stdin=stdin, stdout=stdout, stderr=stderr, text=text)


class ForkedProcess(subprocess.Popen[AnyStr]):
    """A process as `subprocess` has them, but for how it begins."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        """Takes the place of the method that forks and executes. Of what it is given, this much has always been so:
        after the command five others, then folder and environment, three others, and the ends of three pipes."""
        folder, variables = given[4:6]
        pipes = given[9:15]
        files = [file if file >= 0 else number for number, file in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = fork_server().fork(args[2], args[3:], variables, folder, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class ForkServer:
    """The warm process. It ends with this one."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._request_lock = threading.Lock()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", FORK_SERVER, str(theirs.fileno())],
                cwd=ROOT,
                env={**kept, "PYTHONPYCACHEPREFIX": PYCACHE},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def fork(
        self, module: str, arguments: Sequence[str], variables: Mapping[str, str], folder: object, files: list[int]
    ) -> int:
        """A new process, child of this one; its number."""
        job = {"module": module, "arguments": list(arguments), "variables": dict(variables)}
        request = json.dumps({**job, "folder": str(folder), "parent": os.getpid()}).encode()
        assert len(request) <= REQUEST_MAX_BYTES, "more than the nursery reads at once"
        with self._request_lock:
            socket.send_fds(self._socket, [request], files)
            answer = self._socket.recv(64)
        assert answer, "the nursery has ended; its reason is on stderr"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(END_DEADLINE_S)


@cache
def fork_server() -> ForkServer:
    made = ForkServer()
    atexit.register(made.close)
    return made
