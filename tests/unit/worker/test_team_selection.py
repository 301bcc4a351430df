"""The agents that a process serves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from magent2.bus.memory import MemoryBus
from magent2.errors import RosterError, SettingsError
from magent2.runner.config import MAX_TURNS
from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.observation import RunObserver
from magent2.worker.service import DRAIN_S
from magent2.worker.team_selection import choose_team

FILE = """
[[scenario]]
id = "default"
root = "front"

[[scenario.agent]]
name = "front"
instructions = "Greet."
handoffs = ["back"]

[[scenario.agent]]
name = "back"
instructions = "Work."
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "magent2.toml"
    path.write_text(FILE)
    return path


def test_without_names_and_file_the_default_team_is_served() -> None:
    team = choose_team(environ={})

    assert team.names == ("supervisor", "general", "sales", "support")
    assert team.first_agent == "general"
    assert team.model_description == "echo, because OPENAI_API_KEY is not set"


def test_the_model_that_is_used_without_a_key_is_described() -> None:
    assert (
        choose_team(without_key="demo", environ={}).model_description
        == "the demo model, because OPENAI_API_KEY is not set"
    )
    assert choose_team(without_key="demo", environ={"AGENT_MODEL": "demo"}).model_description == "the demo model"
    assert (
        choose_team(without_key="demo", environ={"OPENAI_API_KEY": "k"}).model_description == "the SDK's default model"
    )
    assert choose_team(model="small", environ={"OPENAI_API_KEY": "k"}).model_description == "model small"


@pytest.mark.parametrize(
    ("without_key", "description"),
    [
        (None, "echo, because OPENAI_API_KEY is not set"),
        ("demo", "the demo model, because OPENAI_API_KEY is not set"),
    ],
)
def test_a_model_of_the_environment_is_not_used_without_a_key(
    without_key: str | None, description: str, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"AGENT_NAME": "Dev", "AGENT_MODEL": "gpt-4o-mini"}

    team = choose_team(without_key=without_key, environ=variables)

    assert (team.names, team.model_description) == (("Dev",), description)
    assert [(record.message, record.model, record.answers) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("AGENT_MODEL is not used, because OPENAI_API_KEY is not set", "gpt-4o-mini", without_key or "echo")
    ]


def test_a_model_of_the_command_line_needs_a_key() -> None:
    with pytest.raises(SettingsError, match="'large' needs OPENAI_API_KEY"):
        choose_team(model="large", environ={"AGENT_MODEL": "small"})


@pytest.mark.parametrize(("names", "variables"), [(["Bob"], {}), ([], {"AGENT_NAME": "Bob"})])
def test_a_named_agent_is_a_team_of_one(names: list[str], variables: dict[str, str]) -> None:
    team = choose_team(names, environ=variables)

    assert (team.names, team.first_agent) == (("Bob",), "Bob")


def test_several_names_need_a_file() -> None:
    with pytest.raises(SettingsError, match="--config"):
        choose_team(["Bob", "Cid"], environ={})


def test_names_select_agents_of_the_file(file: Path) -> None:
    whole = choose_team(file=file, environ={})
    some = choose_team(["back"], environ={"MAGENT2_CONFIG": str(file)})

    assert (whole.names, whole.first_agent) == (("front", "back"), "front")
    assert (some.names, some.first_agent) == (("back",), "back")


def test_a_name_that_the_file_does_not_have_is_refused(file: Path) -> None:
    with pytest.raises(RosterError, match="known: front, back"):
        choose_team(["nobody"], file=file, environ={})


def test_the_environment_overrides_the_file(file: Path) -> None:
    variables = {"AGENT_NAME": "back", "AGENT_INSTRUCTIONS": "Work hard."}

    team = choose_team(file=file, environ=variables)

    assert team.registry.roster.agent(None, "back").instructions == "Work hard."
    with pytest.raises(RosterError, match="no agent"):
        choose_team(file=file, environ={"AGENT_NAME": "stranger"})


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="cannot be read"):
        choose_team(file=tmp_path / "none.toml", environ={})


def test_a_file_that_changes_is_followed(file: Path) -> None:
    team = choose_team(file=file, environ={})

    file.write_text(FILE.replace("Greet.", "Greet warmly."))

    assert team.runner.roster.agent(None, "front").instructions == "Greet warmly."


def test_an_agent_that_joins_the_file_is_served_unless_others_were_named(file: Path) -> None:
    whole, some = choose_team(file=file, environ={}), choose_team(["back"], file=file, environ={})

    file.write_text(FILE + '\n[[scenario.agent]]\nname = "new"\n')

    assert list(whole.current_runners()) == ["front", "back", "new"]
    assert list(some.current_runners()) == ["back"]


def test_a_file_without_an_agent_that_was_chosen_changes_nothing(file: Path) -> None:
    team = choose_team(["back"], file=file, environ={})

    file.write_text('[[scenario]]\nid = "default"\n[[scenario.agent]]\nname = "front"\n')

    assert list(team.current_runners()) == ["back"]
    assert "back" in team.runner.agents()
    assert "--agent cannot be used: the team has no agent 'back'" in str(team.registry.error)


LIMITS = """
[limits]
max_turns = 3
concurrency = 7
run_max_s = 5
run_drain_s = 2.5
lease_s = 4
"""


def test_limits_of_the_environment_override_those_of_the_file(file: Path) -> None:
    file.write_text(FILE + LIMITS)
    variables = {"MAGENT2_LIMIT_RUN_MAX_S": "6", "MAGENT2_LIMIT_MAX_TURNS": "4", "MAGENT2_LIMIT_WAIT_MAX_S": "1.5"}

    by_file = choose_team(file=file, environ={})
    over = choose_team(file=file, environ=variables)
    first = choose_team(file=file, environ={**variables, "AGENT_MAX_TURNS": str(MAX_TURNS)})

    assert by_file.limits == {"max_turns": 3, "concurrency": 7, "run_max_s": 5, "run_drain_s": 2.5, "lease_s": 4}
    assert over.limits == {**by_file.limits, "max_turns": 4, "run_max_s": 6, "wait_max_s": 1.5}
    assert first.limits["max_turns"] == MAX_TURNS


@pytest.mark.parametrize("names", [[], ["Bob"]])
def test_limits_of_the_environment_apply_without_a_file(names: list[str]) -> None:
    assert choose_team(names, environ={"MAGENT2_LIMIT_CONCURRENCY": "3"}).limits == {"concurrency": 3}


async def test_a_worker_uses_the_limits_of_its_team(file: Path) -> None:
    file.write_text(FILE + LIMITS)
    bus = MemoryBus()

    limited = choose_team(file=file, environ={}).service(bus)
    told = choose_team(file=file, environ={}).service(bus, concurrency=9)

    assert (limited.lane_loop.concurrency, limited.run_max_s, limited.drain_s, limited.lane_loop.lease_s) == (
        7,
        5,
        2.5,
        4,
    )
    assert (told.lane_loop.concurrency, choose_team(environ={}).service(bus).drain_s) == (9, DRAIN_S)
    await bus.aclose()


def test_threads_for_tools_have_the_limits_of_the_file_and_of_the_environment_and_are_measured(file: Path) -> None:
    file.write_text(f"{FILE}[limits]\ntool_threads_max = 3\ntool_threads_per_principal_max = 3\n")
    team = choose_team(file=file, environ={"MAGENT2_LIMIT_TOOL_THREADS_PER_PRINCIPAL_MAX": "2"})
    metrics, released = RunMetrics(), threading.Event()
    team.service(MemoryBus(), observer=RunObserver(metrics))

    for principal in ("user:ann", "user:bob"):
        for _ in range(5):
            team.runner.tool_threads.submit(principal, released.wait, 60.0)
    lines = generate_latest(metrics.registry).decode().splitlines()
    released.set()

    assert 'magent2_tool_threads{state="busy"} 3.0' in lines
    assert 'magent2_tool_threads{state="waiting"} 7.0' in lines
    assert 'magent2_sandbox_processes{state="busy"} 0.0' in lines
    assert 'magent2_sandbox_processes{state="waiting"} 0.0' in lines
