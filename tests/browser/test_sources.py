"""The page's sources: their own tests, their types, what they are pinned to."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.browser import skip_if_left_out
from tests.support.forked import ROOT

pytestmark = pytest.mark.browser

WEB = ROOT / "web"
TYPES = WEB / "src" / "api" / "schema.d.ts"
TIMEOUT_S = 240.0


@pytest.fixture(autouse=True)
def _left_out() -> None:
    skip_if_left_out()


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A tool of the page, run by the Node of the environment."""
    command = [str(ROOT / ".venv" / "bin" / "node"), *arguments]
    return subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_page_passes_its_own_tests() -> None:
    done = node("node_modules/vitest/vitest.mjs", "run", "--reporter=dot")

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_strictly_typed() -> None:
    done = node("node_modules/tsc/bin/tsc", "--noEmit")

    assert done.returncode == 0, done.stdout


def test_the_types_are_those_of_the_api(tmp_path: Path) -> None:
    made = tmp_path / "schema.d.ts"
    done = subprocess.run(
        [str(ROOT / "scripts" / "page-types"), str(made)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert made.read_text() == TYPES.read_text(), "the API has changed: make page-types"


def test_what_the_page_is_made_of_is_pinned_and_names_no_host() -> None:
    package: Mapping[str, Mapping[str, str]] = json.loads((WEB / "package.json").read_text())
    lock = json.loads((WEB / "package-lock.json").read_text())

    versions = {**package["dependencies"], **package["devDependencies"], **package["overrides"]}
    assert all(re.fullmatch(r"(?:npm:[\w-]+@)?\d+\.\d+\.\d+", version) for version in versions.values()), versions
    assert not any("resolved" in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)
