"""The benchmark runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import postgres_server
from tests.support.redis_server import skip_if_left_out

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
KEYS = {
    "redis_publish_ratio",
    "redis_sync_publish_ratio",
    "redis_wake_ratio",
    "redis_wake_2000_ratio",
    "sqlite_publish_ratio_64",
    "sqlite_publish_ratio_512",
    "seek_ratio_sqlite",
    "seek_ratio_redis",
    "lanes_per_s_redis",
    "lanes_per_s_sqlite",
    "memory_publish_per_s",
    "bytes_per_record_memory",
    "bytes_per_record_sqlite",
    "bytes_per_record_redis",
    "bytes_per_conversation_redis",
}


POSTGRES_KEYS = {
    "postgres_publish_ratio_64",
    "postgres_publish_ratio_512",
    "postgres_publish_ratio_4proc",
    "postgres_publish_ratio_4proc_standby",
    "postgres_wake_ratio",
    "lanes_per_s_postgres",
    "bytes_per_record_postgres",
    "seek_ratio_postgres",
}


def figures_of(*options: str, skip: str = "") -> dict[str, float]:
    """Run the benchmark with small counts, and return what its last line says."""
    command = [sys.executable, "-m", "bench.bus", "--quick", *options]
    environment = {**os.environ, "SKIP": skip}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.redis
def test_the_benchmark_of_the_log_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    figures = figures_of(skip="postgres")

    assert figures.keys() >= KEYS
    assert all(value > 0 for value in figures.values())


@pytest.mark.soak
@pytest.mark.postgres
def test_the_benchmark_of_the_log_on_postgresql_ends_with_one_line_of_json() -> None:
    postgres_server.skip_if_left_out()
    figures = figures_of("--only", "postgres")

    assert figures.keys() >= POSTGRES_KEYS
    assert all(value > 0 for value in figures.values())
