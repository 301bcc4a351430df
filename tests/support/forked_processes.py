"""Starts Python modules as processes, forked from a fork server on Linux and as new programs elsewhere."""

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
from pathlib import Path
from typing import IO, Any, AnyStr

from tests.support.fork_server import REQUEST_MAX_BYTES, ForkedExit, become, next_job

ROOT = Path(__file__).parents[2]
PYCACHE = str(ROOT / ".cache" / "pycache")
FORK_SERVER = "tests.support.fork_server"
PR_SET_CHILD_SUBREAPER = 36  # Linux prctl: this process becomes the parent of orphaned descendants
END_DEADLINE_S = 10.0

File = int | IO[Any] | None


def start_module(
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: Path = ROOT,
    stdin: File = subprocess.PIPE,
    stdout: File = subprocess.PIPE,
    stderr: File = subprocess.PIPE,
    text: bool = False,
    cold: bool = False,
    own_session: bool = False,
) -> subprocess.Popen[Any]:
    """Run `python -m MODULE ARGUMENTS…` with exactly this environment.

    With `cold`, always as a new program. With `own_session`, its id is also that of its process group.
    """
    made = subprocess.Popen if cold or sys.platform != "linux" else ForkedProcess
    return made(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=dict(variables),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=text,
        start_new_session=own_session,
    )


class ForkedProcess(subprocess.Popen[AnyStr]):
    """A `Popen` whose process is forked by the fork server."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        """Replace the private method of Popen that forks and executes.

        Used arguments: the command, then at 3 to 5 the file descriptors to pass on, the directory and the environment,
        at 9 to 14 the ends of three pipes, at 20 whether it gets a session of its own.
        """
        passed, folder, variables = given[3:6]
        pipes = given[9:15]
        files = {number: file if file >= 0 else number for number, file in enumerate((pipes[0], pipes[3], pipes[5]))}
        files |= {number: number for number in passed}
        folder, variables = folder or Path.cwd(), os.environ if variables is None else variables
        self.pid = fork_server().fork(args[2], args[3:], variables, folder, files, own_session=given[20])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class ForkServer:
    """The client of the fork server process, which ends with this process."""

    def __init__(self) -> None:
        self._start()
        self._request_lock = threading.Lock()

    def _start(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        self,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: object,
        files: Mapping[int, int],
        *,
        own_session: bool,
    ) -> int:
        """Fork a new child of this process; return its process id. `files` are its file descriptors by number."""
        job = {"module": module, "arguments": list(arguments), "variables": dict(variables), "session": own_session}
        job |= {"folder": str(folder), "numbers": list(files)}
        request = json.dumps(job).encode()
        assert len(request) <= REQUEST_MAX_BYTES, "the request is larger than the fork server reads"
        with self._request_lock:
            socket.send_fds(self._socket, [request], list(files.values()))
            answer = self._socket.recv(64)
        assert answer, "the fork server has exited; see stderr"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(END_DEADLINE_S)


class ForkedForkServer(ForkServer):
    """A fork server that is itself a fork of this process, which has imported the slow modules and has no threads yet.

    It gives a process that was forked by the fork server children that start as quickly.
    """

    def _start(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            self._socket.close()
            job = next_job(theirs)
            if job is None:
                os._exit(0)
            theirs.close()
            become(job)
            ForkedExit().run(str(job["module"]))
            os._exit(0)
        theirs.close()

    def close(self) -> None:
        self._socket.close()


_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """The fork server of this process, which is started when it is first needed."""
    if not _servers:
        use_fork_server(ForkServer())
    return _servers[0]


def use_fork_server(server: ForkServer) -> None:
    _servers.append(server)
    atexit.register(server.close)
