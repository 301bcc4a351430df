"""The files in deploy/: systemd accepts the units, they are hardened, and their commands exist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magent2.cli.main import cli
from tests.support.forked_processes import ROOT

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
