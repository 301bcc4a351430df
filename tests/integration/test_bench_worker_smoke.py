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
    "drain_per_s",
    "drain_ratio",
    "sdk_overhead_ratio",
    "sdk_overhead_paced_ratio",
    "journal_ms_per_turn",
    "rss_mb_1000_conversations",
    "sqlite_drain_per_s",
    "sqlite_drain_ratio",
    "sqlite_sdk_overhead_ratio",
    "sqlite_journal_ms_per_turn",
}


@pytest.mark.soak
@pytest.mark.redis
def test_the_benchmark_of_the_worker_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.worker", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= KEYS
    assert all(math.isfinite(value) for value in figures.values())
