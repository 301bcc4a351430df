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
    "send_ratio",
    "send_per_s",
    "send_raw_per_s",
    "latency_ratio",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "tokens_per_s",
    "tokens_ratio",
    "resume_ratio",
    "sdk_http_tokens_per_s",
    "sdk_http_ratio",
}
TOLD_BY_LINUX = {"idle_cpu_percent", "rss_per_client_kb"}


@pytest.mark.soak
@pytest.mark.redis
@pytest.mark.postgres
def test_the_benchmark_of_the_service_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.run", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    promised = KEYS | TOLD_BY_LINUX if sys.platform == "linux" else KEYS
    assert figures.keys() >= promised | {f"{engine}_{name}" for engine in ("sqlite", "postgres") for name in promised}
    assert all(math.isfinite(value) for value in figures.values())
