"""Every code block of the README and the documentation runs as printed, or a table here says why it does not."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from magent2 import errors
from magent2.connectors.webhook import signature
from magent2.models.api.team import BuiltinToolStatus
from magent2.roster.agents_file import load_agents_file
from magent2.tools.default_tools import known_tools
from tests.support.command_line import CommandLine, served_team
from tests.support.forked_commands import ForkedCommands
from tests.support.forked_processes import ROOT, start_module
from tests.support.http_client.new_user import OUR_BIN
from tests.support.model_server import ModelServer, Reply
from tests.support.redis_server import RedisServer
from tests.support.source import parse_module

DEADLINE_S = 120.0
RUN_SCRIPT = "tests.support.run_script"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LANGUAGES = {
    "python",
    "js",
    "sh",
    "toml",
    "json",
    "yaml",
    "text",
    "mermaid",
}  # `text` is output, or has placeholders in it
GATEWAY_URL = "http://127.0.0.1:8700"  # as the pages print it
REDIS_URL = "redis://localhost:6379/0"  # as the pages print it
ERROR_COMMENT = re.compile(r"#\s(\w+)$")  # of a line that raises: the name of the error


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    number: int  # among the blocks of this language on this page
    text: str

    @property
    def place(self) -> tuple[str, str, int]:
        return self.page, self.language, self.number

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks_of(page: Path) -> Iterator[Block]:
    seen: dict[str, int] = {}
    for language, text in BLOCK.findall(page.read_text()):
        yield Block(str(page.relative_to(ROOT)), language, seen.get(language, 0), text)
        seen[language] = seen.get(language, 0) + 1


BLOCKS = [block for page in PAGES for block in blocks_of(page)]

# Blocks that another test runs as printed.
RUN_ELSEWHERE: dict[tuple[str, str], str] = {
    ("docs/api.md", "sh"): "tests/acceptance/test_service.py",
    ("docs/context.md", "toml"): "tests/acceptance/test_context_docs.py",
    ("docs/message-bus.md", "python"): "tests/acceptance/test_message_bus_docs.py",
    ("docs/models.md", "toml"): "tests/acceptance/test_models_docs.py",
    ("docs/operating.md", "sh"): "tests/acceptance/test_operating.py",
    ("docs/webhooks.md", "json"): "tests/acceptance/test_webhooks.py",
    ("docs/webhooks.md", "python"): "tests/acceptance/test_webhooks.py",
    ("docs/operating.md", "toml"): "tests/acceptance/test_operating.py",
}

# Blocks that are not run, and why. Python of these is still compiled.
NOT_RUN: dict[tuple[str, str, int], str] = {
    ("README.md", "sh", 0): "sets up the clone and runs all tests",
    ("CONTRIBUTING.md", "sh", 0): "runs all checks, and changes files of the clone",
    ("docs/quickstart.md", "sh", 0): "sets up the clone; tests/acceptance/test_service.py checks what it runs",
    ("docs/quickstart.md", "sh", 2): "needs a key of a model provider",
    ("docs/quickstart.md", "sh", 3): "downloads 130 MB",
    (
        "docs/client.md",
        "python",
        1,
    ): "needs a model that answers in JSON, as in tests/integration/test_output_schema.py",
    ("docs/observability.md", "sh", 0): "installs a package from an index",
    ("docs/writing-a-bus.md", "python", 1): "tests the engine of the reader, MyBus",
    ("docs/writing-a-connector.md", "python", 0): "an excerpt of the interface; a test below compares it",
    ("docs/writing-a-connector.md", "python", 1): "tests the connector of the reader, PigeonConnector",
    ("docs/refs/openai-agents-sdk.md", "python", 0): "calls a model of a provider",
}

CONSOLES = ("docs/the-log.md",)  # pages whose examples are entered one after another in `python -m asyncio`
PROGRAMS = (("docs/the-log.md", "python", 5),)  # blocks of these pages that are programs of their own

# What must have happened before a block of commands.
TWO_FILES = r"printf '\211PNG\r\n\032\n\0\0\0\rIHDR' >photo.png; printf '%%PDF-1.4\n%%%%EOF\n' >report.pdf"
BEFORE = {
    ("docs/files.md", "sh", 0): TWO_FILES,
    ("docs/files.md", "sh", 1): TWO_FILES,
    ("docs/writing-a-connector.md", "sh", 0): "magent2 users add ann --nametag ann; echo 0123456789abcdef > secret.txt",
}


def runnable(language: str) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language == language
        and block.place not in NOT_RUN
        and (block.page, block.language) not in RUN_ELSEWHERE
    ]


def is_program(block: Block) -> bool:
    return block.page not in CONSOLES or block.place in PROGRAMS


# --- the tables


def test_every_block_has_a_language_that_is_known_here() -> None:
    assert {str(block): block.language for block in BLOCKS if block.language not in LANGUAGES} == {}


def test_the_tables_name_blocks_that_exist() -> None:
    places = {block.place for block in BLOCKS}

    assert (set(NOT_RUN) | set(BEFORE) | set(PROGRAMS)) - places == set()
    for (page, language), test in RUN_ELSEWHERE.items():
        assert any(place[:2] == (page, language) for place in places)
        assert page in (ROOT / test).read_text()


# --- Python


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with served_team(tmp_path_factory.mktemp("served")) as commands:
        yield commands


@pytest.mark.parametrize("block", [block for block in runnable("python") if is_program(block)], ids=str)
def test_a_python_block_runs_as_a_program(block: Block, server: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block.text.replace(GATEWAY_URL, server.variables["MAGENT2_URL"]))
    with ModelServer([Reply("It is fine")]) as model:
        variables = {
            **server.variables,
            "MAGENT2_TOKEN": server.token,
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "key",  # pragma: allowlist secret
            "PYTHONPATH": str(ROOT),
        }
        with start_module(RUN_SCRIPT, ["example.py"], variables, folder=tmp_path, text=True) as program:
            _, errors_printed = program.communicate(timeout=DEADLINE_S)

    assert program.returncode == 0, errors_printed


@pytest.mark.browser  # it needs the Node of the page
@pytest.mark.parametrize("block", runnable("js"), ids=str)
def test_a_javascript_block_runs_as_a_program(block: Block, server: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")
    (tmp_path / "example.mjs").write_text(block.text.replace(GATEWAY_URL, server.variables["MAGENT2_URL"]))

    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "node", "example.mjs"],
        cwd=tmp_path,
        env={**server.variables, "MAGENT2_TOKEN": server.token},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr


@pytest.mark.parametrize("page", CONSOLES)
async def test_the_python_blocks_of_a_page_run_one_after_another(page: str) -> None:
    names: dict[str, Any] = {}
    for block in runnable("python"):
        if block.page == page and not is_program(block):
            for source in statements(block.text):
                await enter(source, names)
    names["bus"].close()


def statements(code: str) -> Iterator[str]:
    """The statements of a block as they are printed, each with the comment that ends its last line."""
    lines = code.splitlines()
    for statement in parse_module(code).body:
        yield "\n".join(lines[statement.lineno - 1 : statement.end_lineno])


async def enter(source: str, names: dict[str, Any]) -> None:
    """Run a statement as `python -m asyncio` does. A comment at its end may name the error that it raises."""
    comment = ERROR_COMMENT.search(source)
    expected = getattr(errors, comment[1], None) if comment is not None else None
    code = compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if expected is not None:
        with pytest.raises(expected):
            eval(code, names)
        return
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_every_python_block_compiles(block: Block) -> None:
    flags = 0 if block in runnable("python") and is_program(block) else ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    compile(block.text, str(block), "exec", flags=flags)


def test_the_excerpt_of_the_connector_is_that_of_its_interface() -> None:
    (block,) = [one for one in BLOCKS if one.place == ("docs/writing-a-connector.md", "python", 0)]
    source = {line.strip() for line in (ROOT / "magent2/connectors/interface.py").read_text().splitlines()}

    assert [line for line in block.text.splitlines() if line.strip() not in source | {""}] == []


def test_the_receiver_of_a_webhook_recognises_our_signature() -> None:
    (block,) = [one for one in BLOCKS if one.place == ("docs/writing-a-connector.md", "python", 2)]
    names: dict[str, Any] = {}
    exec(block.text, names)

    assert names["is_genuine"](b"secret", "1", "key", b"{}", signature("secret", "1", "key", b"{}"))
    assert not names["is_genuine"](b"other", "1", "key", b"{}", signature("secret", "1", "key", b"{}"))


# --- commands

# Servers run until their start is reported and are then stopped; they must exit with 0. `tail` does not follow.
COMMAND = """#!/bin/sh
program="{program}"
case "$1 $2 $3" in
tail*) exec $program "$@" --no-follow ;;
serve*|gateway*|worker*|"-m magent2.worker"*)
    : >output-$$
    $program "$@" >output-$$ 2>&1 &
    until grep -q '^bus ' output-$$; do kill -0 $! 2>/dev/null || {{ cat output-$$ >&2; exit 1; }}; sleep 0.05; done
    kill -TERM $!; wait $! ;;
*) exec $program "$@" ;;
esac
"""


def enter_block(
    text: str, folder: Path, variables: Mapping[str, str], forked_commands: ForkedCommands
) -> subprocess.CompletedProcess[str]:
    commands, programs = folder / "bin", folder / "programs"
    commands.mkdir()
    programs.mkdir()
    forked_commands.write_script(programs / "magent2", "-m", "magent2.cli")
    forked_commands.write_script(programs / "python")
    for program in programs.iterdir():
        (commands / program.name).write_text(COMMAND.format(program=program))
        (commands / program.name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-e", "-c", OUR_BIN.sub(f"{commands}/", text)],
        cwd=folder,
        env={**variables, "PATH": f"{commands}:{os.defpath}", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("block", [one for one in runnable("sh") if REDIS_URL not in one.text], ids=str)
def test_the_commands_of_a_block_succeed(
    block: Block, server: CommandLine, forked_commands: ForkedCommands, tmp_path: Path
) -> None:
    variables = dict(server.variables)
    if re.search(r"magent2 (serve|keys|users)|magent2\.worker", block.text):  # its own log, and a free port
        variables |= {"MAGENT2_DATA_DIR": str(tmp_path / "data"), "MAGENT2_PORT": "0"}
    for page_block in BLOCKS:  # the agents file that the page shows is the one that its commands name
        if (page_block.page, page_block.language) == (block.page, "toml") and "magent2 init" not in block.text:
            (tmp_path / "magent2.toml").write_text(page_block.text)
        if page_block.page == block.page and page_block.text.startswith("# app.py"):  # a module that its commands name
            (tmp_path / "app.py").write_text(page_block.text)
    text = block.text.replace(GATEWAY_URL, server.variables["MAGENT2_URL"])

    done = enter_block(f"{BEFORE.get(block.place, ':')}\n{text}", tmp_path, variables, forked_commands)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.redis
@pytest.mark.parametrize("block", [one for one in runnable("sh") if REDIS_URL in one.text], ids=str)
def test_the_commands_of_a_block_succeed_on_redis(
    block: Block, server: CommandLine, redis_server: RedisServer, forked_commands: ForkedCommands, tmp_path: Path
) -> None:
    variables = {**server.variables, "MAGENT2_DATA_DIR": str(tmp_path / "data"), "MAGENT2_PORT": "0"}

    text = block.text.replace(REDIS_URL, f"{redis_server.url}?prefix=blocks")

    done = enter_block(text, tmp_path, variables, forked_commands)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


# --- agents files and data


@pytest.mark.parametrize("block", runnable("toml"), ids=str)
def test_an_agents_file_is_accepted(block: Block, tmp_path: Path) -> None:
    """A part of a file is completed: agents get a scenario, tables get a team, names get a server or a function."""
    text = block.text
    if not re.search(r"^\[\[scenario\]\]", text, re.M):
        team = '[[scenario]]\nid = "s"\nroot = "{}"\n'
        name = re.search(r'^name = "(.*)"$', text, re.M)
        text = team.format(name[1]) + text if name else f'{text}\n{team.format("a")}[[scenario.agent]]\nname = "a"\n'
    if '"files.' in text:
        text += '\n[mcp.files]\ncommand = ["server"]\n'
    file = tmp_path / "magent2.toml"
    file.write_text(text)
    (tmp_path / "tools.py").write_text("def word_count(text: str) -> int: ...\ndef reserve(day: str) -> str: ...\n")

    load_agents_file(file, known_tools(), {"TICKETS_TOKEN": "t"})


@pytest.mark.parametrize("block", runnable("json"), ids=str)
def test_json_is_what_the_api_returns(block: Block) -> None:
    schema = {"docs/builtin-tools.md": BuiltinToolStatus}[block.page]

    assert schema.model_validate(json.loads(block.text)).model_dump(mode="json") == json.loads(block.text)


@pytest.mark.parametrize("block", runnable("yaml"), ids=str)
def test_yaml_can_be_read(block: Block) -> None:
    assert yaml.safe_load(block.text)
