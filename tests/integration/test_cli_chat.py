"""`magent2 chat` through a pipe and at a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.client import Client
from tests.support.command_line import END_DEADLINE_S, CommandLine, RunningServer
from tests.support.processes import ProcessGroup
from tests.support.terminal import CTRL_D, DEADLINE_S, Terminal


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


@pytest.fixture
def terminal(magent2: CommandLine) -> Iterator[Terminal]:
    terminal = Terminal(magent2, "chat")
    yield terminal
    terminal.close()


def test_a_gateway_prints_its_token_at_a_terminal(magent2: CommandLine, server: RunningServer) -> None:
    terminal = Terminal(magent2, "gateway", "--port", "0", "--bus", "memory://")
    try:
        said = terminal.read_until("/send")
    finally:
        terminal.close()

    assert f"/#token={server.token}" in said


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
    terminal.interrupt("asked general to stop")
    terminal.read_until("the run was stopped")
    terminal.read_until("> ")
    status = client.conversations(limit=1).conversations[0].run_status
    terminal.interrupt("to continue, run")

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
            assert process.wait(END_DEADLINE_S) == 0
