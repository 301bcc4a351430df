"""`erase`: a person's data, for good. It opens the bus itself; no gateway is needed."""

from __future__ import annotations

import sys

import click

from magent2.cli.options import Failure, bus_option, json_option
from magent2.cli.printing import say, say_json
from magent2.cli.transfer import opened


@click.command(epilog="Example: magent2 erase user:ann --yes")
@click.argument("user", metavar="USER")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bus_option
@json_option
def erase(user: str, yes: bool, bus: str | None, as_json: bool) -> None:
    """Erase a user: keys, conversations, and what the directory knows of them.

    It cannot be undone. USER is the name in the scope of their keys, as user:ann.
    """
    from magent2.bus.flow import run
    from magent2.directory.erasure import erasing_user

    if not yes:
        _confirm(user)
    with opened(bus) as (engine, where):
        erased = run(engine, erasing_user(user))
    if not erased:
        raise Failure(
            f"there is no key, no conversation and no entry of {user!r} on {where};"
            " 'magent2 keys ls' and 'magent2 users ls' show names"
        )
    if as_json:
        say_json({"user": user, "keys": erased.keys, "conversations": erased.conversations, "entries": erased.entries})
    else:
        counts = f"{len(erased.conversations)} conversations, {len(erased.keys)} keys and {len(erased.entries)} entries"
        say(f"erased {counts} of {user}")


def _confirm(user: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("erasing cannot be undone; say --yes")
    click.confirm(f"Erase all conversations, keys and entries of {user} for good?", abort=True, err=True)
