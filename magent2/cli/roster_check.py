"""`agents check`: whether a file of agents can be used, before anybody uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.options import json_option
from magent2.cli.printing import note, printable, say, say_json, say_table

if TYPE_CHECKING:
    from magent2.roster.spec import Roster

IMPORT_MAX_S = 30.0
LOAD = """
import sys
from pathlib import Path
from magent2.tools.registry import load_tool
load_tool(sys.argv[1], sys.argv[2], Path.cwd())
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong with a file; the roster, when it could be read."""

    file: str
    faults: tuple[str, ...]
    roster: Roster | None = None


@click.command("check")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--no-import", is_flag=True, help="Do not look whether the tools can be imported.")
@json_option
def check(file: Path, no_import: bool, as_json: bool) -> int:
    """Check a file of agents and name every fault.

    Exit code 1 when there is one. The modules of [tools] are imported, each in a process of its own.
    """
    report = check_file(file, import_tools=not no_import)
    if as_json:
        agents = list(report.roster.agent_names()) if report.roster else []
        say_json({"ok": not report.faults, "file": report.file, "faults": report.faults, "agents": agents})
    else:
        _print(report)
    return 1 if report.faults else 0


def check_file(path: Path, *, import_tools: bool = True, environ: Mapping[str, str] | None = None) -> Report:
    """Read a file of agents as a server would; the environment fills in `${NAME}`."""
    from magent2.errors import RosterError
    from magent2.roster.agents_file import load_agents_file
    from magent2.tools.default_tools import known_tools

    try:
        roster = load_agents_file(path, known_tools(), os.environ if environ is None else environ).roster
    except RosterError as error:
        return Report(str(path), error.faults)
    faults = tuple(_load_faults(roster, path.absolute().parent)) if import_tools else ()
    return Report(str(path), faults, roster)


def _load_faults(roster: Roster, folder: Path) -> Iterator[str]:
    for name, place in roster.tools.items():
        fault = _load_fault(name, place, folder)
        if fault is not None:
            yield f"tools.{name}: {fault}"


def _load_fault(name: str, place: str, folder: Path) -> str | None:
    """What a stranger's module says when it is loaded from the folder of the file; None when all is well."""
    try:
        done = subprocess.run(  # noqa: S603  the file's owner asks for it
            [sys.executable, "-c", LOAD, name, place],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=IMPORT_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{place!r} takes more than {IMPORT_MAX_S:g} s"
    if done.returncode == 0:
        return None
    words = next(reversed(done.stderr.strip().splitlines()), f"ends with code {done.returncode}")
    return f"{place!r}: {words}"


def _print(report: Report) -> None:
    for fault in report.faults:
        say(printable(fault))
    if report.faults:
        count = len(report.faults)
        note(f"{report.file}: {count} {'fault' if count == 1 else 'faults'}")
    elif report.roster is not None:
        rows = [
            (
                scenario.id,
                agent.name,
                _part(scenario.root, scenario.supervisor, agent.name),
                " ".join(agent.tools) or "-",
            )
            for scenario in report.roster.scenarios.values()
            for agent in scenario.agents.values()
        ]
        say_table(("SCENARIO", "AGENT", "PART", "TOOLS"), rows)
        note(f"{report.file}: no faults")


def _part(root: str, supervisor: str | None, name: str) -> str:
    return {root: "root", supervisor: "supervisor"}.get(name, "-")
