"""`token`: what lets a client into the gateway of this machine."""

from __future__ import annotations

import click

from magent2.cli.options import Failure
from magent2.cli.printing import note, say
from magent2.settings import Settings
from magent2.token import TokenFile


@click.group()
def token() -> None:
    """Show or replace the gateway's token."""


@token.command()
def show() -> None:
    """Print the token that clients on this machine use."""
    settings = Settings.read()
    found = settings.token or TokenFile.within(settings.data_dir).read()
    if found is None:
        raise Failure(
            f"there is no token in {settings.data_dir} yet; 'magent2 serve' or 'magent2 token rotate' makes one"
        )
    say(found)


@token.command()
def rotate() -> None:
    """Replace the token in the data folder: whoever has the old one is locked out."""
    settings = Settings.read()
    say(TokenFile.within(settings.data_dir).rotate())
    if settings.token is not None:
        note("note: MAGENT2_TOKEN is set and goes before the file, for gateways and clients started from here")
