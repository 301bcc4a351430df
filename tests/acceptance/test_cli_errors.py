"""Every command, with everything that can be wrong: it fails with one line that names the cause and the next step."""

from __future__ import annotations

import io
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from magent2.bus.servers import FIRST_CONTACT_S
from magent2.cli.main import cli, run
from magent2.client.transport import Backoff
from tests.support.command_line import CommandLine, Done, served_team

SERVERS = ("serve", "gateway", "worker")  # they change the logging of a process, so each runs in one of its own
WAITS_SHORTENED = 20  # how many times shorter a command waits for a server that is not there
WRONG_TOKEN = "w" * 32
NO_REDIS = "redis://127.0.0.1:1/0"
# A next step: a command, an option, a variable, or what follows the semicolon after the cause.
NEXT_STEP = re.compile(r"; ['\w]|'magent2 |--\w|MAGENT2_\w|\(see |must be|such as")

# Arguments with which a command reaches its server or its bus. `{file}` is a file that exists.
ARGUMENTS: dict[str, str] = {
    "init": "{folder}",
    "serve": "",
    "gateway": "",
    "worker": "",
    "demo": "--pause 0",
    "doctor": "",
    "chat": "",
    "send": "general hello",
    "python": "{file} --agent general",
    "steer": "unknown text",
    "regenerate": "unknown",
    "edit": "unknown text",
    "stop": "unknown",
    "usage": "",
    "budgets ls": "",
    "budgets set": "user_day ann --calls 1",
    "budgets reset": "user_day ann",
    "approvals": "unknown",
    "approve": "unknown call",
    "reject": "unknown call",
    "conversations export": "unknown",
    "conversations ls": "",
    "conversations rm": "unknown --yes",
    "conversations show": "unknown",
    "tail": "unknown --no-follow",
    "replay": "unknown",
    "schedules add": "hello --agent general --in 15m",
    "schedules ls": "",
    "schedules pause": "unknown",
    "schedules resume": "unknown",
    "schedules rm": "unknown --yes",
    "schedules run": "unknown",
    "schedules show": "unknown",
    "agents check": "{file}",
    "agents ls": "",
    "agents place": "unknown --role foreground",
    "agents retire": "unknown",
    "users add": "ann --nametag ann",
    "users ls": "",
    "users rm": "unknown",
    "users set": "unknown --agent general",
    "friends accept": "unknown other",
    "friends ls": "",
    "friends refuse": "unknown other",
    "friends request": "unknown other",
    "friends rm": "unknown other",
    "swarms add": "tag --owner unknown --agent general",
    "swarms contacts": "unknown",
    "swarms ls": "",
    "swarms rm": "unknown",
    "swarms set": "unknown --open",
    "channels add": "room leader --user unknown --agent general",
    "channels join": "unknown ann --user unknown --agent general",
    "channels lead": "unknown ann",
    "channels leave": "unknown ann",
    "channels ls": "",
    "channels messages": "unknown",
    "channels rm": "unknown",
    "connectors add": "hook --kind webhook --url https://example.com/in --secret-file {secret}",
    "connectors ls": "",
    "connectors rm": "unknown",
    "webhooks add": "https://example.com/in",
    "webhooks deliveries": "unknown",
    "webhooks ls": "",
    "webhooks retry": "unknown item",
    "webhooks rm": "unknown",
    "webhooks test": "unknown",
    "webhooks update": "unknown --event run.failed",
    "outbox drop": "unknown item",
    "outbox ls": "",
    "outbox retry": "unknown item",
    "dead drop": "unknown 1",
    "dead ls": "",
    "dead retry": "unknown 1",
    "token rotate": "",
    "token show": "",
    "keys create": "--scope user:ann",
    "keys ls": "",
    "keys revoke": "unknown",
    "erase": "ann --yes",
    "backup": "{new_file}",
    "export": "{new_file}",
    "import": "{file}",
    "sweep": "",
    "bench": "-n 1",
    "completion": "bash",
}

# What a command cannot find on a server or bus that works, besides the conversation, user, … `unknown` above. No worker
# serves the agent `absent`: an agent that answers could be faster than a timeout of 0 on a slow client.
NOT_FOUND = {
    "send": ("chat:nowhere hello --wait --timeout 0.2", "absent hello --wait --timeout 0 -c late"),
    "python": ("{file} --agent unknown", "{nowhere} --agent general", "{folder} --agent general"),
    "chat": ("--resume unknown",),
    "budgets set": (
        "day", "day --cost nan", "day --cost inf", "day --cost -1", "day --calls 1.5", "day --tokens 1000000000000001",
        "day monday --calls 1", "user --calls 1", "week --calls 1", "conversation unknown --calls 1",
    ),
    "bench": ("--agent unknown -n 1 --timeout 0.1",),
    "conversations export": ("unknown", "known -o {nowhere}/x", "known -o {file}"),
    "connectors add": (
        "hook --kind unknown",
        "hook --kind webhook --url https://example.com/in --secret-file {nowhere}",
        "hook --kind webhook --url https://example.com/in --secret-file {file}",
        "hook --kind webhook --url ftp://example.com --secret-file {secret}",
    ),
    "backup": ("{nowhere_file}", "{file}"),
    "export": ("{nowhere}/x", "{file}"),
    "import": ("{nowhere}", "{file}", "{folder}"),
    "sweep": ("--config {nowhere}.toml", "--config {bad_toml}"),
    "init": ("{nowhere_file}",),
    "keys create": ("--scope nonsense",),
    "erase": ("ann",),  # without a terminal to ask on
    "conversations rm": ("unknown --yes", "unknown"),
    "dead retry": ("unknown 1", "--all --since yesterday", ""),
    "completion": ("tcsh",),
    "tail": ("known --since nonsense",),
    "serve": ("--config {nowhere}.toml", "--config {bad_toml}", "--agent unknown --config {team}", "--host 192.0.2.1"),
    "gateway": ("--config {nowhere}.toml", "--config {bad_toml}", "--allowed-host a/b", "--root-path a?b"),
    "worker": ("--config {nowhere}.toml", "--agent unknown --config {team}", "--metrics nonsense", "--concurrency 0"),
}  # fmt: skip
# With `unknown`, these succeed on purpose: an entry that does not exist is gone, or is made.
MAY_SUCCEED = ("agents place", "agents retire")
# These do not fail because of the bus alone: the first replaces the token file and prints a note, the other reads its
# file first.
NOT_BY_BUS = ("token rotate", "import")

# Invalid variables, with a command that reads them.
VARIABLES = (
    ("MAGENT2_URL", "nonsense", "conversations ls"),
    ("MAGENT2_PORT", "nonsense", "conversations ls"),
    ("MAGENT2_BUS_URL", "nonsense", "users ls"),
    ("MAGENT2_DATA_DIR", "/proc/self/nowhere", "token rotate"),
    ("MAGENT2_LOG_LEVEL", "nonsense", "users ls"),
    ("MAGENT2_PAYLOAD_MAX_BYTES", "nonsense", "users ls"),
    ("SSL_CERT_FILE", "/proc/self/nowhere", "conversations ls --url https://127.0.0.1:1"),
)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """The commands of the program without their groups, by their names."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(cli))
REMOTE = [name for name, command in COMMANDS.items() if {"url", "token"} <= {one.name for one in command.params}]
LOCAL = [name for name, command in COMMANDS.items() if "bus" in {one.name for one in command.params}]
BUSES = [name for name in LOCAL if name not in (*SERVERS, "doctor")]


class CommandRunner:
    """Runs commands in this process, and servers in processes of their own."""

    def __init__(self, magent2: CommandLine, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._magent2, self._capsys = magent2, capsys
        self._places = {
            "file": folder / "file.txt",
            "secret": folder / "secret.txt",
            "new_file": folder / "new",
            "folder": folder / "folder",
            "nowhere": folder / "nowhere",
            "nowhere_file": folder / "file.txt" / "nowhere",
            "bad_toml": folder / "bad.toml",
            "team": folder / "team.toml",
        }
        self._places["folder"].mkdir()
        self._places["file"].write_text("print(1)\n")
        self._places["secret"].write_text("s" * 32)
        self._places["bad_toml"].write_text("[[scenario]\n")
        self._places["team"].write_text('[[scenario]]\nid = "s"\nroot = "a"\n[[scenario.agent]]\nname = "a"\n')

    def enter(self, name: str, arguments: str, *more: str) -> Done:
        words = [word.format(**self._places) for word in arguments.split()]
        typed = [*name.split(), *words, *more]
        if name in SERVERS:
            return self._magent2.run(*typed)
        self._capsys.readouterr()
        code = run(typed)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with served_team(tmp_path_factory.mktemp("served")) as served:
        assert served.run("send", "general", "hello", "-c", "known", "--wait").code == 0
        yield served


@pytest.fixture
def commands(
    server: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandRunner:
    for name in ("MAGENT2_URL", "MAGENT2_DATA_DIR"):
        monkeypatch.setenv(name, server.variables[name])
    for name in ("REDIS_URL", "MAGENT2_BUS_URL", "MAGENT2_TOKEN", "MAGENT2_CONFIG", "AGENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return CommandRunner(server, tmp_path, capsys)


class ShortBackoff(Backoff):
    """Retries as usual, but for a shorter time."""

    def __init__(self, max_elapsed_s: float) -> None:
        super().__init__(max_elapsed_s / WAITS_SHORTENED)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retries while a gateway or Redis refuses connections: they take most of the time of these tests."""
    for client in ("sync_client", "async_client"):
        monkeypatch.setattr(f"magent2.client.{client}.Backoff", ShortBackoff)
    for connection in ("execute", "pipeline"):
        monkeypatch.setattr(f"magent2.bus.redis_engine.{connection}.FIRST_CONTACT_S", FIRST_CONTACT_S / WAITS_SHORTENED)


@pytest.fixture
def no_gateway() -> Iterator[str]:
    """The URL of a port that is bound and not listened on: connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def check(done: Done, code: int | None = None) -> str:
    """Check that a command failed as it should, and return its message."""
    assert done.code in ((1, 2) if code is None else (code,)), (done.code, done.out, done.err)
    assert "Traceback" not in done.out + done.err
    lines = done.err.splitlines()
    assert not [line for line in lines if line.startswith(("{", "["))], done.err
    assert lines, "it failed in silence"
    assert lines[-1].startswith("magent2: "), done.err
    assert NEXT_STEP.search(lines[-1]), f"no next step: {lines[-1]}"
    return lines[-1]


def test_the_cases_cover_every_command() -> None:
    assert set(ARGUMENTS) == set(COMMANDS)
    assert set(NOT_FOUND) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_named_with_the_help(commands: CommandRunner, name: str) -> None:
    message = check(commands.enter(name, ARGUMENTS[name], "--no-such-option"), 2)

    assert "--no-such-option" in message
    assert f"'magent2 {name} --help'" in message


@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if any(one.required for one in command.params)]
)
def test_a_missing_argument_is_named_with_the_help(commands: CommandRunner, name: str) -> None:
    message = check(commands.enter(name, ""), 2)

    assert "Missing" in message
    assert f"'magent2 {name} --help'" in message


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", [name for name in REMOTE if name != "doctor"])
def test_without_a_gateway_the_command_that_starts_one_is_named(
    commands: CommandRunner, name: str, no_gateway: str
) -> None:
    message = check(commands.enter(name, ARGUMENTS[name], "--url", no_gateway), 1)

    assert "'magent2 serve'" in message


@pytest.mark.parametrize("name", [name for name in REMOTE if name != "doctor"])
def test_a_wrong_token_is_named(commands: CommandRunner, name: str) -> None:
    message = check(commands.enter(name, ARGUMENTS[name], "--token", WRONG_TOKEN), 1)

    assert "token" in message


@pytest.mark.parametrize("name", [name for name in REMOTE if "unknown" in ARGUMENTS[name].split()])
def test_an_unknown_conversation_or_dead_letter_is_named(commands: CommandRunner, name: str) -> None:
    assert "unknown" in check(commands.enter(name, ARGUMENTS[name]), 1)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", [name for name in BUSES if name not in NOT_BY_BUS])
def test_a_bus_that_does_not_answer_is_named(commands: CommandRunner, name: str) -> None:
    assert "127.0.0.1:1" in check(commands.enter(name, ARGUMENTS[name], "--bus", NO_REDIS), 1)


@pytest.mark.parametrize(
    "name", [name for name in BUSES if "unknown" in ARGUMENTS[name].split() and name not in MAY_SUCCEED]
)
def test_an_unknown_entry_of_the_directory_is_named(commands: CommandRunner, name: str) -> None:
    assert "unknown" in check(commands.enter(name, ARGUMENTS[name]))


@pytest.mark.parametrize(("name", "arguments"), [(name, one) for name, cases in NOT_FOUND.items() for one in cases])
def test_what_cannot_be_found_read_or_written_is_named(commands: CommandRunner, name: str, arguments: str) -> None:
    check(commands.enter(name, arguments))


@pytest.mark.parametrize(("variable", "value", "typed"), VARIABLES)
def test_an_invalid_variable_is_named(
    commands: CommandRunner, variable: str, value: str, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    words = typed.split()

    message = check(commands.enter(" ".join(words[:2]), " ".join(words[2:])))

    assert variable in message or value in message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MAGENT2_TOKEN", "short"),
        ("MAGENT2_BUS_URL", NO_REDIS),
        ("MAGENT2_BUS_URL", "sqlite:////proc/self/no/log.db"),
    ],
)
def test_a_value_that_is_not_repeated_is_described(
    commands: CommandRunner, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    check(commands.enter("conversations ls" if variable == "MAGENT2_TOKEN" else "users ls", ""))


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_a_server_names_certificates_that_cannot_be_used(server: CommandLine, name: str) -> None:
    message = check(server.run(name, SSL_CERT_FILE="/proc/self/nowhere", OPENAI_API_KEY="key", MAGENT2_PORT="0"), 2)

    assert "SSL_CERT_FILE" in message


@pytest.mark.parametrize("file", ["{nowhere}", "{folder}", "{bad_toml}"])
def test_the_check_of_an_agents_file_lists_its_errors(commands: CommandRunner, file: str) -> None:
    done = commands.enter("agents check", file)

    assert done.code != 0
    assert "Traceback" not in done.out + done.err
    assert re.search(r"No such file|directory|array declaration", done.out + done.err)


def test_doctor_lists_what_to_fix_without_a_gateway(commands: CommandRunner, no_gateway: str) -> None:
    done = commands.enter("doctor", "", "--url", no_gateway)

    assert "Traceback" not in done.out + done.err
    assert "'magent2 serve'" in done.out


def test_a_command_that_does_not_exist_is_named_with_a_similar_one(commands: CommandRunner) -> None:
    assert "Did you mean 'send'?" in check(commands.enter("sned", ""), 2)
