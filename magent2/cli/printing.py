"""Data goes to stdout, all else to stderr; colours only where a person looks, and never with NO_COLOR."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click


def say(text: str = "", *, newline: bool = True) -> None:
    """Data."""
    click.echo(text, nl=newline)


def note(text: str) -> None:
    """Progress, hints, notices."""
    click.echo(text, err=True)


def say_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "model_dump"):  # a schema of the HTTP API; pydantic is not imported for commands without one
        return value.model_dump(mode="json")
    return str(value)


def say_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they must be; the last one is never padded."""
    cells = [list(titles), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        say(dim(line) if number == 0 else line)


def printable(text: str) -> str:
    """One line that cannot play tricks on a terminal."""
    return "".join(" " if _steers(sign) else sign for sign in text)


def safe(text: str) -> str:
    """Text as it is for a file or a pipe; for a terminal without the signs that steer one."""
    if not sys.stdout.isatty():
        return text
    return "".join(sign for sign in text if sign in "\n\t" or not _steers(sign))


def _steers(sign: str) -> bool:
    return sign < " " or "\x7f" <= sign <= "\x9f"


def is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def dim(text: str) -> str:
    return click.style(text, dim=True) if is_coloured() else text


def bold(text: str) -> str:
    return click.style(text, bold=True) if is_coloured() else text


def shortened(text: str | None, limit: int = 60) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
