"""Ports for servers of tests."""

from __future__ import annotations

import subprocess
import sys

from tests.support.forked_processes import ROOT
from tests.support.ports import BLOCK

PROCESSES = 3
CHOOSE = "from tests.support.ports import quiet_port; print(*(quiet_port() for _ in range({})), flush=True); input()"


def test_processes_that_run_at_the_same_time_never_choose_the_same_port() -> None:
    """A port is bound only when its server starts. Until then nothing but the choice keeps it from others."""
    program = [sys.executable, "-c", CHOOSE.format(BLOCK // 2)]
    processes = [
        subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    chosen = [process.stdout.readline().split() for process in processes if process.stdout is not None]
    for process in processes:
        process.communicate("\n")

    assert len({port for ports in chosen for port in ports}) == PROCESSES * (BLOCK // 2)
