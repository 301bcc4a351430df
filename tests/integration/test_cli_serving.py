"""`serve`, `gateway`, `worker` and `demo` from start to exit, and the errors of commands."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from magent2.bus.sqlite import SqliteBus
from magent2.client import Client, ConversationEvent
from magent2.errors import GatewayUnreachable, Unauthorized
from tests.support.command_line import CommandLine, Done, RunningServer, ended
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually
from tests.support.worker_fixture import send

DEADLINE_S = 30.0


@pytest.fixture
def magent2(tmp_path: Path) -> Iterator[CommandLine]:
    with CommandLine(tmp_path / "data") as commands:
        yield commands


def leave(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> Done:
    process.send_signal(number)
    return ended(process)


def test_serve_prints_a_first_command_answers_and_exits_on_sigterm(magent2: CommandLine) -> None:
    process = magent2.start_cold("serve", "--port", "0")
    said, url, token = magent2.greeting(process)
    with Client(url, token) as client:
        answer = client.ask("general", "hello", timeout_s=DEADLINE_S)
    sent = magent2.run("send", "general", "hello", "--wait", MAGENT2_URL=url)
    (curl,) = re.findall(r"curl .*\n.*/send", said)
    typed = re.sub(r"\$\([^)]*\)", token, curl)  # 'magent2' is not on PATH here
    posted = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=False)

    done = leave(process)

    assert answer.text == "hello"
    assert sent.out == "hello\n"
    assert '"status":"ok"' in posted.stdout
    assert "the demo model, because OPENAI_API_KEY is not set" in said
    assert (done.code, len(done.err.splitlines())) == (0, 1)


def test_a_drain_finishes_the_run_before_it_closes_the_streams(tmp_path: Path) -> None:
    with ProcessGroup() as process_group:
        server = RunningServer(process_group, tmp_path)
        with Client(server.url, server.token) as client:
            client.send("general", "slow question", conversation_id="drained")
            eventually(lambda: client.conversation("drained").run_status == "running")
            with _stream(server, "drained") as events:
                assert next(events) == "user_message"
                os.kill(server.child.pid, signal.SIGTERM)
                eventually(lambda: "press Ctrl-C again" in server.child.errors())
                client.stop("drained")  # the gateway serves as long as runs do
                seen = list(events)

        assert seen[-2:] == ["run", "end"]
        assert server.child.finish() == 0


@contextmanager
def _stream(server: RunningServer, conversation: str) -> Iterator[Iterator[str]]:
    """The names of the events of one connection."""
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx2.stream("GET", f"{server.url}/stream/{conversation}", headers=headers, timeout=DEADLINE_S) as response:
        yield (frame.event for frame in httpx2.EventSource(response) if frame.data)


def test_the_second_signal_exits_immediately(tmp_path: Path) -> None:
    with ProcessGroup() as process_group:
        server = RunningServer(process_group, tmp_path)
        with Client(server.url, server.token) as client:
            client.send("general", "slow question", conversation_id="stuck")
            eventually(lambda: client.conversation("stuck").run_status == "running")
        os.kill(server.child.pid, signal.SIGTERM)
        eventually(lambda: "press Ctrl-C again" in server.child.errors())
        os.kill(server.child.pid, signal.SIGTERM)

        assert server.child.finish() == 1


def test_gateway_and_worker_share_a_bus_and_a_stream_ends_with_the_gateway(
    magent2: CommandLine, tmp_path: Path
) -> None:
    bus = ("--bus", f"sqlite:///{tmp_path / 'log.db'}")
    gateway = magent2.start("gateway", "--port", "0", *bus)
    _, url, token = magent2.greeting(gateway)
    worker = magent2.start("worker", "--agent", "Bob", *bus)
    with Client(url, token, patience_s=0.0) as client:
        assert client.ask("Bob", "over two processes", conversation_id="c1", timeout_s=DEADLINE_S).text
        events: list[ConversationEvent] = []
        following = threading.Thread(target=_collect, args=(client, events))
        following.start()
        eventually(lambda: len(events) >= 6)

        done = leave(gateway, signal.SIGINT)
        following.join(DEADLINE_S)

    assert done.code == 0
    assert not following.is_alive()
    assert leave(worker).code == 0


def _collect(client: Client, events: list[ConversationEvent]) -> None:
    with suppress(GatewayUnreachable):  # the client does not retry
        events.extend(client.follow("c1"))


TEAM = """
[[scenario]]
id = "shop"
root = "clerk"

[[scenario.agent]]
name = "clerk"
"""


@pytest.mark.parametrize("by_option", [True, False], ids=["option", "variable"])
def test_the_gateway_module_knows_the_team_of_the_agents_file(
    magent2: CommandLine, tmp_path: Path, by_option: bool
) -> None:
    file = tmp_path / "team.toml"
    file.write_text(TEAM)
    options = ("--config", str(file)) if by_option else ()
    variables = {} if by_option else {"MAGENT2_CONFIG": str(file)}
    process = magent2.start_module("magent2.gateway", "--port", "0", *options, **variables)
    said, url, token = magent2.greeting(process)

    found = httpx2.get(f"{url}/api/scenarios", headers={"Authorization": f"Bearer {token}"}, timeout=DEADLINE_S).json()

    assert [(one["id"], one["root"], one["agents"]) for one in found["scenarios"]] == [("shop", "clerk", ["clerk"])]
    assert "send clerk 'hello' --wait" in said
    assert '"recipient": "agent:clerk"' in said
    assert f"worker --config {file}" in said
    assert leave(process).code == 0


def test_the_demo_shows_tokens_a_tool_call_and_a_handoff(magent2: CommandLine) -> None:
    done = magent2.run("demo", "--pause", "0")

    assert done.code == 0
    assert re.search(r"It is \d\d:\d\d UTC", done.out)
    assert "Ada here" in done.out
    assert "calls current_time" in done.err
    assert "hands over to Ada" in done.err
    assert "serve" in done.err


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_the_token_is_not_printed_where_it_would_be_kept(magent2: CommandLine, command: str) -> None:
    process = magent2.start(command, "--port", "0", MAGENT2_LOG_LEVEL="debug")
    said, _, token = magent2.greeting(process)
    done = leave(process)

    assert token not in said + done.out + done.err
    assert "token show" in said


def test_a_given_token_is_not_printed_either(magent2: CommandLine) -> None:
    given = "given-given-given-given"
    magent2.run("token", "rotate")
    process = magent2.start("gateway", "--port", "0", MAGENT2_TOKEN=given)
    said, _, _ = magent2.greeting(process)
    done = leave(process)

    assert given not in said + done.out + done.err
    assert "token    that of --token or MAGENT2_TOKEN\n" in said


def test_a_rotated_token_invalidates_the_old_one(magent2: CommandLine) -> None:
    process = magent2.start("gateway", "--port", "0")
    _, url, old = magent2.greeting(process)
    shown = magent2.run("token", "show")
    rotated = magent2.run("token", "rotate")

    with Client(url, old) as stale, Client(url, rotated.out.strip()) as fresh:
        with pytest.raises(Unauthorized):
            stale.agents()
        assert fresh.agents() == ()
    refused = magent2.run("agents", "ls", "--token", old, "--url", url)
    found = magent2.run("agents", "ls", "--url", url)

    assert shown.out.strip() == old != rotated.out.strip()
    assert (refused.code, found.code) == (1, 0)
    assert len(refused.err.splitlines()) == 1
    assert leave(process).code == 0


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["serve", "--bus", "nowhere"], "is not a bus URL", 2),
        (["serve", "--model", "gpt-x"], "needs OPENAI_API_KEY", 2),
        (["serve", "--port", "99999"], "--port", 2),
        (["serve", "--token", "short"], "a token has", 2),
        (["serve", "--workers", "2", "--bus", "memory://"], "memory:// is a log in one process", 2),
        (["serve", "--gateways", "2", "--bus", "nowhere"], "is not a bus URL", 2),
        (["serve", "--workers", "2", "--bus", "redis://127.0.0.1:1/0", "--port", "0"], "does not answer", 1),
        (["serve", "--workers", "2", "--model", "gpt-x", "--port", "0"], "needs OPENAI_API_KEY", 2),
        (["serve", "--workers", "2", "--config", "no-such.toml", "--port", "0"], "no-such.toml", 2),
        (["serve", "--workers", "0"], "--workers", 2),
        (["serve", "--gateways", "17"], "--gateways", 2),
        (["serve", "--workers", "many"], "--workers", 2),
        (["gateway", "--bus", "redis://127.0.0.1:1/0", "--port", "0"], "does not answer", 1),
        (["worker", "--bus", "nowhere"], "is not a bus URL", 2),
        (["send", "general", "hello", "--url", "ftp://x"], "is not the URL of a gateway", 2),
        (["send", "general", "hello", "--url", "http://127.0.0.1:1"], "'magent2 serve' starts one", 1),
        (["tail", "c1", "--url", "http://127.0.0.1:1"], "'magent2 serve' starts one", 1),
        (["chat", "--url", "http://127.0.0.1:1"], "'magent2 serve' starts one", 1),
        (["bench", "--url", "http://127.0.0.1:1"], "'magent2 serve' starts one", 1),
        (["send", "general"], "see 'magent2 send --help'", 2),
        (["juggle"], "juggle", 2),
        (["import", "no-such-file"], "cannot read no-such-file", 2),
        (["backup", "copy.db", "--bus", "memory://"], "memory://", 2),
        (["token", "show"], "there is no token", 1),
    ],
)
def test_an_error_is_one_clear_line(magent2: CommandLine, arguments: list[str], words: str, code: int) -> None:
    done = magent2.run(*arguments)

    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.startswith("magent2: ") or "\nmagent2: " in done.err
    assert words in done.err
    assert len([line for line in done.err.splitlines() if not line.startswith("checking")]) == 1


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "several"])
def test_a_port_in_use_is_reported_in_one_line(magent2: CommandLine, options: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        done = magent2.run("serve", "--model", "demo", "--port", str(taken.getsockname()[1]), *options)

    assert (done.code, done.out) == (2, "")
    assert "choose another port with --port" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_agent_named_like_a_conversation_is_reported_in_one_line(magent2: CommandLine, tmp_path: Path) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    send(bus, "hello", "general", recipient="agent:Bob")
    bus.close()

    bus_url = f"sqlite:///{tmp_path / 'log.db'}"
    done = magent2.run("serve", "--model", "demo", "--agent", "general", "--port", "0", "--bus", bus_url)

    assert done.code == 1
    (line,) = [line for line in done.err.splitlines() if line.startswith("magent2:")]
    assert "'general'" in line
    assert "give the agent another name" in line


def test_an_invalid_variable_is_reported_in_one_line(magent2: CommandLine) -> None:
    done = magent2.run("token", "show", MAGENT2_PORT="many")

    assert (done.code, len(done.err.splitlines())) == (2, 1)


def test_a_log_survives_backup_export_and_import(
    magent2: CommandLine, process_group: ProcessGroup, tmp_path: Path
) -> None:
    server = RunningServer(process_group, tmp_path)
    copy, file, second = tmp_path / "copy.db", tmp_path / "log.jsonl", f"sqlite:///{tmp_path / 'second.db'}"
    with Client(server.url, server.token) as client:
        client.ask("general", "remember me", conversation_id="c1", timeout_s=DEADLINE_S)
    backed_up = magent2.run("backup", str(copy), "--bus", server.bus_url, "--json")
    exported = magent2.run("export", str(file), "--bus", f"sqlite:///{copy}", "--json")
    imported = magent2.run("import", str(file), "--bus", second, "--json")
    again = magent2.run("import", str(file), "--bus", second)

    process = magent2.start("gateway", "--port", "0", "--bus", second)
    _, url, _ = magent2.greeting(process)
    shown = magent2.run("conversations", "show", "c1", "--url", url)

    assert backed_up.json["bytes"] > 0
    assert exported.json["sha256"] == imported.json["sha256"]
    assert (again.code, len(again.err.splitlines())) == (1, 3)
    assert shown.out.count("remember me") == 2
    assert leave(process).code == 0


@pytest.mark.parametrize(
    ("variables", "bus", "status", "words"),
    [
        ({"MAGENT2_WORKERS": "3"}, "sqlite:///no.db", "ok", "4 processes and a supervisor"),
        ({"MAGENT2_GATEWAYS": "17"}, "sqlite:///no.db", "fail", "MAGENT2_GATEWAYS must be a number from 1 to 16"),
        ({"MAGENT2_WORKERS": "2"}, "memory://", "fail", "unset MAGENT2_WORKERS"),
    ],
)
def test_doctor_checks_the_numbers_of_processes(
    magent2: CommandLine, variables: dict[str, str], bus: str, status: str, words: str
) -> None:
    done = magent2.run("doctor", "--bus", bus, "--url", "http://127.0.0.1:1", **variables)

    (line,) = [line for line in done.lines if line.split()[1] == "serve"]
    assert (line.split()[0], words in line) == (status, True), line


def test_doctor_reports_what_to_fix(magent2: CommandLine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "token").write_text("0123456789abcdef\n")
    (data / "token").chmod(0o644)

    done = magent2.run("doctor", "--bus", "redis://127.0.0.1:1/0", "--url", "http://127.0.0.1:1")

    lines = {line.split()[1]: line for line in done.lines}
    assert done.code == 1
    assert lines["token"].startswith("fail")
    assert "chmod 600" in lines["token"]
    assert lines["bus"].startswith("fail")
    assert lines["gateway"].startswith("warn")
