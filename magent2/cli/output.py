"""Printing: data to stdout, everything else to stderr. Colours only at a terminal, and never with NO_COLOR."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass

import click


def print_data(text: str = "", *, newline: bool = True) -> None:
    """Print data to stdout."""
    click.echo(text, nl=newline)


def print_note(text: str) -> None:
    """Print progress, a hint or a notice to stderr."""
    click.echo(text, err=True)


def print_json(value: object) -> None:
    """Print a value as one line of JSON. Dataclasses and pydantic models become objects."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_json_value))


def _json_value(value: object) -> object:
    if hasattr(value, "model_dump"):  # a schema of the HTTP API; pydantic is not imported for commands without one
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in aligned columns. The last column is not padded."""
    cells = [list(titles), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print_data(dim(line) if number == 0 else line)


def printable(text: str) -> str:
    """Text on one line, with control characters replaced by spaces: they could change the state of the terminal."""
    return "".join(" " if _is_control(character) else character for character in text)


def safe(text: str) -> str:
    """Text for stdout. At a terminal control characters are removed, but for line breaks and tabs."""
    if not sys.stdout.isatty():
        return text
    return "".join(character for character in text if character in "\n\t" or not _is_control(character))


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def uses_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def dim(text: str) -> str:
    return click.style(text, dim=True) if uses_colour() else text


def bold(text: str) -> str:
    return click.style(text, bold=True) if uses_colour() else text


def shortened(text: str | None, limit: int = 60) -> str:
    """Text on one line, cut to this many characters."""
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
