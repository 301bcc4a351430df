"""A new user with an empty home folder who runs the commands of the README and compose.yaml."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.support.forked_processes import ROOT
from tests.support.http_client.service import answers_at
from tests.support.waiting import eventually

BIN = f"{Path(sys.executable).parent}/"
START_DEADLINE_S = 180.0  # a cold start imports the SDK, which takes long on a busy machine
END_DEADLINE_S = 180.0
OUR_BIN = re.compile(r"(?<![\w/])\.venv/bin/")  # as the README writes it; not the end of a longer path
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:[-+])([^}]*))?\}")


def section(page: str, title: str) -> list[tuple[str, str]]:
    """The blocks of code under a title, as (language, text)."""
    text = (ROOT / page).read_text()
    start = text.index(f"## {title}\n")
    end = text.find("\n## ", start + 1)
    return BLOCK.findall(text[start : end if end > 0 else len(text)])


@dataclass(frozen=True, slots=True)
class ComposeService:
    """A service of compose.yaml."""

    command: list[str]
    environment: dict[str, str]
    health: list[str]
    mounts: dict[str, str]  # target → source

    @classmethod
    def read(cls, name: str, **given: str) -> ComposeService:
        """Read a service as compose does in a shell with the given variables."""
        found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][name]
        environment = {
            key: given.get(key) if value is None else _filled_in(str(value), given)
            for key, value in found.get("environment", {}).items()
        }
        mounts = [_filled_in(mount, given).split(":") for mount in found.get("volumes", [])]
        return cls(
            [_filled_in(word, given) for word in found["command"]],
            {key: value for key, value in environment.items() if value is not None},
            [_filled_in(word, given) for word in found.get("healthcheck", {}).get("test", ["CMD"])[1:]],
            {target: source for source, target, *_ in mounts},
        )


def _filled_in(text: str, given: Mapping[str, str]) -> str:
    """Substitute `${NAME}`, `${NAME:-default}`, `${NAME:+replacement}` and `$$` as compose does."""

    def value(match: re.Match[str]) -> str:
        name, operator, word = match.groups()
        if name is None:
            return "$"
        if operator == ":+":
            return word if given.get(name) else ""
        return given.get(name) or word or ""

    return VARIABLE.sub(value, text)


class RunningProgram:
    """A program that runs until it is stopped; its output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def said(self) -> str:
        return self._output.read_text()

    def await_words(self, words: str) -> str:
        """Wait until the output contains these words; return the output."""

        def there() -> bool:
            assert self.process.poll() is None or words in self.said, f"it ended: {self.said}"
            return words in self.said

        eventually(there, START_DEADLINE_S)
        return self.said

    def await_gateway(self, port: str) -> None:
        """Wait until the gateway answers on this port; fail with the output if the program has exited."""

        def answers() -> bool:
            assert self.process.poll() is None, f"it ended: {self.said}"
            return answers_at(int(port))

        eventually(answers, START_DEADLINE_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_DEADLINE_S)


class NewUser:
    """Runs programs with a minimal environment, each in its own process group, which is killed after the test.

    Programs of the package are those in `programs`, by default those of this environment.
    """

    def __init__(self, home: Path, programs: str = BIN, **variables: str) -> None:
        self.home = home
        self.programs = programs
        self.variables = {
            "PATH": os.defpath,
            "HOME": str(home),
            "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),
            **variables,
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], **variables: str) -> RunningProgram:
        output = self.home.with_name(f"output-{len(self._started)}")
        with output.open("wb") as file:
            process = subprocess.Popen(
                [self._found(command[0]), *command[1:]],
                cwd=ROOT,
                env={**self.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        return RunningProgram(process, output)

    def enter(self, lines: str, stdin: str = "", **variables: str) -> str:
        """Run lines of shell as the documentation shows them; return their output."""
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", OUR_BIN.sub(self.programs, lines)],
            cwd=ROOT,
            env={**self.variables, **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=END_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _found(self, program: str) -> str:
        """The path of a program of the package; `python` is this Python."""
        name = program.removeprefix(".venv/bin/")
        if name == "sh":
            return "/bin/sh"
        return sys.executable if name == "python" else f"{self.programs}{name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_DEADLINE_S)
