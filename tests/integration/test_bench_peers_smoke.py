"""The comparison runs to its end and prints its JSON object; the figures are not checked.

It installs the other frameworks into `.cache/peers/`, so it is a soak test. tests/unit/bench/ has the quick tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.__main__ import AFTER_KILL, SPEED
from bench.peers.contestants import CONTESTANTS
from tests.support.redis_server import skip_if_left_out

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1_800.0


@pytest.mark.soak
@pytest.mark.redis
def test_the_comparison_ends_with_one_line_of_json() -> None:
    skip_if_left_out()
    command = [sys.executable, "-m", "bench.peers", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    names = [contestant.name.replace("-", "_") for contestant in CONTESTANTS]
    assert figures.keys() == {f"{name}_{figure}" for name in names for figure, _ in (*SPEED, *AFTER_KILL)}
    assert figures["magent2_finished_alone"] == figures["magent2_killed_runs"]
    assert figures["magent2_model_calls_twice"] is not None
    assert figures["magent2_messages_lost"] == 0
