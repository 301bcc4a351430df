"""The wheel contains the whole package, with the page, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from sysconfig import get_paths
from zipfile import ZipFile

import pytest

from tests.support.command_line import CommandLine
from tests.support.distribution import build_wheel
from tests.support.forked_processes import ROOT

DEADLINE_S = 180.0  # for new programs, which import everything themselves


def test_make_dist_builds_the_page_first_and_then_both_distributions() -> None:
    plan = subprocess.run(
        ["make", "-n", "-W", "web/index.html", "dist"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert 0 < plan.index("vite build") < plan.index("scripts/uv build --quiet --out-dir dist")


def test_a_gateway_without_the_page_says_how_to_get_it(tmp_path: Path) -> None:
    with ZipFile(build_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if not name.startswith("magent2/web/")])
    with CommandLine(tmp_path / "data") as commands:
        server = subprocess.Popen(
            [sys.executable, "-m", "magent2.cli", "gateway", "--port", "0"],
            cwd=tmp_path,
            env=commands.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said, _, _ = commands.greeting(server)
        finally:
            server.terminate()
            server.communicate(timeout=DEADLINE_S)

    (line,) = (line for line in said.splitlines() if line.startswith("page     "))
    assert "'make web'" in line
    assert "'make dist'" in line


@pytest.mark.browser  # as those tests, it needs the built page
def test_the_wheel_has_every_file_of_the_package_and_the_page(tmp_path: Path) -> None:
    with ZipFile(build_wheel(tmp_path)) as wheel:
        packed = set(wheel.namelist())
        (entry_points,) = (name for name in packed if name.endswith("entry_points.txt"))
        commands = wheel.read(entry_points).decode()

    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "magent2").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "magent2/web/index.html" in package
    assert {name for name in packed if ".dist-info/" not in name} == package
    assert "magent2 = magent2.cli.main:main" in commands


# --- an installation without the extra for PostgreSQL


def installation_without(tmp_path: Path, *left_out: str) -> dict[str, str]:
    """Variables for a Python that finds this tree and its dependencies, except for these packages."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(left_out) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return {"PYTHONPATH": f"{ROOT}:{packages}", "PATH": os.environ["PATH"], "MAGENT2_DATA_DIR": str(tmp_path / "data")}


def list_keys_on_postgres(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command that opens the log and imports little. A worker would first import the SDK for seconds."""
    url = "postgresql://ann:open-sesame@127.0.0.1:1/log"  # pragma: allowlist secret
    command = ["-m", "magent2.cli", "keys", "ls", "--bus", url]
    return subprocess.run(
        [sys.executable, "-S", *command], env=variables, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_without_the_extra_a_postgres_url_is_refused_with_the_line_that_installs_it(tmp_path: Path) -> None:
    done = list_keys_on_postgres(installation_without(tmp_path, "psycopg"))

    assert done.returncode == 2, done.stderr
    assert "pip install 'magent2-runtime[postgres]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "open-sesame" not in done.stderr


def test_without_libpq_a_postgres_url_is_refused_with_the_same_line(tmp_path: Path) -> None:
    variables = installation_without(tmp_path, "psycopg_binary", "psycopg_c")

    done = list_keys_on_postgres({**variables, "PSYCOPG_IMPL": "binary"})  # the machine may have a libpq of its own

    assert done.returncode == 2, done.stderr
    assert "pip install 'magent2-runtime[postgres]'" in done.stderr
    assert "No module named 'psycopg_binary'" in done.stderr
    assert "Traceback" not in done.stderr
