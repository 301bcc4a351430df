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
    """Erase a user: their keys and all their conversations.

    It cannot be undone. USER is the name in the scope of their keys, as user:ann.
    """
    from magent2.bus.flow import run
    from magent2.directory.erasure import erasing_user

    if not yes:
        _confirm(user)
    with opened(bus) as (engine, where):
        erased = run(engine, erasing_user(user))
    if not erased:
        raise Failure(f"there is no key and no conversation of {user!r} on {where}; 'magent2 keys ls' shows names")
    if as_json:
        say_json({"user": user, "keys": erased.keys, "conversations": erased.conversations})
    else:
        say(f"erased {len(erased.conversations)} conversations and {len(erased.keys)} keys of {user}")


def _confirm(user: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("erasing cannot be undone; say --yes")
    click.confirm(f"Erase all conversations and keys of {user} for good?", abort=True, err=True)
