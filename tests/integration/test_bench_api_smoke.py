"""The benchmark runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import skip_if_left_out

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0
KEYS = {
    "api_events_per_s",
    "api_events_ratio",
    "message_ratio",
    "message_ms",
    "response_ratio",
    "response_ms",
    "auth_ratio",
    "auth_ms",
}


@pytest.mark.soak
@pytest.mark.redis
def test_the_benchmark_of_the_api_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.api", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= KEYS | {f"sqlite_{name}" for name in KEYS}
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
