"""The commands `backup`, `export`, `import` and `sweep`, which work on the whole log.

They open the bus itself and need no gateway.
"""

from __future__ import annotations

from pathlib import Path

import click

from magent2.cli.options import bus_option, config_option, json_option, open_bus, printable_bus_url, run_on_bus
from magent2.cli.output import print_data, print_json, print_note, print_table

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


@click.command(epilog="Examples: magent2 sweep --dry-run; magent2 sweep --config magent2.toml --json")
@config_option
@bus_option
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@json_option
def sweep(config: Path | None, bus: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove what the retention policy no longer keeps.

    The policy is [retention] of the agents file and MAGENT2_RETENTION_*. Workers sweep by themselves; this command does
    it at once, also beside them. It opens the bus itself and needs no gateway.
    """
    import os
    import time
    from dataclasses import asdict

    from magent2.roster.agents_file import load_agents_file
    from magent2.roster.registry import EnvironmentOverride
    from magent2.roster.retention import RetentionValues, retention_policy
    from magent2.sessions.sweep import sweep_log
    from magent2.settings import Settings
    from magent2.tools.default_tools import known_tools

    override = EnvironmentOverride.of(Settings.read())
    in_file = RetentionValues()
    if config is not None:
        in_file = load_agents_file(config, known_tools(), os.environ).roster.retention
    policy = retention_policy({**in_file, **override.retention})
    print_note(f"{'checking' if dry_run else 'sweeping'} {printable_bus_url(bus)}")
    counts = asdict(run_on_bus(bus, sweep_log, policy, round(time.time() * 1000), dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, **counts})
        return
    visited = counts.pop("visited")
    print_table(("WOULD REMOVE" if dry_run else "REMOVED", "NUMBER"), counts.items())
    print_note(f"{visited} conversations were visited")


def _print_result(file: Path, rows: int, sha256: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "rows": rows, "sha256": sha256})
    else:
        print_data(f"{file} {rows} rows sha256 {sha256}")
