"""A process that is forked from a warm one is as one that was started: what it finds, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.forked_processes import ROOT, start_module

PROBE = "tests.support.process_probe"
DEADLINE_S = 30.0
VARIABLES = {"PATH": os.defpath, "ONLY": "this"}


def probe(*arguments: str, cold: bool = False) -> subprocess.Popen[str]:
    return start_module(PROBE, arguments, VARIABLES, text=True, cold=cold)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_it_finds_its_arguments_its_environment_its_folder_and_its_files(cold: bool) -> None:
    process = probe("show", "a b", cold=cold)
    out, err = process.communicate("from outside\n", DEADLINE_S)

    found = json.loads(out)
    assert (process.returncode, err) == (0, "shown\n")
    assert found["arguments"] == ["show", "a b"]
    assert found["variables"].items() >= VARIABLES.items()
    assert set(found["variables"]) - {"LC_CTYPE"} == set(VARIABLES)
    assert (found["folder"], found["stdin"], found["pid"]) == (str(ROOT), "from outside\n", process.pid)
    assert (found["parent"], found["files"]) == (os.getpid(), [0, 1, 2])


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize(
    ("way", "code", "words"),
    [
        ("exit", 7, "threads have ended\ngoodbye\n"),
        ("raise", 1, "RuntimeError: raised\n"),
        ("complain", 1, "complained\n"),
    ],
)
def test_it_ends_as_a_program_ends(way: str, code: int, words: str, cold: bool) -> None:
    process = probe(way, cold=cold)
    out, err = process.communicate("", DEADLINE_S)

    assert process.returncode == code
    assert (out + err).endswith(words)


def test_a_signal_ends_it_and_its_end_is_known_here() -> None:
    process = probe("wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    assert process.poll() is None

    process.send_signal(signal.SIGKILL)

    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="is started anew elsewhere")
def test_it_has_what_is_slow_to_import() -> None:
    warm, _ = probe("show").communicate("", DEADLINE_S)
    cold, _ = probe("show", cold=True).communicate("", DEADLINE_S)

    assert (json.loads(warm)["warm"], json.loads(cold)["warm"]) == (True, False)
