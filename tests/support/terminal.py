"""Runs the `magent2` command at a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.support.command_line import CommandLine
from tests.support.forked_processes import ROOT
from tests.support.waiting import eventually

DEADLINE_S = 60.0  # each program is a cold start, which takes long on a busy machine
CTRL_C, CTRL_D = "\x03", "\x04"
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
        """Press Ctrl-C and read the screen up to these words.

        The program must be asleep in the call that the signal ends, not about to enter it: `input` would then wait for
        another key, and a read from a socket for more data.
        """
        eventually(self._sleeps, DEADLINE_S)
        self.type(CTRL_C)
        self.read_until(words)

    def _sleeps(self) -> bool:
        """Whether the main thread of the program waits for something. Only Linux can tell."""
        if sys.platform != "linux":
            return True
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._ours)
