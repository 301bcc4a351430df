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
TIMEOUT_S = 120.0
KEYS = {
    f"{engine}_{figure}"
    for engine in ("redis", "sqlite")
    for figure in ("flooded_p50_ratio", "flooded_p95_ratio", "flooded_p50_ms", "flooded_p95_ms", "slow_runs")
}


@pytest.mark.soak
@pytest.mark.redis
def test_the_benchmark_of_fairness_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.fairness", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= KEYS
    assert all(math.isfinite(value) for value in figures.values())
