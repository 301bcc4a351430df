"""The benchmark runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
KEYS = {
    "send_full_500_per_s",
    "send_full_100k_per_s",
    "send_floor_ratio",
    "has_pending_us",
    "consume_own_us",
    "duplicate_send_us",
    "inject_100_templated_ms",
    "bytes_per_message",
    "bytes_per_delivery",
}


def test_the_benchmark_of_steering_ends_with_one_line_of_json() -> None:
    command = [sys.executable, "-m", "bench.steer", "--quick", "--only", "context"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() == KEYS
    assert all(math.isfinite(value) for value in figures.values())
