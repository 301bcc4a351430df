"""A process that has imported all that is slow to import, and forks others: `python -m tests.support.fork_server FD`.

To import the SDK takes seconds, to fork a process that has it takes milliseconds. What is forked is a process as any
other: it has the environment, the folder and the files that it was asked for with, signals end it, and it ends as a
program ends. `tests.support.forked_processes` asks for them over the socket of this number.
"""

from __future__ import annotations

import atexit
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
    "magent2.bus.redis_adapter",
    "magent2.bus.sqlite",
    "magent2.cli.server_process",
    "magent2.client",
    "magent2.gateway.server",
    "magent2.runner.demo.model",
    "magent2.runner.team.runner",
    "magent2.connectors.relay",
    "magent2.worker.team_selection",
    "tests.support.worker_fixture",
)
REQUEST_MAX_BYTES = 200_000
STANDARD_FILES = 3  # input, output, errors
LOOK_AGAIN_S = 0.0005


def next_job(asker: socket.socket) -> dict[str, Any] | None:
    """Fork for whoever asks, until nobody can; in a process that was forked, what it has to do."""
    while True:
        message, files, _, _ = socket.recv_fds(asker, REQUEST_MAX_BYTES, STANDARD_FILES)
        if not message:
            return None
        if _is_new(asker):
            return dict(json.loads(message), files=files)
        for file in files:
            os.close(file)


def _is_new(asker: socket.socket) -> bool:
    """Fork; whether this is the new process. It is told to the asker by its number, and left to it as its child."""
    ours, theirs = os.pipe()
    between = os.fork()
    if not between:
        child = os.fork()
        if child:
            os.write(theirs, str(child).encode())
            os._exit(0)
    os.close(theirs)
    if between:
        os.waitpid(between, 0)
        asker.send(os.read(ours, 64))
    os.close(ours)
    return not between


def become(job: dict[str, Any]) -> None:
    """What a program finds when it starts."""
    while os.getppid() != job["parent"]:  # whoever was between has yet to end
        time.sleep(LOOK_AGAIN_S)
    for number, file in enumerate(job["files"]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["variables"])
    sys.argv[1:] = job["arguments"]


def main() -> str:
    """The module that this process is to run; nothing in the one that forked it, at its end."""
    with socket.socket(fileno=int(sys.argv[1])) as asker:
        for name in HEAVY:
            import_module(name)
        assert threading.active_count() == 1, threading.enumerate()  # or no fork would be a sound process
        gc.freeze()
        job = next_job(asker)
    if job is None:
        return ""
    become(job)
    return str(job["module"])


class ForkedExit:
    """The end of a process that was forked, without taking apart all that it was born with: a tenth of a second."""

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._leave)  # the first that is registered is the last that is called

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
