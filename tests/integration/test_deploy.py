"""The files in deploy/ and compose.yaml: systemd accepts the units, they are hardened, and their commands exist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from magent2.cli.main import cli
from tests.support.forked_processes import ROOT
from tests.support.http_client.new_user import ComposeService

UNITS = ("magent2-gateway.service", "magent2-worker@.service")
INSTALLED = "/opt/magent2/bin/magent2"
EXPOSURE_MAX = 20  # tenths, as `systemd-analyze security` counts: 0 nothing, 100 everything


def settings_of(unit: str) -> dict[str, list[str]]:
    """Every setting of a unit, with all its values."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "deploy" / unit).read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """The units as they are, but for where this test's program lies."""
    here = Path(sys.executable).with_name("magent2")
    paths = [tmp_path / unit for unit in UNITS]
    for path in paths:
        path.write_text((ROOT / "deploy" / path.name).read_text().replace(INSTALLED, str(here)))
    return paths


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")
def test_systemd_accepts_the_units_and_rates_them_as_hardened(installed: list[Path]) -> None:
    verify = ["systemd-analyze", "verify", "--man=no", *map(str, installed)]
    told = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")

    for unit in installed:
        command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)]
        judged = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PAGER": ""})
        assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_runs_an_existing_command_as_an_unprivileged_user(unit: str) -> None:
    settings = settings_of(unit)
    (line,) = settings["ExecStart"]
    program, *words = line.split()

    assert program == INSTALLED
    assert cli.main([*words, "--help"], standalone_mode=False) == 0
    assert settings["User"] == ["magent2"]
    assert settings["NoNewPrivileges"] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["StateDirectory"] == ["magent2"]


def test_a_worker_unit_has_a_longer_stop_timeout_than_its_drain() -> None:
    from magent2.mail.lane_loop import LEAVE_MAX_S
    from magent2.worker.service import DRAIN_S

    (stop,) = settings_of("magent2-worker@.service")["TimeoutStopSec"]

    assert int(stop.removesuffix("s")) > DRAIN_S + LEAVE_MAX_S


def test_a_stop_of_the_worker_unit_signals_only_the_worker() -> None:
    assert settings_of("magent2-worker@.service")["KillMode"] == ["mixed"]


# --- compose.yaml; tests/acceptance/test_service.py runs its processes


def worker_arguments(tmp_path: Path, **given: str) -> list[str]:
    """The arguments that the command of the worker passes to `magent2`, which is replaced by a program that prints."""
    service = ComposeService.read("worker", **given)
    (tmp_path / "magent2").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "magent2").chmod(0o755)
    done = subprocess.run(
        service.command,
        env={**service.environment, "PATH": f"{tmp_path}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_the_worker_of_compose_uses_the_demo_model_without_a_key_and_the_real_one_with_a_key(tmp_path: Path) -> None:
    assert worker_arguments(tmp_path) == ["worker", "--model", "demo"]
    assert worker_arguments(tmp_path, OPENAI_API_KEY="any") == ["worker"]  # pragma: allowlist secret


def test_compose_passes_the_variables_of_a_model_on_and_leaves_out_a_url_that_is_not_set() -> None:
    bare = ComposeService.read("worker").environment
    given = ComposeService.read("worker", OPENAI_BASE_URL="http://models.example/v1", AGENT_MODEL="small").environment

    assert "OPENAI_BASE_URL" not in bare
    assert (given["OPENAI_BASE_URL"], given["AGENT_MODEL"]) == ("http://models.example/v1", "small")


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_compose_mounts_the_folder_of_a_team_or_an_empty_volume(name: str) -> None:
    declared = yaml.safe_load((ROOT / "compose.yaml").read_text())["volumes"]
    without, own = ComposeService.read(name), ComposeService.read(name, MAGENT2_TEAM="./team")

    assert without.environment["MAGENT2_CONFIG"] == ""
    assert without.mounts["/team"] in declared
    assert (own.mounts["/team"], own.environment["MAGENT2_CONFIG"]) == ("./team", "/team/magent2.toml")


def test_docker_accepts_compose_yaml() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "compose", "version"], check=False).returncode != 0:
        pytest.skip("docker compose is not installed")
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=ROOT, check=True)
