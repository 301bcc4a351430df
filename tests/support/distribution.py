"""Builds the wheel of this tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.forked_processes import ROOT

BUILD_DEADLINE_S = 120.0


def build_wheel(folder: Path) -> Path:
    """Build a wheel into a folder and return its path.

    The build needs the packages that set up the environment of this clone, so it works without network, too.
    """
    build = [str(ROOT / "scripts" / "uv"), "build", "--quiet", "--wheel", "--out-dir", str(folder)]
    if subprocess.run([*build, "--offline"], cwd=ROOT, check=False, timeout=BUILD_DEADLINE_S).returncode != 0:
        subprocess.run(build, cwd=ROOT, check=True, timeout=BUILD_DEADLINE_S)
    (wheel,) = folder.glob("*.whl")
    return wheel
