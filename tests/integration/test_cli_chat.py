"""`magent2 chat` through a pipe and at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from magent2.client import Client
from tests.support.command_line import CommandLine, RunningServer
from tests.support.forked_processes import ROOT
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually

DEADLINE_S = 20.0
CTRL_C, CTRL_D = "\x03", "\x04"
PRESSES_MAX, PRESS_AGAIN_S = 5, 2.0
STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

# The terminal becomes the program's own, so that Ctrl-C is a signal.
AT_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from magent2.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with ProcessGroup() as process_group:
        yield RunningServer(process_group, tmp_path_factory.mktemp("server"))


@pytest.fixture
def magent2(server: RunningServer) -> Iterator[CommandLine]:
    with CommandLine(server.data_dir, MAGENT2_URL=server.url) as commands:
        yield commands


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url, server.token) as client:
        yield client


class Terminal:
    """A program at a real terminal."""

    def __init__(self, magent2: CommandLine, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", AT_TERMINAL, *arguments],
            cwd=ROOT,
            env={**magent2.variables, "TERM": "xterm", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, words: str) -> str:
        """Read the screen up to these words and return what came before them."""
        end = time.monotonic() + DEADLINE_S
        while words not in self._seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {words!r} in {self._seen!r}"
            self._seen = STEERING.sub("", self._seen + os.read(self._ours, 65_536).decode(errors="replace"))
        before, _, self._seen = self._seen.partition(words)
        return before

    def leave(self, words: str) -> None:
        """Press Ctrl-C at the prompt, and again if it came just as `input` began, which then waits for another key."""
        for _ in range(PRESSES_MAX):
            self.type(CTRL_C)
            if select.select([self._ours], [], [], PRESS_AGAIN_S)[0]:
                break
        self.read_until(words)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._ours)


@pytest.fixture
def terminal(magent2: CommandLine) -> Iterator[Terminal]:
    terminal = Terminal(magent2, "chat")
    yield terminal
    terminal.close()


def test_through_a_pipe_every_line_is_answered(magent2: CommandLine) -> None:
    done = magent2.run("chat", stdin="hello there\n\n/help\n/juggle\nand again\n")

    assert (done.code, done.out) == (0, "hello there\nand again\n")
    assert "/stop stops the run" in done.err
    assert "unknown command /juggle" in done.err


def test_a_conversation_can_be_resumed_by_its_id_or_as_the_latest(magent2: CommandLine, client: Client) -> None:
    client.ask("general", "before", conversation_id="resumed")
    magent2.run("chat", "-r", "resumed", stdin="by id\n/quit\n")
    magent2.run("chat", "-c", stdin="as the latest\n/new\nelsewhere\n")

    said = [event.text for event in client.events("resumed").events if event.kind == "user_message"]
    assert said == ["before", "by id", "as the latest"]


def test_a_run_that_fails_does_not_end_the_chat(magent2: CommandLine) -> None:
    done = magent2.run("chat", stdin="fail now\nstill here\n")

    assert (done.code, done.out) == (0, "still here\n")
    assert "told to fail" in done.err


def test_at_a_terminal_answers_are_rendered(terminal: Terminal) -> None:
    terminal.read_until("> ")
    terminal.type("some **bold** words\n")
    terminal.read_until("some bold words")
    terminal.read_until("> ")
    terminal.type(CTRL_D)
    terminal.read_until("to continue, run")

    assert terminal.process.wait(DEADLINE_S) == 0


def test_ctrl_c_stops_the_run_and_at_the_prompt_exits(terminal: Terminal, client: Client) -> None:
    terminal.read_until("> ")
    terminal.type("slow question\n")
    terminal.read_until("thinking")
    terminal.type(CTRL_C)
    terminal.read_until("asked general to stop")
    terminal.read_until("the run was stopped")
    terminal.read_until("> ")
    status = client.conversations(limit=1).conversations[0].run_status
    terminal.leave("to continue, run")

    assert status == "stopped"
    assert terminal.process.wait(DEADLINE_S) == 0


def test_chat_survives_a_gateway_that_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ProcessGroup() as process_group:
        server = RunningServer(process_group, tmp_path_factory.mktemp("mortal"))
        with CommandLine(server.data_dir, MAGENT2_URL=server.url) as magent2:
            process = magent2.start("chat")
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("before\n")
            process.stdin.flush()
            assert process.stdout.readline() == "before\n"
            server.kill()
            process.stdin.write("after\n")
            process.stdin.flush()
            server.restart()
            assert process.stdout.readline() == "after\n"
            process.stdin.close()
            assert eventually(lambda: process.poll() is not None)
