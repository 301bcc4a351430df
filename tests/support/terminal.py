"""Runs the `magent2` command at a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

from tests.support.command_line import CommandLine
from tests.support.forked_processes import ROOT

DEADLINE_S = 20.0
CTRL_C, CTRL_D = "\x03", "\x04"
PRESSES_MAX, PRESS_AGAIN_S = 5, 2.0
STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

# The terminal becomes the program's own, so that Ctrl-C is a signal.
AT_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from magent2.cli.main import main
main()
"""


class Terminal:
    """A program at a real terminal."""

    def __init__(self, magent2: CommandLine, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", AT_TERMINAL, *arguments],
            cwd=ROOT,
            env={**magent2.variables, "TERM": "xterm", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, words: str) -> str:
        """Read the screen up to these words and return what came before them."""
        end = time.monotonic() + DEADLINE_S
        while words not in self._seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {words!r} in {self._seen!r}"
            self._seen = STEERING.sub("", self._seen + os.read(self._ours, 65_536).decode(errors="replace"))
        before, _, self._seen = self._seen.partition(words)
        return before

    def interrupt(self, words: str) -> None:
        """Press Ctrl-C, and again if it came just as `input` began, which then waits for another key."""
        for _ in range(PRESSES_MAX):
            self.type(CTRL_C)
            if select.select([self._ours], [], [], PRESS_AGAIN_S)[0]:
                break
        self.read_until(words)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._ours)
