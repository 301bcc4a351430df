"""`keys`: what lets other people into a gateway. These open the bus itself; no gateway is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import bus_option, json_option
from magent2.cli.printing import note, say, say_json, say_table
from magent2.cli.transfer import opened

if TYPE_CHECKING:
    from magent2.directory.keys import Key


@click.group()
def keys() -> None:
    """Make, list and revoke the API keys of a gateway."""


@keys.command(epilog="Examples: magent2 keys create --scope user:ann --label laptop; magent2 keys create --scope admin")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    required=True,
    help="'user:NAME': acts as that user, in conversations of their own; 'admin': everything. May be given twice.",
)
@click.option("--label", default="", help="What it is for, to know it again.")
@bus_option
@json_option
def create(scopes: tuple[str, ...], label: str, bus: str | None, as_json: bool) -> None:
    """Make a key and print it, this once."""
    from magent2.bus.flow import run
    from magent2.directory.keys import making_key

    with opened(bus) as (engine, where):
        made = run(engine, making_key(scopes, label))
    if as_json:
        say_json({**_shown(made.key), "key": made.text})
        return
    note(f"key {made.key.id} for {', '.join(made.key.scopes)} in {where}; it is not shown again")
    say(made.text)


@keys.command("ls")
@bus_option
@json_option
def list_(bus: str | None, as_json: bool) -> None:
    """List the keys, oldest first."""
    from magent2.bus.flow import run
    from magent2.directory.keys import listing_keys

    with opened(bus) as (engine, _):
        found = [_shown(key) for key in run(engine, listing_keys())]
    if as_json:
        say_json(found)
        return
    rows = [
        (key["id"], ",".join(key["scopes"]), key["created_at"], key["revoked_at"] or "-", key["label"]) for key in found
    ]
    say_table(("ID", "SCOPES", "CREATED", "REVOKED", "LABEL"), rows)


@keys.command()
@click.argument("key_id", metavar="ID")
@bus_option
@json_option
def revoke(key_id: str, bus: str | None, as_json: bool) -> None:
    """End a key: gateways refuse it at once, and its open streams end."""
    from magent2.bus.flow import run
    from magent2.directory.keys import revoking_key

    with opened(bus) as (engine, _):
        ended = run(engine, revoking_key(key_id))
    if as_json:
        say_json(_shown(ended))
    else:
        note(f"key {ended.id} is worth nothing any more")


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "scopes": list(key.scopes),
        "label": key.label,
        "created_at": key.created_at.isoformat(timespec="seconds"),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(timespec="seconds"),
    }
