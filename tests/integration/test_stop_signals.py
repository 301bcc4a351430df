"""Signals to the whole process group, as Ctrl-C in a terminal sends them, while a Python block runs.

The block is in a call of a real MCP server, so both kinds of child processes exist when the signal arrives.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.sqlite import SqliteBus
from tests.support import mcp_server
from tests.support.command_line import CommandLine, ended
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.waiting import eventually
from tests.support.worker_fixture import outputs, send

START_DEADLINE_S = 60.0  # the MCP server imports a good deal first
EXIT_IMMEDIATELY = 1
CODE = "print(shelf__fetch('Emma'))"
FILE = """
[[scenario]]
id = "library"

[[scenario.agent]]
name = "librarian"
tools = ["run_python"]
mcp = ["shelf"]

[mcp.shelf]
command = {command}
env = {{ MCP_MARKS = {marks}, MCP_GATES = {gates} }}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Library:
    """A process that serves one agent, whose block waits for a file of the test."""

    def __init__(self, folder: Path, model: ModelServer, commands: CommandLine) -> None:
        self.bus = SqliteBus(folder / "log.db")
        self.model = model
        self._commands = commands
        self._place = ("--bus", f"sqlite:///{folder / 'log.db'}", "--config", str(folder / "library.toml"))
        self._marks, self._gates = folder / "marks", folder / "gates"
        self._gates.mkdir()
        command = json.dumps([sys.executable, mcp_server.__file__])
        text = FILE.format(command=command, marks=json.dumps(str(self._marks)), gates=json.dumps(str(self._gates)))
        (folder / "library.toml").write_text(text)

    def start_block(self, *command: str) -> subprocess.Popen[str]:
        """Start the process in its own process group; return when the block is in its call."""
        send(self.bus, "get me Emma", recipient="agent:librarian")
        key = {"OPENAI_API_KEY": "any"}  # pragma: allowlist secret
        process = self._commands.start_in_session(*command, *self._place, OPENAI_BASE_URL=self.model.url, **key)
        eventually(lambda: self._marks.exists() and "fetch Emma" in self._marks.read_text(), START_DEADLINE_S)
        return process

    def let_the_block_end(self) -> None:
        (self._gates / "Emma").touch()


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    replies = [Reply(calls=[Call("run_python", {"code": CODE}, "c1")]), Reply("Here.")]
    with ModelServer(replies) as model, CommandLine(tmp_path) as commands:
        library = Library(tmp_path, model, commands)
        yield library
        library.bus.close()


@pytest.mark.parametrize("command", [("worker",), ("serve", "--port", "0")], ids=["worker", "serve"])
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_to_the_process_group_lets_a_running_block_end(
    library: Library, command: tuple[str, ...], stop: signal.Signals
) -> None:
    process = library.start_block(*command)
    assert len(running_in_group(process.pid)) > 1, "the block has no process that could get the signal"

    os.killpg(process.pid, stop)
    library.let_the_block_end()
    done = ended(process)

    assert (done.code, "draining" in done.err) == (0, True), done.err
    assert outputs(library.bus) == ["Here."]
    assert library.model.requests[1]["input"][-1]["output"] == "here is Emma"
    eventually(lambda: not running_in_group(process.pid))  # a process closes its files some time before it is gone


def test_the_second_ctrl_c_leaves_no_process_of_a_block_behind(library: Library) -> None:
    process = library.start_block("worker")

    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert "draining" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)

    assert ended(process).code == EXIT_IMMEDIATELY
    eventually(lambda: not running_in_group(process.pid))


def running_in_group(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if int(its_group) == group and state != "Z":
            found.append(int(folder.name))
    return found
