"""`backup`, `export`, `import`: the log as a file. These open the bus itself; no gateway is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.options import bus_option, json_option
from magent2.cli.printing import note, say, say_json

if TYPE_CHECKING:
    from magent2.bus.interface import Engine

FILE = click.Path(dir_okay=False, path_type=Path)


@contextmanager
def opened(url: str | None) -> Iterator[tuple[Engine, str]]:
    """The bus, and its URL as it may be printed."""
    from magent2.bus.connect import connect, default_url, hide_password
    from magent2.settings import Settings

    settings = Settings.read()
    where = url or default_url(settings)
    if where.strip() == "memory://":
        raise click.UsageError("memory:// is a new, empty log in every process; name a file or a server with --bus")
    bus = connect(where, settings)
    try:
        yield bus, hide_password(where)
    finally:
        bus.close()


@click.command(epilog="A SQLite log becomes a SQLite file, which --bus can open; a Redis log an export.")
@click.argument("file", type=FILE)
@bus_option
@json_option
def backup(file: Path, bus: str | None, as_json: bool) -> None:
    """Copy the log to a file to go back to."""
    from magent2.bus import transfer

    with opened(bus) as (engine, where):
        note(f"copying {where}")
        transfer.backup(engine, file)
    size = file.stat().st_size
    if as_json:
        say_json({"file": str(file), "bytes": size})
    else:
        say(f"{file} {size} bytes")


@click.command()
@click.argument("file", type=FILE)
@bus_option
@json_option
def export(file: Path, bus: str | None, as_json: bool) -> None:
    """Write the log to a file that any engine can import."""
    from magent2.bus.transfer import export_log

    with opened(bus) as (engine, where):
        note(f"exporting {where}")
        done = export_log(engine, file)
    _tell(file, done.rows, done.sha256, as_json)


@click.command("import")
@click.argument("file", type=FILE)
@bus_option
@json_option
def import_(file: Path, bus: str | None, as_json: bool) -> None:
    """Load an export into an empty log."""
    from magent2.bus.transfer import check_export, import_log

    note(f"checking {file}")
    check_export(file)
    with opened(bus) as (engine, where):
        note(f"importing into {where}")
        done = import_log(engine, file)
    _tell(file, done.rows, done.sha256, as_json)


def _tell(file: Path, rows: int, sha256: str, as_json: bool) -> None:
    if as_json:
        say_json({"file": str(file), "rows": rows, "sha256": sha256})
    else:
        say(f"{file} {rows} rows sha256 {sha256}")
