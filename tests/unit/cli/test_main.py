"""Every command has help, light commands import little, and errors are short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from magent2.cli.main import COMMANDS, cli, run
from tests.support.forked_processes import ROOT

HEAVY = ("pydantic", "httpx2", "rich", "openai", "agents", "fastapi", "uvicorn", "redis", "orjson", "prometheus_client")
LOOK = """
import json, sys
from magent2.cli.main import run
try:
    code = run(sys.argv[2:])
finally:
    print()
    print(json.dumps([name for name in json.loads(sys.argv[1]) if name in sys.modules]))
"""


def paths() -> list[tuple[str, ...]]:
    """Every command, those of groups included."""
    context = click.Context(cli)
    found: list[tuple[str, ...]] = [()]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found.extend((name, inner) for inner in command.list_commands(context))
    return found


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_command_has_help_that_begins_with_one_plain_sentence(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])

    sentence = result.output.split("\n\n")[1].strip()
    assert result.exit_code == 0
    assert sentence.endswith(".")
    assert "\n\n" not in sentence


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_shows_the_sentence_of_the_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").partition("\n")[0] == COMMANDS[name][1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_with_a_variable_shows_it(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    variables = {
        "bus": "MAGENT2_BUS_URL",
        "host": "MAGENT2_HOST",
        "port": "MAGENT2_PORT",
        "token": "MAGENT2_TOKEN",
        "url": "MAGENT2_URL",
        "model": "AGENT_MODEL",
        "log_format": "MAGENT2_LOG_FORMAT",
    }

    text = " ".join(CliRunner().invoke(cli, [name, "--help"]).output.split())

    for parameter in command.params:
        if parameter.name in variables:
            assert variables[parameter.name] in text


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["token", "show"], ["completion", "bash"], *([name, "--help"] for name in COMMANDS)],
    ids=" ".join,
)
def test_a_light_command_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(HEAVY), *arguments],
        cwd=ROOT,
        env={"MAGENT2_DATA_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "#compdef magent2"), ("fish", "complete ")]
)
def test_completion_prints_a_script_for_the_shell(shell: str, words: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])

    assert result.exit_code == 0
    assert words in result.output
    assert "_MAGENT2_COMPLETE" in result.output


def test_a_shell_completes_the_commands() -> None:
    result = CliRunner().invoke(
        cli,
        [],
        prog_name="magent2",
        env={"_MAGENT2_COMPLETE": "bash_complete", "COMP_WORDS": "magent2 co", "COMP_CWORD": "1"},
    )

    assert "conversations" in result.output
    assert "completion" in result.output


@pytest.mark.parametrize("arguments", [[], ["conversations"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help_as_lines(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: magent2")
    assert "\n  " in captured.err


def test_a_misspelled_command_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sned"]) == 2

    assert capsys.readouterr().err == "magent2: No such command 'sned'. Did you mean 'send'? (see 'magent2 --help')\n"


@pytest.mark.parametrize("module", ["magent2.worker", "magent2.gateway", "magent2.bus"])
def test_a_module_that_can_be_run_shows_its_help(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: python -m {module} [OPTIONS]")


def test_the_bus_module_describes_a_log_and_reports_a_wrong_url_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    described, refused = (
        subprocess.run(
            [sys.executable, "-m", "magent2.bus", argument], cwd=ROOT, capture_output=True, text=True, check=False
        )
        for argument in (url, "nowhere")
    )

    assert described.returncode == 0
    assert described.stdout.splitlines()[0] == f"bus      {url}"
    assert "none yet" in described.stdout
    assert refused.returncode == 2
    assert refused.stderr.startswith("magent2: 'nowhere' is not a bus URL")
    assert len(refused.stderr.splitlines()) == 1
