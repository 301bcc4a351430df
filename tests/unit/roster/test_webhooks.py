"""The webhooks of an agents file and of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import RosterError, SettingsError
from magent2.models.webhook_events import WEBHOOK_EVENTS
from magent2.roster.registry import EnvironmentOverride
from magent2.settings import Settings
from magent2.worker.team_selection import choose_team
from tests.unit.roster.agents_files import AGENT, read_roster, write_agents_file

OPS = '[webhook.ops]\nurl = "https://example.com/hooks?key=hidden"\nsecret_env = "MAGENT2_SECRET_OPS"\n'


def test_a_file_describes_webhooks_of_the_deployment(tmp_path: Path) -> None:
    webhook = read_roster(tmp_path, f'{OPS}events = ["run.failed"]\n{AGENT}').webhooks["ops"]

    assert (webhook.name, webhook.events, webhook.config["secret_env"]) == (
        "ops",
        ("run.failed",),
        "MAGENT2_SECRET_OPS",
    )
    assert "hidden" not in repr(webhook)
    assert read_roster(tmp_path, OPS + AGENT).webhooks["ops"].events == WEBHOOK_EVENTS


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('[webhook.ops]\nurl = "https://example.com"\n', "webhook.ops: secret_env is missing"),
        (OPS + 'events = ["run.began"]\n', "webhook.ops.events.*must be one of 'run.finished'"),
        (OPS + "events = []\n", "webhook.ops: events is missing or empty"),
        (OPS + "event = 1\n", "webhook.ops: unknown key 'event'; did you mean 'events'"),
        (OPS.replace("https://", "http://"), "webhook.ops: .*must begin with https://"),
        (OPS.replace("example.com", "127.0.0.1"), "webhook.ops: the address is not public"),
        (OPS.replace("MAGENT2_SECRET_OPS", "OPENAI_API_KEY"), "webhook.ops: secret_env names .* begins with"),
    ],
)
def test_a_webhook_that_cannot_be_used_is_named_with_its_fault(tmp_path: Path, table: str, fault: str) -> None:
    with pytest.raises(RosterError, match=fault) as error:
        read_roster(tmp_path, table + AGENT)

    assert "hidden" not in str(error.value)


def test_the_environment_adds_one(tmp_path: Path) -> None:
    environ = {
        "MAGENT2_WEBHOOK_URL": "https://example.com/hooks",
        "MAGENT2_WEBHOOK_EVENTS": "run.failed, approval.requested",
        "MAGENT2_DATA_DIR": str(tmp_path),
    }
    bus = MemoryBus()

    team = choose_team(model="demo", file=write_agents_file(tmp_path, OPS + AGENT), environ=environ)

    assert set(team.webhooks()) == {"config.ops", "config.environment"}
    assert team.webhooks()["config.environment"].events == ("run.failed", "approval.requested")
    assert team.service(bus).webhooks.configured() == team.webhooks()
    assert set(choose_team(("one",), model="demo", environ=environ).webhooks()) == {"config.environment"}
    bus.close()


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"EVENTS": "run.failed"}, "MAGENT2_WEBHOOK_URL is missing"),
        ({"URL": "ftp://example.com"}, "MAGENT2_WEBHOOK_URL: a webhook URL must begin with https://"),
        (
            {"URL": "https://example.com", "EVENTS": "run.began"},
            "MAGENT2_WEBHOOK_EVENTS: there is no event 'run.began'",
        ),
        (
            {"URL": "https://example.com", "SECRET": "s3cret"},  # pragma: allowlist secret
            "MAGENT2_WEBHOOK_SECRET is not known",
        ),
        ({"URL": "http://127.0.0.1/", "ALLOW_PRIVATE": "maybe"}, "must be true or false, not 'maybe'"),
    ],
)
def test_variables_that_cannot_be_used_are_named(variables: dict[str, str], fault: str) -> None:
    settings = Settings.read({f"MAGENT2_WEBHOOK_{name}": value for name, value in variables.items()})

    with pytest.raises(SettingsError, match=fault) as error:
        EnvironmentOverride.of(settings)

    assert "s3cret" not in str(error.value)
    assert "example" not in repr(settings)
