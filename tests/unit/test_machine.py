from __future__ import annotations

import json
import subprocess
import sys

import pytest

from magent2.errors import SettingsError
from magent2.loop import GC_THRESHOLDS
from magent2.machine import check_system

SOFT, HARD = 200, 900
PROGRAM = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD}))
from magent2.telemetry import setup_logging
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.server import fit_open_files
setup_logging("json", "info")
limits = fit_open_files(GatewayLimits())
print(resource.getrlimit(resource.RLIMIT_NOFILE), limits.connections_max)
"""


@pytest.mark.parametrize("system", ["win32", "cygwin"])
def test_windows_is_told_of_wsl(system: str) -> None:
    with pytest.raises(SettingsError, match="on Windows use WSL"):
        check_system(system)


@pytest.mark.parametrize("system", ["linux", "darwin", "freebsd14"])
def test_unix_is_fine(system: str) -> None:
    check_system(system)


def test_a_process_takes_all_open_files_that_it_may_have_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == f"({HARD}, {HARD}) {HARD - 128}"
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["text"], line["limit"], line["hard_limit"]) for line in told] == [("open files", HARD, HARD)]


def test_the_garbage_collector_of_a_server_leaves_out_what_is_imported() -> None:
    program = (
        "import gc, magent2.loop as loop\nasync def show(): print(gc.get_freeze_count() > 0, gc.get_threshold())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + "loop.run_on_loop(show())"], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == f"True {GC_THRESHOLDS}"
