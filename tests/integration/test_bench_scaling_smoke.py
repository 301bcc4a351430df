"""The benchmark of costs runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import postgres_server
from tests.support.redis_server import skip_if_left_out

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0
ENGINES = ("sqlite", "redis", "postgres")


@pytest.mark.soak
@pytest.mark.redis
@pytest.mark.postgres
def test_the_benchmark_of_costs_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    postgres_server.skip_if_left_out()
    command = [sys.executable, "-m", "bench.scaling", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    processes = ("gateway", "worker", "server")
    assert figures.keys() >= {f"{engine}_{process}_message_us" for engine in ENGINES for process in processes}
    assert figures.keys() >= {f"{engine}_conversation_disk_bytes" for engine in ENGINES}
