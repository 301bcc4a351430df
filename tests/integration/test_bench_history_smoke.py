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
    *(f"miss_{part}{length}_sqlite_ms" for part in ("", "wait_") for length in (1000, 2000)),
    "miss_ratio_sqlite",
    "in_turn_sqlite_per_s",
}
MEMORY_KEYS = {"memory_before_mb", "memory_after_mb", "memory_idle_mb", "memory_idle_ratio"}


def test_the_benchmark_of_histories_ends_with_one_line_of_json() -> None:
    for part, keys in (("sqlite", KEYS), ("memory", MEMORY_KEYS)):
        command = [sys.executable, "-m", "bench.history", "--quick", "--only", part]

        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout.splitlines()[-1])
        assert figures.keys() == keys
        assert all(math.isfinite(value) for value in figures.values())
