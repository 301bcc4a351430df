"""Printing: data to stdout, everything else to stderr. Colours only at a terminal, and never with NO_COLOR.

Every command prints with these functions, which remove control characters. A test checks that nothing else prints.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass

import click

from magent2.terminal import clean_json, clean_line, clean_text


def print_data(text: str = "", *, newline: bool = True, bold: bool = False, dim: bool = False) -> None:
    """Print data to stdout, without control characters. It may be piped into a program that shows it at a terminal."""
    shown = clean_text(text)
    if (bold or dim) and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        shown = click.style(shown, bold=bold or None, dim=dim or None)
    click.echo(shown, nl=newline)


def print_note(text: str) -> None:
    """Print progress, a hint, a notice or an error to stderr, without control characters."""
    click.echo(clean_text(text), err=True)


def print_json(value: object) -> None:
    """Print a value as one line of JSON. Dataclasses and pydantic models become objects."""
    click.echo(json_line(value))


def json_line(value: object) -> str:
    """Return a value as JSON in which control characters are escaped."""
    return clean_json(json.dumps(value, ensure_ascii=False, default=_json_value))


def _json_value(value: object) -> object:
    if hasattr(value, "model_dump"):  # a schema of the HTTP API; pydantic is not imported for commands without one
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in aligned columns. The last column is not padded."""
    cells = [list(titles), *([clean_line(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print_data(line, dim=number == 0)


def shortened(text: str | None, limit: int = 60) -> str:
    """Text on one line, cut to this many characters."""
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
