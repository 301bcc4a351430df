"""The TypeScript sources of the page: unit tests, type check, generated types, pinned dependencies."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.browser import skip_if_excluded
from tests.support.forked_processes import ROOT

pytestmark = pytest.mark.browser

WEB = ROOT / "web"
TYPES = WEB / "src" / "api" / "schema.d.ts"
TIMEOUT_S = 240.0


@pytest.fixture(autouse=True)
def _skip_if_excluded() -> None:
    skip_if_excluded()


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Node program in `web/`."""
    command = [str(ROOT / ".venv" / "bin" / "node"), *arguments]
    return subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_unit_tests_of_the_page_pass() -> None:
    done = node("node_modules/vitest/vitest.mjs", "run", "--reporter=dot")

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_type_checks() -> None:
    done = node("node_modules/tsc/bin/tsc", "--noEmit")

    assert done.returncode == 0, done.stdout


def test_the_generated_types_match_the_api(tmp_path: Path) -> None:
    generated = tmp_path / "schema.d.ts"
    done = subprocess.run(
        [str(ROOT / "scripts" / "page-types"), str(generated)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert generated.read_text() == TYPES.read_text(), "the API has changed: run `make page-types`"


def test_dependencies_are_pinned_and_the_lock_file_names_no_host() -> None:
    package: Mapping[str, Mapping[str, str]] = json.loads((WEB / "package.json").read_text())
    lock = json.loads((WEB / "package-lock.json").read_text())

    versions = {**package["dependencies"], **package["devDependencies"], **package["overrides"]}
    assert all(re.fullmatch(r"(?:npm:[\w-]+@)?\d+\.\d+\.\d+", version) for version in versions.values()), versions
    assert not any("resolved" in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)
