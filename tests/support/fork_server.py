"""A process that imports slow modules once and forks other processes: `python -m tests.support.fork_server FD`.

Importing the SDK takes seconds; forking a process that has imported it takes milliseconds. A forked process behaves
like a new program: it has the requested environment, working directory and files, and it handles signals and exit codes
as usual. `tests.support.forked_processes` sends requests over the socket with this file descriptor.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import socket
import sys
import threading
import time
from importlib import import_module
from typing import Any

HEAVY = (
    "magent2.bus.postgres",
    "magent2.bus.redis_adapter",
    "magent2.bus.sqlite",
    "magent2.cli.server_process",
    "magent2.client",
    "magent2.gateway.server",
    "magent2.runner.demo.model",
    "magent2.runner.team.runner",
    "magent2.connectors.relay",
    "magent2.worker.team_selection",
    "mcp.server.mcpserver",
    "platformdirs",
    "uvloop",
    "tests.support.worker_fixture",
)
REQUEST_MAX_BYTES = 200_000
FILES_MAX = 16  # of one process
FREE_NUMBERS_FROM = 200  # of files that are on their way to their own numbers
LOOK_AGAIN_S = 0.0005


def next_job(asker: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until the socket is closed; in a forked process, return its job."""
    while True:
        message, files, _, _ = socket.recv_fds(asker, REQUEST_MAX_BYTES, FILES_MAX)
        if not message:
            return None
        between = _fork_twice(asker)
        if between is not None:
            return dict(json.loads(message), files=files, between=between)
        for file in files:
            os.close(file)


def _fork_twice(asker: socket.socket) -> int | None:
    """Fork twice and send the process id of the grandchild; in the grandchild, return the id of the process in between.

    That process exits, so that the requesting process, a subreaper, becomes the parent.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        between = os.getpid()
        grandchild = os.fork()
        if grandchild:
            os.write(theirs, str(grandchild).encode())
            os._exit(0)
        os.close(ours)
        os.close(theirs)
        return between
    os.close(theirs)
    os.waitpid(child, 0)
    asker.send(os.read(ours, 64))
    os.close(ours)
    return None


def build_once() -> None:
    """Build what every process builds at its first use: types of the model client, and schemas of the gateway's routes.

    That takes a server as long as the rest of its start.
    """
    from magent2.bus.memory import MemoryBus
    from magent2.gateway.app import create_app
    from magent2.runner.model_client import import_model_client

    import_model_client()
    bus = MemoryBus()
    create_app(bus)
    bus.close()


def become(job: dict[str, Any]) -> None:
    """Set up the files, directory, environment and arguments of the job."""
    while os.getppid() == job["between"]:  # it has not exited yet
        time.sleep(LOOK_AGAIN_S)
    if job["session"]:
        os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, FREE_NUMBERS_FROM) for file in job["files"]]
    for number, file, temporary in zip(job["numbers"], job["files"], moved, strict=True):
        if file not in job["numbers"]:
            os.close(file)
        os.dup2(temporary, number)
        os.close(temporary)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["variables"])
    sys.argv[1:] = job["arguments"]


def main() -> str:
    """Serve requests; return the module to run in a forked process, or an empty string in the server."""
    with socket.socket(fileno=int(sys.argv[1])) as asker:
        for name in HEAVY:
            import_module(name)
        import_module("magent2.runner.providers.model_info").load()  # prices, which take 0.4 s
        build_once()
        assert threading.active_count() == 1, threading.enumerate()  # a fork with other threads is unsafe
        gc.freeze()
        job = next_job(asker)
    if job is None:
        return ""
    become(job)
    return str(job["module"])


class ForkedExit:
    """Exits a forked process without the teardown of preloaded modules, which would take 0.1 s."""

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._leave)  # registered first, so called last

    def run(self, module: str) -> None:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            self._code = 0
        except SystemExit as leaving:
            self._code = leaving.code if isinstance(leaving.code, int) else None
            raise

    def _leave(self) -> None:
        if self._code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)


if __name__ == "__main__":
    ending = ForkedExit()
    module = main()
    if module:
        ending.run(module)
