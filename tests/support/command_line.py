"""Runs the `magent2` command in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.forked_processes import PYCACHE, start_module
from tests.support.processes import Child, ProcessGroup

END_DEADLINE_S = 30.0
SERVER = "tests.integration.children.server"
OURS = ("MAGENT2_", "AGENT_", "OTEL_", "OPENAI_", "REDIS_URL", "COVERAGE_", "NO_COLOR", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class CommandLine:
    """Runs commands with the settings of the test and no others."""

    def __init__(self, data_dir: Path, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.variables = {
            **kept,
            "PYTHONPYCACHEPREFIX": PYCACHE,
            "MAGENT2_DATA_DIR": str(data_dir),
            **variables,
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return self._start(arguments, variables)

    def start_cold(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the program without the preloaded imports of the fork server."""
        return self._start(arguments, variables, cold=True)

    def run(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        return ended(self._start(arguments, variables), stdin)

    def _start(
        self, arguments: Sequence[str], variables: Mapping[str, str], cold: bool = False
    ) -> subprocess.Popen[str]:
        process = start_module("magent2.cli", arguments, {**self.variables, **variables}, text=True, cold=cold)
        self._started.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            _reap(process)


def _reap(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(END_DEADLINE_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def ended(process: subprocess.Popen[str], stdin: str | None = None) -> Done:
    out, err = process.communicate(stdin, timeout=END_DEADLINE_S)
    return Done(process.returncode, out, err)


class RunningServer:
    """A gateway, by default with a worker, in a process that a test can kill and start again on the same port."""

    def __init__(
        self, process_group: ProcessGroup, folder: Path, *, worker: bool = True, bus_url: str | None = None
    ) -> None:
        self.bus_url = bus_url or f"sqlite:///{folder / 'log.db'}"
        self.data_dir = folder
        self._process_group = process_group
        self._worker = worker
        self.child, said = self._start(0)
        self.url, self.port, self.token = str(said["url"]), int(said["port"]), str(said["token"])

    def _start(self, port: int) -> tuple[Child, dict[str, Any]]:
        child = self._process_group.spawn(
            SERVER, url=self.bus_url, data_dir=str(self.data_dir), port=port, worker=self._worker
        )
        return child, child.next_report()

    def kill(self) -> None:
        self.child.kill()

    def restart(self) -> None:
        self.child, _ = self._start(self.port)
