"""A supervisor with gateways and workers in processes of their own, and the processes behind its connections."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from magent2.client import Client
from tests.support.command_line import CommandLine
from tests.support.gateway_process import Answer, RawClient, open_connection
from tests.support.waiting import eventually

SUPERVISOR = "tests.integration.children.supervisor"
DEADLINE_S = 60.0
AGENTS_FILE = """
[[scenario]]
id = "default"
root = "general"

[[scenario.agent]]
name = "general"
tools = ["hold"]

[tools]
hold = "own_tools:hold"
"""
OWN_TOOLS = """
import os
import time
from pathlib import Path
from typing import Any

from magent2.tools.registry import tool

FOLDER = Path(__file__).parent
if (FOLDER / "crash").exists():
    os._exit(3)


@tool(description="Wait until the test lets it go on.")
def hold() -> str:
    with (FOLDER / "held").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return "held"
"""


class SupervisedService:
    """The supervisor, a client of its address, and its processes by name."""

    def __init__(self, commands: CommandLine, folder: Path, bus: str, workers: int, gateways: int) -> None:
        self.folder = folder
        self.process = start_supervisor(commands, folder, bus, workers, gateways)
        self.names = {
            f"{kind}-{n + 1}" for kind, count in (("gateway", gateways), ("worker", workers)) for n in range(count)
        }
        self._lines: list[str] = []
        self._seen: set[int] = set()  # processes, which the test must not leave behind
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        said, self.url, self.token = commands.greeting(self.process)
        self.greeting = said
        self.port = int(self.url.rpartition(":")[2])
        self.client = Client(self.url, self.token)
        self._connections: list[RawClient] = []
        self.pids()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._lines.extend(self.process.stderr)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    # --- processes

    def pids(self) -> dict[str, int]:
        """The processes that run, by name, without the supervisor."""
        (file,) = (self.folder / "data").glob("supervisor-*/processes.json")
        found: dict[str, int] = json.loads(file.read_text())["pids"]
        del found["supervisor"]
        self._seen.update(found.values())
        return found

    def await_all(self) -> dict[str, int]:
        """Wait until every process runs and has answered; return their ids."""
        eventually(lambda: set(self.pids()) == self.names, DEADLINE_S)
        workers = sum(name.startswith("worker") for name in self.names)
        eventually(lambda: self.metric("magent2_workers") >= workers, DEADLINE_S)
        return self.pids()

    def kill(self, name: str) -> int:
        """SIGKILL a process, and wait until the supervisor has noticed; return its id."""
        pid = self.pids()[name]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.pids().get(name) != pid, DEADLINE_S)
        return pid

    def await_return(self, name: str, old: int) -> None:
        eventually(lambda: self.pids().get(name, old) != old, DEADLINE_S)

    # --- requests

    def connect(self, to: str | None = None, source: str = "127.0.0.1") -> RawClient:
        """Open a connection, which the gateway of this name accepts if one is given."""
        if to is None:
            client = open_connection(self.port, source)
        else:
            # The others are frozen only until it is accepted: one of them may hold the lock of the log.
            pids = self.pids()
            others = [pid for name, pid in pids.items() if name.startswith("gateway") and name != to]
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            try:
                client = open_connection(self.port, source)
                eventually(lambda: self._holds(pids[to], client), DEADLINE_S)
            finally:
                for pid in others:
                    os.kill(pid, signal.SIGCONT)
        self._connections.append(client)
        return client

    def _holds(self, pid: int, client: RawClient) -> bool:
        """Whether a process has accepted this connection. One that nobody has accepted has no inode."""
        ends = f":{self.port:04X}", f":{client.plain.getsockname()[1]:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {f"socket:[{line[9]}]" for line in lines if (line[1][-5:], line[2][-5:]) == ends}
        files = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
        return not inodes.isdisjoint(files)

    def ask(self, client: RawClient, path: str = "/api/me", token: str | None = None) -> Answer:
        """Send a request on an open connection. The status is 0 if the connection is closed."""
        credential = f"authorization: Bearer {token or self.token}"
        client.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{credential}\r\n\r\n".encode())
        return client.answer()

    def say(self, client: RawClient, text: str) -> str:
        """Send a message in a new session on an open connection and return the answer of the agent."""
        session = {"session_id": uuid.uuid4().hex, "agent_name": "general"}
        self._post(client, "/api/sdk/session/create", session)
        return str(self._post(client, "/api/sdk/session/message", {**session, "user_input": text})["final_output"])

    def _post(self, client: RawClient, path: str, fields: dict[str, str]) -> dict[str, Any]:
        body = json.dumps(fields)
        client.send(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = client.answer()
        assert answer.status in (200, 201), answer
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", self._metrics(), re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(float(value) for given, value in lines if wanted <= set(given.split(",")))

    def _metrics(self) -> str:
        headers = {"authorization": f"Bearer {self.token}", "connection": "close"}
        return httpx2.get(f"{self.url}/metrics", headers=headers, timeout=DEADLINE_S).raise_for_status().text

    def close(self) -> None:
        self.client.close()
        for connection in self._connections:
            connection.close()
        if self.process.poll() is None:
            self.pids()
            self.process.kill()
            self.process.wait(DEADLINE_S)
        for pid in filter(is_running, self._seen):
            end(pid)
        self._reader.join(DEADLINE_S)


def start_supervisor(
    commands: CommandLine, folder: Path, bus: str, workers: int, gateways: int
) -> subprocess.Popen[str]:
    """Start a supervisor that serves the agents file in the folder, by default one with the tool `hold`."""
    file = folder / "magent2.toml"
    if not file.exists():
        file.write_text(AGENTS_FILE)
        (folder / "own_tools.py").write_text(OWN_TOOLS)
    given = {"workers": workers, "gateways": gateways, "bus": bus, "config": str(file)}
    return commands.start_module_in_session(SUPERVISOR, json.dumps(given))


def end(pid: int) -> None:
    """SIGKILL a process that this test started, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_running(pid: int) -> bool:
    """Whether a process has not ended. One that nobody has reaped yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def supervised_service(
    folder: Path,
    bus: str | None = None,
    *,
    workers: int = 2,
    gateways: int = 2,
    variables: Mapping[str, str] | None = None,
) -> Iterator[SupervisedService]:
    """Start a supervisor and its processes, and end all of them afterwards."""
    with CommandLine(folder / "data", **(variables or {})) as commands:
        bus = bus or f"sqlite:///{folder / 'log.db'}"
        service = SupervisedService(commands, folder, bus, workers, gateways)
        try:
            yield service
        finally:
            service.close()


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a supervisor that ends by itself."""
    return process.wait(DEADLINE_S)
