"""Whom a process serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.errors import RosterError, SettingsError
from magent2.worker.team import choose_team

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


def test_without_a_word_it_is_the_default_team() -> None:
    team = choose_team(environ={})

    assert team.names == ("supervisor", "general", "sales", "support")
    assert team.first == "general"
    assert team.described == "echo, because OPENAI_API_KEY is not set"


def test_what_is_taken_for_want_of_a_key_is_said() -> None:
    assert choose_team(without_key="demo", environ={}).described == "the demo model, because OPENAI_API_KEY is not set"
    assert choose_team(without_key="demo", environ={"AGENT_MODEL": "demo"}).described == "the demo model"
    assert choose_team(without_key="demo", environ={"OPENAI_API_KEY": "k"}).described == "the SDK's default model"
    assert choose_team(model="small", environ={"OPENAI_API_KEY": "k"}).described == "model small"


@pytest.mark.parametrize(("names", "variables"), [(["Bob"], {}), ([], {"AGENT_NAME": "Bob"})])
def test_a_named_agent_is_a_team_of_one(names: list[str], variables: dict[str, str]) -> None:
    team = choose_team(names, environ=variables)

    assert (team.names, team.first) == (("Bob",), "Bob")


def test_several_names_need_a_file() -> None:
    with pytest.raises(SettingsError, match="--config"):
        choose_team(["Bob", "Cid"], environ={})


def test_a_file_has_a_team_of_its_own_and_names_choose_from_it(file: Path) -> None:
    whole = choose_team(file=file, environ={})
    some = choose_team(["back"], environ={"MAGENT2_CONFIG": str(file)})

    assert (whole.names, whole.first) == (("front", "back"), "front")
    assert (some.names, some.first) == (("back",), "back")


def test_a_name_that_the_file_does_not_have_is_refused(file: Path) -> None:
    with pytest.raises(SettingsError, match="there is: front, back"):
        choose_team(["nobody"], file=file, environ={})


def test_the_environment_stands_over_the_file(file: Path) -> None:
    variables = {"AGENT_NAME": "back", "AGENT_INSTRUCTIONS": "Work hard."}

    team = choose_team(file=file, environ=variables)

    assert team.registry.roster.agent(None, "back").instructions == "Work hard."
    with pytest.raises(RosterError, match="no agent"):
        choose_team(file=file, environ={"AGENT_NAME": "stranger"})


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="cannot be read"):
        choose_team(file=tmp_path / "none.toml", environ={})


def test_a_file_that_changes_is_followed(file: Path) -> None:
    team = choose_team(file=file, environ={})

    file.write_text(FILE.replace("Greet.", "Greet warmly."))

    assert team.runner.roster.agent(None, "front").instructions == "Greet warmly."
