"""The benchmark runs to its end and prints its JSON object; the figures are not checked."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tests.support import browser
from tests.support.forked_processes import ROOT

TIMEOUT_S = 300.0

pytestmark = [pytest.mark.browser, pytest.mark.soak]


def test_the_benchmark_of_the_page_ends_with_one_line_of_json() -> None:
    browser.skip_if_excluded()
    browser.chromium()
    command = [sys.executable, "-m", "bench.page", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() == {"stream_main_thread_ms"}
    assert all(math.isfinite(value) for value in figures.values())
