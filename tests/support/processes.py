"""Child processes for tests: start, communicate, freeze, resume, kill, and always reap."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from tests.support.forked_processes import PYCACHE, start_module

MESSAGE_DEADLINE_S = 120.0  # a child without a report for this long is stuck; one that starts cold imports for long
REAP_DEADLINE_S = 30.0
WRITE_MAX_S = 2.0  # a write that takes longer waits for a frozen process
STDERR_SHOWN_BYTES = 4000
PR_SET_PDEATHSIG = 1  # Linux prctl: the signal that a child gets when its parent ends


class ChildSilent(AssertionError):
    """A child has exited, or has not reported in time."""


class Child:
    """A Python module run as a process. It gets its settings as JSON, and reports in lines of JSON."""

    def __init__(self, module: str, settings: Mapping[str, Any], *, cold: bool = False) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 - lives as long as the child
        given = [json.dumps(dict(settings))]
        self._process = start_module(module, given, _environment(), stderr=self._errors, cold=cold)
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ended = False
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a killed child may leave half a line
                self._inbox.put(json.loads(line))
        self._inbox.put(None)

    def next_report(self, timeout_s: float = MESSAGE_DEADLINE_S) -> dict[str, Any]:
        """Wait for the next report; raise `ChildSilent` if the child has exited or the time is over."""
        try:
            message = None if self._ended else self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildSilent(f"child {self.pid} said nothing for {timeout_s:g} s: {self.errors()}") from None
        if message is None:
            self._ended = True
            raise ChildSilent(f"child {self.pid} ended: {self.errors()}")
        return message

    def reports_so_far(self) -> list[dict[str, Any]]:
        """All unread reports, without waiting."""
        messages = []
        while not self._ended and not self._inbox.empty():
            message = self._inbox.get_nowait()
            self._ended = message is None
            if message is not None:
                messages.append(message)
        return messages

    def final_reports(self) -> list[dict[str, Any]]:
        """All reports of a child that has ended."""
        self._reader.join(REAP_DEADLINE_S)
        return self.reports_so_far()

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ChildSilent(f"child {self.pid} ended: {self.errors()}")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._process.kill()
        self._process.wait(REAP_DEADLINE_S)

    def finish(self) -> int:
        """Wait for a child that ends by itself; its exit code."""
        return self._process.wait(REAP_DEADLINE_S)

    def errors(self) -> str:
        # The child writes at the offset of the same open file, so this must not move it.
        file = self._errors.fileno()
        start = max(0, os.fstat(file).st_size - STDERR_SHOWN_BYTES)
        return os.pread(file, STDERR_SHOWN_BYTES, start).decode(errors="replace") or "nothing on stderr"

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(REAP_DEADLINE_S)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()
        self._errors.close()


def freeze_between_commits(child: Child, engine: Engine) -> None:
    """Freeze a process while it does not write: one that is frozen in a commit holds the lock of a SQLite file."""
    with ThreadPoolExecutor(1) as threads:
        while True:
            child.freeze()
            write = threads.submit(engine.call, Append(records=(NewRecord("note:frozen", {}),)))
            if wait([write], WRITE_MAX_S).done:
                return
            child.resume()
            write.result()


class ProcessGroup:
    """Child processes that are killed when the context ends."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def spawn(self, module: str, **settings: Any) -> Child:
        return self._keep(Child(module, settings))

    def spawn_cold(self, module: str, **settings: Any) -> Child:
        """Start a new program instead of a fork with preloaded modules."""
        return self._keep(Child(module, settings, cold=True))

    def _keep(self, child: Child) -> Child:
        self._children.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.close()


def _environment() -> dict[str, str]:
    # A killed child cannot report coverage. With cached bytecode a child starts twice as fast.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"PYTHONPYCACHEPREFIX": PYCACHE}


# --- inside a child ----------------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """The settings from the parent. From here on this child ends with its parent."""
    if sys.platform == "linux":  # on other systems a frozen child would survive its parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def report(**facts: Any) -> None:
    """Send one line of JSON to the parent in a single write."""
    os.write(1, json.dumps(facts).encode() + b"\n")


def await_line() -> str:
    """Wait for the next line of the parent; exit if the parent is gone."""
    line = sys.stdin.readline()
    if not line:
        os._exit(1)
    return line.strip()


def end_with_parent() -> None:
    """Exit when the parent ends, so that no child outlives its test."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while True:
        await_line()
