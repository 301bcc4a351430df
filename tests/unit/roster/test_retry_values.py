"""The retry policies of an agents file and of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.errors import RosterError, SettingsError
from magent2.mail.retry_policy import DELIVERY_RETRY, RUN_RETRY, RetryPolicy
from magent2.roster.agents_file import load_agents_file
from magent2.roster.limits import RetryValues, delivery_retry_policy, parse_retry_variables, run_retry_policy
from magent2.settings import Settings
from magent2.worker.team_selection import choose_team

AGENTS = '[[scenario]]\nid = "desk"\n[[scenario.agent]]\nname = "ann"\n'


def write(folder: Path, retry: str) -> Path:
    path = folder / "magent2.toml"
    path.write_text(f"[retry]\n{retry}\n{AGENTS}")
    return path


def test_without_values_the_defaults_apply() -> None:
    assert run_retry_policy(RetryValues()) == RUN_RETRY
    assert delivery_retry_policy(RetryValues()) == DELIVERY_RETRY


def test_a_file_sets_the_policies_of_runs_and_of_deliveries(tmp_path: Path) -> None:
    path = write(tmp_path, "first_s = 1.0\nmax_s = 9.0\njitter = 0.1\ngive_up_after_s = 60.0\ndelivery_max_s = 7.0")

    retry = load_agents_file(path, ()).roster.retry

    assert run_retry_policy(retry) == RetryPolicy(1.0, 9.0, 0.1, 60.0)
    assert delivery_retry_policy(retry).max_s == 7.0


@pytest.mark.parametrize(
    ("retry", "fault"),
    [
        (
            "first_s = 9.0\nmax_s = 1.0",
            "retry: first_s and max_s of the retry policy: a first delay of 9 s is longer than the longest, 1 s",
        ),
        ("jitter = 2.0", "retry.jitter"),
        ("attempts = 8", "unknown key 'attempts'"),
    ],
)
def test_values_that_cannot_be_used_are_named(tmp_path: Path, retry: str, fault: str) -> None:
    with pytest.raises(RosterError, match=fault):
        load_agents_file(write(tmp_path, retry), ())


def test_the_environment_takes_precedence_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "give_up_after_s = 60.0\nmax_s = 9.0")
    environ = {"MAGENT2_RETRY_GIVE_UP_AFTER_S": "600", "MAGENT2_DATA_DIR": str(tmp_path)}

    team = choose_team(model="demo", file=path, environ=environ)

    policy = run_retry_policy(team.retry)
    assert (policy.give_up_after_s, policy.max_s) == (600, 9.0)


def test_an_unknown_variable_is_an_error() -> None:
    settings = Settings.read({"MAGENT2_RETRY_MAXIMUM_S": "5"})

    with pytest.raises(SettingsError, match="MAGENT2_RETRY_MAX_S"):
        parse_retry_variables(settings.retry)


def test_variables_that_contradict_the_file_or_a_default_are_named_before_a_team_starts(tmp_path: Path) -> None:
    path = write(tmp_path, "delivery_max_s = 7.0")
    environ = {"MAGENT2_DATA_DIR": str(tmp_path)}

    with pytest.raises(
        SettingsError, match=r"first_s and max_s of the retry policy: .* 1000 s is longer than the longest, 60 s"
    ):
        choose_team(model="demo", environ=environ | {"MAGENT2_RETRY_FIRST_S": "1000"})
    with pytest.raises(SettingsError, match=r"delivery_first_s and delivery_max_s of the retry policy: .* 8 s"):
        choose_team(model="demo", file=path, environ=environ | {"MAGENT2_RETRY_DELIVERY_FIRST_S": "8"})
