"""`[retention]`: its keys, their ranges, and the policy that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.retention import RetentionPolicy, TopicRetention
from magent2.errors import RosterError, SettingsError
from magent2.roster.retention import RETENTION_NAMES, RetentionValues, parse_retention_variables, retention_policy
from magent2.settings import Settings
from magent2.worker.team_selection import choose_team
from tests.unit.roster.agents_files import AGENT, read_roster

DAY_S = 86_400.0
EVERY_KEY = """
tokens_after_s = 60
events_max_age_days = 30
events_max_count = 5000
history_max_age_days = 90
history_max_count = 1000
mail_max_age_days = 7
dead_letters_max_age_days = 365
dead_letters_max_count = 10000
idle_conversations_days = 180
files_max_age_days = 400
blobs_after_days = 0.5
schedules_after_days = 14
ledgers_after_days = 60
sweep_every_s = 30
"""
POLICY = RetentionPolicy(
    tokens_after_s=60.0,
    events=TopicRetention(30 * DAY_S, 5000),
    history=TopicRetention(90 * DAY_S, 1000),
    mail=TopicRetention(7 * DAY_S),
    dead_letters=TopicRetention(365 * DAY_S, 10_000),
    idle_conversations_s=180 * DAY_S,
    files_max_age_s=400 * DAY_S,
    blobs_after_s=DAY_S / 2,
    schedules_after_s=14 * DAY_S,
    ledgers_after_s=60 * DAY_S,
    sweep_every_s=30.0,
)


def test_every_key_reaches_the_policy_from_the_file_and_from_the_environment(tmp_path: Path) -> None:
    pairs = dict(line.split(" = ") for line in EVERY_KEY.strip().splitlines())
    variables = {f"MAGENT2_RETENTION_{name.upper()}": value for name, value in pairs.items()}

    in_file = read_roster(tmp_path, f"{AGENT}[retention]{EVERY_KEY}").retention
    by_environment = parse_retention_variables(Settings.read(variables).retention)

    assert set(pairs) == set(RETENTION_NAMES)
    assert retention_policy(in_file) == retention_policy(by_environment) == POLICY


def test_nothing_but_tokens_and_unnamed_blobs_is_removed_by_default() -> None:
    assert retention_policy(RetentionValues()) == RetentionPolicy(tokens_after_s=600.0, blobs_after_s=7 * DAY_S)


def test_off_means_never_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "magent2.toml"
    file.write_text(f'{AGENT}[retention]\ntokens_after_s = "off"\nevents_max_count = 200\nblobs_after_days = 2\n')

    by_file = choose_team((), "demo", file, environ={}).registry.roster.retention
    variables = {"MAGENT2_RETENTION_TOKENS_AFTER_S": "90", "MAGENT2_RETENTION_EVENTS_MAX_COUNT": "off"}
    over = choose_team((), "demo", file, environ=variables).registry.roster.retention

    assert retention_policy(by_file) == RetentionPolicy(
        None, events=TopicRetention(max_count=200), blobs_after_s=2 * DAY_S
    )
    assert retention_policy(over) == RetentionPolicy(90.0, blobs_after_s=2 * DAY_S)


@pytest.mark.parametrize("names", [(), ("Dev",)])
def test_a_team_without_a_file_has_the_retention_of_the_environment(names: tuple[str, ...]) -> None:
    team = choose_team(names, "demo", environ={"MAGENT2_RETENTION_SWEEP_EVERY_S": "5"})

    assert team.registry.roster.retention == {"sweep_every_s": 5}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("tokens_after = 5", "retention: unknown key 'tokens_after'; did you mean 'tokens_after_s'?"),
        ("tokens_after_s = 0", "retention.tokens_after_s: must be at least 1, not 0"),
        ('tokens_after_s = "never"', "retention.tokens_after_s: must be a number or 'off', not 'never'"),
        ("events_max_count = 1.5", "retention.events_max_count: must be a whole number, not 1.5"),
        ("events_max_count = 99", "retention.events_max_count: must be at least 100, not 99"),
        ('sweep_every_s = "off"', "retention.sweep_every_s: must be a number, not 'off'"),
    ],
)
def test_a_bad_value_in_the_file_is_refused_with_what_to_write(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(RosterError) as refusal:
        read_roster(tmp_path, f"{AGENT}[retention]\n{line}")

    assert fault in str(refusal.value)


def test_a_bad_variable_is_refused_by_name() -> None:
    with pytest.raises(SettingsError) as refusal:
        parse_retention_variables({"tokens_after_s": "soon", "token_after_s": "1", "blobs_after_days": "0"})

    assert "MAGENT2_RETENTION_TOKENS_AFTER_S must be a number or 'off', not 'soon'" in str(refusal.value)
    assert "did you mean MAGENT2_RETENTION_TOKENS_AFTER_S?" in str(refusal.value)
    assert "MAGENT2_RETENTION_BLOBS_AFTER_DAYS must be at least 0.001, not 0" in str(refusal.value)
