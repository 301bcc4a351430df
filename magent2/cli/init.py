"""`init`: a file of agents and a file of tools to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from magent2.cli.options import Failure
from magent2.cli.printing import note, say

# What is written → what it is copied from.
STARTER = {"magent2.toml": "magent2.toml", "tools.py": "tools.py.txt"}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def init(folder: Path, force: bool) -> None:
    """Write a file of agents, magent2.toml, and a file of tools, tools.py.

    FOLDER is the one you are in, unless you say otherwise.
    """
    for path in write_starter(folder, force=force):
        say(str(path))
    note(f"next: 'magent2 agents check {folder / 'magent2.toml'}'")


def write_starter(folder: Path, *, force: bool = False) -> list[Path]:
    """Write both files or, when one is there already and must not be written over, neither."""
    paths = [folder / name for name in STARTER]
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise Failure(f"{' and '.join(there)} would be written over; --force does that")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _write(path, starter_text(path.name), force)
    except OSError as error:
        raise Failure(f"{error.filename} cannot be written: {error.strerror}") from error
    return paths


def starter_text(name: str) -> str:
    return (files("magent2.roster") / "starter" / STARTER[name]).read_text()


def _write(path: Path, text: str, force: bool) -> None:
    with path.open("w" if force else "x") as file:
        file.write(text)
