"""`magent2 init` and `magent2 agents check`."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from magent2.cli.agents import check, check_file, init, read_context_limits, starter_text
from magent2.cli.doctor import check_agents_file, check_models, check_sdk_agents
from magent2.tools import mcp
from tests.support import hostile_mcp_server
from tests.unit.roster.agents_files import PAIR, write_agents_file

START_DEADLINE_S = 60.0  # a busy machine may take long to start a program


def test_the_files_of_init_pass_the_check(tmp_path: Path) -> None:
    result = CliRunner().invoke(init, [str(tmp_path / "new")])

    assert result.exit_code == 0
    assert result.stdout.split() == [str(tmp_path / "new" / "magent2.toml"), str(tmp_path / "new" / "tools.py")]
    report = check_file(tmp_path / "new" / "magent2.toml")
    assert report.faults == ()
    assert report.roster is not None
    assert report.roster.agent_names() == ("reception", "librarian")


def test_the_commented_settings_of_the_new_file_pass_the_check(tmp_path: Path) -> None:
    lines = [_bared(line) for line in starter_text("magent2.toml").splitlines()]
    text = "\n".join(lines).replace('supervisor = "router"', "").replace('shared = ["reception"]', "")
    (tmp_path / "magent2.toml").write_text(text.replace('instructions_file = "reception.md"', ""))

    report = check_file(
        tmp_path / "magent2.toml", import_tools=False, environ={"FILES_TOKEN": "x", "SEARCH_TOKEN": "y"}
    )

    assert report.faults == ()
    assert report.roster is not None
    assert set(report.roster.mcp) == {"files", "search"}
    assert report.roster.agent(None, "reception").model is not None


def _bared(line: str) -> str:
    return line.removeprefix("# ") if line.startswith("# [") or (line.startswith("# ") and " = " in line) else line


@pytest.mark.parametrize("name", ["magent2.toml", "tools.py"])
def test_init_does_not_overwrite_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")

    result = CliRunner().invoke(init, [str(tmp_path)])

    assert result.exit_code == 1
    assert f"{tmp_path / name} already exists; use --force to overwrite" in result.output
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_init_overwrites_a_file_with_force(tmp_path: Path) -> None:
    (tmp_path / "magent2.toml").write_text("mine")

    assert CliRunner().invoke(init, [str(tmp_path), "--force"]).exit_code == 0
    assert (tmp_path / "magent2.toml").read_text() == starter_text("magent2.toml")


def test_check_lists_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_CONTEXT_MAX", "9000")
    result = CliRunner().invoke(check, [str(write_agents_file(tmp_path, PAIR))], standalone_mode=False)

    assert result.return_value == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["SCENARIO", "AGENT", "PART", "MODELS", "TOOLS", "CONTEXT_MAX"],
        ["desk", "ann", "root", "default", "weather", "9000", "(AGENT_CONTEXT_MAX)"],
        ["desk", "bob", "-", "default", "-", "9000", "(AGENT_CONTEXT_MAX)"],
    ]


CONTEXTS = """
[[scenario]]
id = "desk"
root = "own"

[[scenario.agent]]
name = "own"
context_max = 5000

[[scenario.agent]]
name = "known"
model = "gpt-4o"

[[scenario.agent]]
name = "short"
model = "gpt-4o"
model_settings = { max_tokens = 28000 }

[[scenario.agent]]
name = "unknown"
model = "my-model"
"""


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        (
            CONTEXTS,
            {},
            {
                "own": (5000, "context_max of the agent"),
                "known": (96_000, "known model gpt-4o"),
                "short": (80_000, "known model gpt-4o"),
                "unknown": (96_000, "default: model my-model is not known"),
            },
        ),
        (
            f"[context]\ncontext_max = 7000\n{CONTEXTS}",
            {},
            {"own": (5000, "context_max of the agent")}
            | dict.fromkeys(("known", "short", "unknown"), (7000, "[context]")),
        ),
        (
            f"[context]\ncontext_max = 7000\n{CONTEXTS}",
            {"AGENT_CONTEXT_MAX": "9000"},
            {"own": (5000, "context_max of the agent")}
            | dict.fromkeys(("known", "short", "unknown"), (9000, "AGENT_CONTEXT_MAX")),
        ),
    ],
)
def test_the_context_of_an_agent_is_shown_with_where_it_comes_from(
    tmp_path: Path, file: str, environ: dict[str, str], expected: dict[str, tuple[int, str]]
) -> None:
    roster = check_file(write_agents_file(tmp_path, file), import_tools=False, environ={}).roster
    assert roster is not None

    limits = read_context_limits(roster, environ)

    assert {name: (limit.context_max, limit.source) for name, limit in limits.items()} == expected


def test_doctor_shows_the_context_of_each_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")  # pragma: allowlist secret

    found = [
        finding.text for finding in check_models(write_agents_file(tmp_path, CONTEXTS)) if finding.what == "context"
    ]

    assert found[0] == "own: context_max 5000 (context_max of the agent)"
    assert len(found) == 4


def test_check_prints_each_error_on_a_line(tmp_path: Path) -> None:
    path = write_agents_file(tmp_path, PAIR.replace('"bob"]', '"bop"]').replace("weather", "wether"))

    result = CliRunner().invoke(check, [str(path)], standalone_mode=False)

    assert result.return_value == 1
    assert len(result.stdout.splitlines()) == 2
    assert "2 errors" in result.stderr


def test_check_prints_json(tmp_path: Path) -> None:
    path = write_agents_file(tmp_path, PAIR.replace("weather", "wether"))

    result = CliRunner().invoke(check, [str(path), "--json"], standalone_mode=False)

    told = json.loads(result.stdout)
    assert (told["ok"], told["file"], told["agents"]) == (False, str(path), [])
    assert "did you mean 'weather'?" in told["faults"][0]


def test_check_imports_the_tools_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def good() -> str:\n    'Good.'\n    return 'x'\n")
    (tmp_path / "sad.py").write_text("raise KeyError('no luck')\n")
    path = write_agents_file(
        tmp_path, PAIR + '[tools]\na = "mine:good"\nb = "mine:bad"\nc = "sad:x"\nd = "nowhere_at_all:x"\n'
    )

    faults = check_file(path).faults

    assert [fault.partition(": ")[0] for fault in faults] == ["tools.b", "tools.c", "tools.d"]
    assert "has no attribute 'bad'" in faults[0]
    assert faults[1].endswith("cannot be loaded (KeyError: 'no luck')")
    assert "No module named 'nowhere_at_all'" in faults[2]
    assert check_file(path, import_tools=False).faults == ()


def test_check_names_the_keys_the_packages_and_the_guardrails_that_models_lack(tmp_path: Path) -> None:
    (tmp_path / "guards.py").write_text("def fine(context, agent, given): ...\nword = 'no function'\n")
    agent = 'name = "ann"\nmodels = ["anthropic/claude", "mine/llama"]\n'
    guards = 'input_guardrails = ["guards:fine", "guards:word"]\n'
    table = '[provider.mine]\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = "MINE_KEY"\n'
    path = write_agents_file(tmp_path, f'[[scenario]]\nid = "desk"\n[[scenario.agent]]\n{agent}{guards}{table}')

    faults = check_file(path, environ={}).faults

    assert len(faults) == 3
    assert faults[0].startswith("agent 'ann': input_guardrails: 'guards:word': ")
    assert faults[1] == "agent 'ann': model 'anthropic/claude' needs ANTHROPIC_API_KEY, which is not set"
    assert faults[2] == "agent 'ann': model 'mine/llama' needs MINE_KEY, which is not set"
    assert check_file(path, environ={"ANTHROPIC_API_KEY": "a", "MINE_KEY": "b"}, import_tools=False).faults == ()


@pytest.fixture
def unheard() -> Iterator[int]:
    """A port that nothing listens on. It stays bound, so that no other process gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def team_with_servers(tmp_path: Path, unheard: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An agents file with a server that works and three that cannot be used."""
    monkeypatch.setattr(mcp, "CONNECT_MAX_S", START_DEADLINE_S)
    servers = {
        "shelf": f"command = {json.dumps([sys.executable, hostile_mcp_server.__file__])}",
        "missing": 'command = ["/nowhere/no-such-program"]',
        "ended": f"command = {json.dumps([sys.executable, '-c', 'raise SystemExit(3)'])}",
        "closed": f'url = "http://127.0.0.1:{unheard}/mcp"',
    }
    tables = "".join(f"[mcp.{name}]\n{keys}\n" for name, keys in servers.items())
    return write_agents_file(tmp_path, PAIR + tables)


def test_check_connects_to_mcp_servers_and_says_in_one_line_why_one_cannot_be_used(team_with_servers: Path) -> None:
    assert check_file(team_with_servers).faults == ()
    faults = check_file(team_with_servers, connect=True).faults

    assert [fault.partition(": ")[0] for fault in faults] == ["mcp.missing", "mcp.ended", "mcp.closed"]
    assert "no-such-program" in faults[0]
    assert all("\n" not in fault and "TaskGroup" not in fault for fault in faults), faults
    assert "connect" in faults[2].lower()


def test_doctor_says_which_mcp_servers_of_the_agents_file_work(team_with_servers: Path) -> None:
    findings = [(one.status, one.what, one.text.partition(":")[0]) for one in check_agents_file(team_with_servers)]

    assert findings[1:] == [
        ("ok", "mcp", "shelf"), ("fail", "mcp", "missing"), ("fail", "mcp", "ended"), ("fail", "mcp", "closed"),
    ]  # fmt: skip
    assert findings[0][:2] == ("ok", "team")
    assert list(check_agents_file(None)) == []


SDK_AGENTS = "from agents import Agent\nhelper = Agent(name='helper')\nnothing = 7\n"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("sdk_app:helper", "ok", "sdk_app:helper: helper"),
        ("sdk_app:nothing", "fail", "'sdk_app:nothing' is a int; name an Agent"),
        ("sdk_app", "fail", "--agents 'sdk_app' is not an import path"),
    ],
)
def test_doctor_checks_agents_of_the_operators_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: str, text: str
) -> None:
    (tmp_path / "sdk_app.py").write_text(SDK_AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sdk_app", raising=False)

    (finding,) = check_sdk_agents(None, [path])

    assert (finding.status, text in finding.text) == (status, True)


def test_check_imports_sdk_agents_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.cli.agents.IMPORT_MAX_S", 300.0)  # the SDK takes long to import on a busy machine
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "sdk_check.py").write_text(SDK_AGENTS)
    file = tmp_path / "magent2.toml"
    team = '[[scenario]]\nid = "s"\n[[scenario.agent]]\nagent = "sdk_check:{}"\n'

    file.write_text(team.format("nothing"))
    (fault,) = check_file(file).faults
    file.write_text(team.format("helper"))
    roster = check_file(file).roster

    assert "agent: 'sdk_check:nothing'" in fault
    assert "'sdk_check:nothing' is a int; name an Agent" in fault
    assert roster is not None
    assert roster.agent_names() == ("helper",)
