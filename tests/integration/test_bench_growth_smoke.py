"""The benchmark runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.growth import GOALS
from tests.support.redis_server import skip_if_left_out

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0
OF_REDIS_ONLY = {"sqlite_turn_server_full_ratio", "sqlite_message_memory_ratio"}


@pytest.mark.soak
@pytest.mark.redis
def test_the_benchmark_of_growth_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.growth", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= GOALS.keys() - OF_REDIS_ONLY
    assert all(math.isfinite(value) for value in figures.values())
