"""No text of a guest reaches a terminal or a log with characters that control it."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.cli.event_display import MarkdownDisplay
from magent2.cli.main import run
from magent2.cli.output import print_data, print_json, print_note, print_table
from magent2.client import Client, ConversationEvent
from magent2.connectors.builtin import ConsoleConnector
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.errors import Magent2Error
from magent2.telemetry.logs import JsonLines, TextLines
from magent2.terminal import clean_json, clean_line, clean_text
from tests.support.command_line import CommandLine, RunningServer
from tests.support.forked_processes import ROOT
from tests.support.processes import ProcessGroup

# A title, a clear screen, a C1 sequence, a carriage return that hides what is before it, overrides of the direction.
HOSTILE = "start\x1b]0;title\x07\x1b[2J\x9b31m\rhidden\u202eelif.exe\u2066x\u2069\x00\x7f\u2028end"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
PRINTING = {"print", "echo", "secho", "write", "writelines"}
# Modules that may print by themselves: what they print is constant or was cleaned.
PRINTERS = {
    "magent2/cli/output.py": 3,  # the functions that clean
    "magent2/cli/main.py": 1,  # the script of a shell's completion
    "magent2/connectors/builtin.py": 1,  # a cleaned line
    "magent2/bus/__main__.py": 1,  # cleaned lines
}


def controls_in(text: str) -> list[str]:
    return CONTROLS.findall(text)


# --- the function


def test_every_control_character_is_escaped_and_other_text_is_kept() -> None:
    every = "".join(
        map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xD800))
    )

    assert controls_in(clean_text(every)) == []
    assert clean_text("\x1b[0m \u202e \x9b") == r"\x1b[0m \u202e \x9b"
    assert clean_text("two\r\nlines\tüñ 日本 👨‍👩‍👧 \u200f") == "two\nlines\tüñ 日本 👨‍👩‍👧 \u200f"
    assert clean_line("two\r\nlines\there") == "two lines here"
    assert clean_text(every).encode()


def test_cleaned_json_has_the_same_value() -> None:
    document = json.dumps({HOSTILE: [HOSTILE, "ü"]}, ensure_ascii=False)

    assert json.loads(clean_json(document)) == {HOSTILE: [HOSTILE, "ü"]}
    assert controls_in(clean_json(document)) == []
    assert "ü" in clean_json(document)


# --- every way of printing


def test_all_functions_that_print_clean_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_data(HOSTILE)
    print_data(HOSTILE, newline=False)
    print_note(HOSTILE)
    print_table(("A", "B"), [(HOSTILE, "two\nlines"), (1, HOSTILE)])
    print_json({"text": HOSTILE})
    shown = capsys.readouterr()

    assert controls_in(shown.out + shown.err) == []
    assert json.loads(shown.out.splitlines()[-1]) == {"text": HOSTILE}


def test_an_error_message_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    @click.command()
    def fail() -> None:
        raise Magent2Error(f"the provider says {HOSTILE}")

    @click.command()
    def fail_unexpectedly() -> None:
        raise RuntimeError(HOSTILE)

    assert run([], fail) == 1
    assert run([HOSTILE]) == 2
    assert run([], fail_unexpectedly) == 1
    shown = capsys.readouterr()
    assert controls_in(shown.out + shown.err) == []
    assert r"\x1b]0;title" in shown.err
    assert "RuntimeError: start" in shown.err


def test_nothing_else_in_the_package_prints() -> None:
    """A new `print` or `click.echo` would go around the cleaning. Use the functions of `cli/output.py`."""
    found: dict[str, int] = {}
    for path in sorted((ROOT / "magent2").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _prints(node.func):
                name = str(path.relative_to(ROOT))
                found[name] = found.get(name, 0) + 1
    assert found == PRINTERS


def _prints(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute) or function.attr not in PRINTING:
        return False
    return ast.unparse(function.value) in ("click", "sys.stdout", "sys.stderr")


# --- logs


def log_record(error: ValueError | None = None) -> logging.LogRecord:
    record = logging.LogRecord("magent2.test", logging.WARNING, "x.py", 1, "it says %s", (HOSTILE,), None)
    record.field, record.spaced = HOSTILE.replace("\u2028", ""), f"{HOSTILE} x"
    if error is not None:
        try:
            raise error
        except ValueError:
            record.exc_info = sys.exc_info()
    return record


def test_the_text_log_is_cleaned_also_in_fields_and_tracebacks() -> None:
    line = TextLines().format(log_record())
    failure = TextLines().format(log_record(ValueError(f"{HOSTILE}\n00:00:00 ERROR magent2.bus: forged")))

    assert controls_in(line + failure) == []
    assert len(line.splitlines()) == 1
    assert "Traceback" in failure
    assert all(part.startswith("  ") for part in failure.splitlines()[1:])  # so no part looks like a line of its own


def test_the_json_log_is_cleaned_and_keeps_its_values() -> None:
    line = JsonLines().format(log_record(ValueError(HOSTILE)))

    assert controls_in(line) == []
    assert json.loads(line)["text"] == f"it says {HOSTILE}"


# --- the console connector, and a conversation at a terminal


async def test_the_console_connector_prints_one_cleaned_line_for_each_part() -> None:
    out = io.StringIO()
    file = Attachment(HOSTILE, "0" * 64, "text/plain", 1)
    message = OutgoingMessage("m", "desk", HOSTILE, "c", HOSTILE, f"one\n{HOSTILE}", "now", attachments=(file,))

    await ConsoleConnector(out).send(message, {})

    assert controls_in(out.getvalue()) == []
    assert len(out.getvalue().splitlines()) == 2


def test_markdown_cannot_bring_control_characters_back_by_entities_or_hide_a_url() -> None:
    from rich.console import Console

    out = io.StringIO()
    display = MarkdownDisplay(Console(file=out, force_terminal=True, width=200, color_system=None))
    text = f"{HOSTILE} &#27;]0;t&#7; &#x9b; &#8238;abc `&#8238;` [bank](https://evil.example/&#8238;)"
    for kind in ("token", "output"):
        display.show(ConversationEvent(1, kind, {"text": text, "message_id": "m"}))
    display.close()

    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", out.getvalue())  # what rich writes by itself
    assert controls_in(shown) == []
    assert "https://evil.example/" in shown


# --- every command that shows what guests wrote


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with ProcessGroup() as process_group:
        yield RunningServer(process_group, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def magent2(server: RunningServer) -> Iterator[CommandLine]:
    with CommandLine(server.data_dir, MAGENT2_URL=server.url, MAGENT2_BUS_URL=server.bus_url) as commands:
        with Client(server.url, server.token) as client:
            client.wait(client.send("general", HOSTILE, conversation_id="c1"))
        yield commands


@pytest.mark.parametrize(
    "command",
    [
        "replay c1 --speed 1000",
        "replay c1 --speed 1000 --json",
        "tail c1 --no-follow",
        "tail c1 --no-follow --kinds token,output,user_message",
        "tail c1 --no-follow --json",
        "conversations show c1",
        "conversations show c1 --json",
        "conversations ls",
        "conversations ls --json",
        "conversations export c1",
        "send general - --wait",
        "send general - --stream",
        "send general - --wait --json",
        "chat",
        "stop \u202emissing\x1b[2J",
    ],
)
def test_a_command_prints_no_control_characters(magent2: CommandLine, command: str) -> None:
    done = magent2.run(*command.split(" "), stdin=HOSTILE.replace("\x00", ""))

    assert controls_in(done.out + done.err) == []
    assert done.out + done.err


def test_an_exported_file_contains_no_control_characters(magent2: CommandLine, tmp_path: Path) -> None:
    assert magent2.run("conversations", "export", "c1", "-o", str(tmp_path / "c1.jsonl")).code == 0
    text = (tmp_path / "c1.jsonl").read_text()

    assert controls_in(text) == []
    assert HOSTILE in [json.loads(line).get("text") for line in text.splitlines()]


def test_replay_at_a_terminal_prints_no_control_characters(magent2: CommandLine) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "magent2.cli", "replay", "c1", "--speed", "1000"],
        cwd=ROOT,
        env={**magent2.variables, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:  # Linux reports the end of a terminal as an error
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    assert controls_in(shown.decode().replace("\r\n", "\n")) == []
    assert r"\x1b]0;title" in shown.decode()
