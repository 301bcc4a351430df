"""Processes of a contestant: started in a session of their own, killed as a whole, and measured as a tree (Linux)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.http_client import Disconnected, HttpClient, Refused

START_LIMIT_S = 90.0
STOP_LIMIT_S = 10.0
LOOK_AGAIN_S = 0.05
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "TZ")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


class DidNotStart(RuntimeError):
    """A process ended or did not answer within START_LIMIT_S. The message has the end of its log."""


@dataclass(slots=True)
class Process:
    """A program with a log file. `user` is who runs it, if not the current user."""

    command: Sequence[str]
    folder: Path
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    _child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**kept, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )

    async def ready(self, client: HttpClient, path: str) -> None:
        """Wait until the path answers with less than 300. Raises DidNotStart."""
        deadline = time.monotonic() + START_LIMIT_S
        while not await _answers(client, path):
            if self._child is None or self._child.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart(f"{Path(self.command[0]).name} did not start: {self.last_words()}")
            await asyncio.sleep(LOOK_AGAIN_S)

    def kill(self) -> None:
        """SIGKILL, to the program and what it has started."""
        if self._child is not None:
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(STOP_LIMIT_S)
            self._child = None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_LIMIT_S."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_LIMIT_S)
        self.kill()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " | ".join(lines[-3:])[-600:] or "its log is empty"

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid


async def _answers(client: HttpClient, path: str) -> bool:
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await client.json("GET", path)
    except (Disconnected, Refused, TimeoutError):
        return False
    except ValueError:
        return True  # an answer that is not JSON
    return True


# --- resource use ------------------------------------------------------------------------------------------------


def tree_of(roots: Iterable[int]) -> set[int]:
    """These processes and all that they have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def cpu_s_of(roots: Iterable[int]) -> float:
    """User and system time of the tree, with that of its members that have ended."""
    ticks = sum(sum(map(int, fields[11:15])) for pid in tree_of(roots) if (fields := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb_of(roots: Iterable[int]) -> float:
    """Proportional set size of the tree: a page that several processes share counts once."""
    sizes = [_PSS.search(text) for pid in tree_of(roots) if (text := _read(Path(f"/proc/{pid}/smaps_rollup")))]
    return sum(int(found[1]) for found in sizes if found) / 1024


def _stat(pid: int) -> list[str]:
    """The fields after the name; none if the process has ended."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # the process has ended in the meantime
