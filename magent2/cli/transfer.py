"""The commands `backup`, `export` and `import`: the log as a file. They open the bus itself and need no gateway."""

from __future__ import annotations

from pathlib import Path

import click

from magent2.cli.options import bus_option, json_option, open_bus, printable_bus_url
from magent2.cli.output import print_data, print_json, print_note

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(epilog="The backup of a SQLite bus is a SQLite file, which --bus can open; that of Redis is an export.")
@click.argument("file", type=FILE)
@bus_option
@json_option
def backup(file: Path, bus: str | None, as_json: bool) -> None:
    """Back up the log to a file.

    This command opens the bus itself and needs no gateway.
    """
    from magent2.bus import transfer

    with open_bus(bus) as engine:
        print_note(f"copying {printable_bus_url(bus)}")
        transfer.backup(engine, file)
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        print_data(f"{file} {size} bytes")


@click.command()
@click.argument("file", type=FILE)
@bus_option
@json_option
def export(file: Path, bus: str | None, as_json: bool) -> None:
    """Export the log to a file that every kind of bus can import.

    This command opens the bus itself and needs no gateway.
    """
    from magent2.bus.transfer import export_log

    with open_bus(bus) as engine:
        print_note(f"exporting {printable_bus_url(bus)}")
        done = export_log(engine, file)
    _print_result(file, done.rows, done.sha256, as_json)


@click.command("import")
@click.argument("file", type=FILE)
@bus_option
@json_option
def import_(file: Path, bus: str | None, as_json: bool) -> None:
    """Import an exported log into an empty bus.

    This command opens the bus itself and needs no gateway.
    """
    from magent2.bus.transfer import check_export, import_log

    print_note(f"checking {file}")
    check_export(file)
    with open_bus(bus) as engine:
        print_note(f"importing into {printable_bus_url(bus)}")
        done = import_log(engine, file)
    _print_result(file, done.rows, done.sha256, as_json)


def _print_result(file: Path, rows: int, sha256: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "rows": rows, "sha256": sha256})
    else:
        print_data(f"{file} {rows} rows sha256 {sha256}")
