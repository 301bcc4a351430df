"""Runs the `magent2` command in separate processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from magent2.client import Client
from magent2.token import TokenFile
from tests.support.forked_processes import PYCACHE, ROOT, start_module
from tests.support.http_client.service import answers_at
from tests.support.ports import quiet_port
from tests.support.processes import Child, ProcessGroup
from tests.support.waiting import eventually

ADDRESS = re.compile(r"^gateway  (http://\S+)/$", re.MULTILINE)
END_DEADLINE_S = 60.0  # a cold start imports the SDK, which takes long on a busy machine
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
    """Runs commands with the settings of the test and no others, in the folder of the project or in `folder`."""

    def __init__(self, data_dir: Path, *, folder: Path | str = ROOT, **variables: str) -> None:
        self._folder = Path(folder)
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

    def start_module(self, module: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `python -m MODULE`."""
        return self._start(arguments, variables, module=module)

    def start_module_in_session(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m MODULE` in a session and a process group of its own."""
        return self._start(arguments, {}, own_session=True, module=module)

    def start_cold(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the program without the preloaded imports of the fork server."""
        return self._start(arguments, variables, cold=True)

    def start_in_session(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the program in a session and a process group of its own, as a terminal or an init system does."""
        return self._start(arguments, variables, own_session=True)

    def greeting(self, process: subprocess.Popen[str]) -> tuple[str, str, str]:
        """What a gateway prints at its start, its URL, and its token, which is not printed."""
        assert process.stdout is not None
        said = ""
        while "/send" not in said:
            line = process.stdout.readline()
            assert line, f"it ended: {said} {process.communicate()[1]}"
            said += line
        found = ADDRESS.search(said)
        assert found is not None, said
        return said, found[1], self.token

    @property
    def token(self) -> str:
        """The token in the data folder."""
        token = TokenFile.within(Path(self.variables["MAGENT2_DATA_DIR"])).read()
        assert token is not None
        return token

    def run(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        return ended(self._start(arguments, variables), stdin)

    def _start(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        cold: bool = False,
        own_session: bool = False,
        module: str = "magent2.cli",
    ) -> subprocess.Popen[str]:
        given = {**self.variables, **variables}
        process = start_module(
            module, arguments, given, folder=self._folder, text=True, cold=cold, own_session=own_session
        )
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


@contextmanager
def served_team(folder: Path, **variables: str) -> Iterator[CommandLine]:
    """Run `magent2 serve` with the default team and the demo model; yield a command line that talks to it."""
    port = str(quiet_port())
    with CommandLine(folder, MAGENT2_URL=f"http://127.0.0.1:{port}", **variables) as commands:
        process = commands.start("serve", "--port", port, "--model", "demo")

        def answers() -> bool:
            assert process.poll() is None, f"it ended: {process.communicate()}"
            return answers_at(int(port))

        eventually(answers, END_DEADLINE_S)
        _await_worker(f"http://127.0.0.1:{port}", commands.token)
        yield commands


def _await_worker(url: str, token: str) -> None:
    """Wait until the gateway knows that its agents have a worker. Until then it adds a notice to each message."""
    with Client(url, token) as client:

        def served() -> bool:
            agents = client.agents()
            return bool(agents) and all(agent.alive for agent in agents)

        eventually(served, END_DEADLINE_S)


class RunningServer:
    """A gateway, by default with a worker, in a process that a test can kill and start again on the same port."""

    def __init__(
        self, process_group: ProcessGroup, folder: Path, *, worker: bool = True, bus_url: str | None = None
    ) -> None:
        self.bus_url = bus_url or f"sqlite:///{folder / 'log.db'}"
        self.data_dir = folder
        self._process_group = process_group
        self._worker = worker
        self.child, said = self._start(quiet_port())  # stays free while the server is down
        self.url, self.port, self.token = str(said["url"]), int(said["port"]), str(said["token"])

    def _start(self, port: int) -> tuple[Child, dict[str, Any]]:
        child = self._process_group.spawn(
            SERVER, url=self.bus_url, data_dir=str(self.data_dir), port=port, worker=self._worker
        )
        said = child.next_report()
        if self._worker:
            _await_worker(str(said["url"]), str(said["token"]))
        return child, said

    def kill(self) -> None:
        self.child.kill()

    def restart(self) -> None:
        self.child, _ = self._start(self.port)
