"""The commands `token`, `keys` and `erase`: access to a gateway, and the data of a user."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from magent2.cli.options import (
    CommandFailed,
    bus_exists,
    bus_option,
    confirm,
    json_option,
    open_bus,
    printable_bus_url,
    run_on_bus,
    yes_option,
)
from magent2.cli.output import print_data, print_json, print_note, print_table
from magent2.errors import Magent2Error, SettingsError
from magent2.settings import Settings
from magent2.token import TokenFile

if TYPE_CHECKING:
    from magent2.bus.interface import Engine
    from magent2.directory.keys import ApiKey

ERASE_WAIT_MAX_S = 600.0  # how long `erase --wait` waits for readers and for other processes


# --- the token of this machine's gateway


@click.group()
def token() -> None:
    """Show or replace the token of the gateway."""


@token.command()
def show() -> None:
    """Print the token that clients on this machine use."""
    settings = Settings.read()
    found = settings.token or TokenFile.within(settings.data_dir).read()
    if found is None:
        raise CommandFailed(
            f"there is no token in {settings.data_dir}; create one with 'magent2 serve' or 'magent2 token rotate'"
        )
    print_data(found)


@token.command()
@bus_option
def rotate(bus: str | None) -> None:
    """Replace the token in the data folder. The old token is invalid at once, on all gateways of the bus."""
    from magent2.directory.keys import replace_token, token_key_id

    settings = Settings.read()
    file = TokenFile.within(settings.data_dir)
    try:
        old = file.read()
    except SettingsError:  # replacing it is the way to repair it
        old = None
    new = file.rotate()
    try:
        if bus_exists(bus):
            run_on_bus(bus, replace_token, old, new, file.label)
    except Magent2Error as error:
        key = f"; then run 'magent2 keys revoke {token_key_id(old)}'" if old is not None else ""
        print_note(
            f"note: other gateways of this bus may still accept the old token, because of this error: {error}{key}"
        )
    print_data(new)
    if settings.token is not None:
        print_note("note: MAGENT2_TOKEN is set; gateways and clients started from here use it instead of the file")


# --- API keys, on the bus


@click.group()
def keys() -> None:
    """Create, list and revoke the API keys of a gateway.

    These commands open the bus itself and need no gateway.
    """


@keys.command(epilog="Examples: magent2 keys create --scope user:ann --label laptop; magent2 keys create --scope admin")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    required=True,
    help="'user:NAME' acts as that user in their own conversations; 'admin' may do everything. Can be repeated.",
)
@click.option("--label", metavar="TEXT", default="", help="Note to recognise the key by.")
@bus_option
@json_option
def create(scopes: tuple[str, ...], label: str, bus: str | None, as_json: bool) -> None:
    """Create an API key and print it. It is shown only once."""
    from magent2.directory.keys import create_key

    made = run_on_bus(bus, create_key, scopes, label)
    if as_json:
        print_json({**_key_json(made.key), "key": made.text})
        return
    print_note(
        f"created key {made.key.id} for {', '.join(made.key.scopes)} in {printable_bus_url(bus)};"
        " store it now, it is not shown again"
    )
    print_data(made.text)


@keys.command("ls")
@bus_option
@json_option
def list_(bus: str | None, as_json: bool) -> None:
    """List the API keys, oldest first."""
    from magent2.directory.keys import list_keys

    found = run_on_bus(bus, list_keys)
    if as_json:
        print_json([_key_json(key) for key in found])
        return
    rows = [(key.id, ",".join(key.scopes), _created_at(key), _revoked_at(key) or "-", key.label) for key in found]
    print_table(("ID", "SCOPES", "CREATED", "REVOKED", "LABEL"), rows)


@keys.command()
@click.argument("key_id", metavar="ID")
@bus_option
@json_option
def revoke(key_id: str, bus: str | None, as_json: bool) -> None:
    """Revoke an API key. Gateways reject it at once and close its open streams."""
    from magent2.directory.keys import revoke_key

    revoked = run_on_bus(bus, revoke_key, key_id)
    if as_json:
        print_json(_key_json(revoked))
    else:
        print_note(f"revoked key {revoked.id}")


def _key_json(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "scopes": list(key.scopes),
        "label": key.label,
        "created_at": _created_at(key),
        "revoked_at": _revoked_at(key),
    }


def _created_at(key: ApiKey) -> str:
    return key.created_at.isoformat(timespec="seconds")


def _revoked_at(key: ApiKey) -> str | None:
    return None if key.revoked_at is None else key.revoked_at.isoformat(timespec="seconds")


# --- the data of a user, on the bus


@click.command(epilog="Example: magent2 erase user:ann --yes --wait")
@click.argument("user", metavar="USER")
@click.option("--wait", is_flag=True, help="Return when the storage holds no deleted text any more.")
@yes_option
@bus_option
@json_option
def erase(user: str, wait: bool, yes: bool, bus: str | None, as_json: bool) -> None:
    """Erase a user: API keys, conversations and directory entries.

    This cannot be undone. USER is the name in the scope of their keys, as user:ann. The command opens the bus itself
    and needs no gateway. It also removes the deleted text from the storage. If it cannot do so at once, it says so, and
    the next process that uses the log does it. With --wait it tries until the text is gone, for up to ten minutes.
    """
    from magent2.bus.log import run_sync
    from magent2.directory.erasure import erase_user

    if not yes:
        confirm(f"Erase all conversations, API keys and directory entries of {user}? This cannot be undone.")
    with open_bus(bus) as opened:
        erased = run_sync(opened, erase_user, user)
        is_scrubbed = _scrub(opened, wait) if erased or wait else False
    if not erased:
        raise CommandFailed(
            f"no API key, conversation or directory entry of {user!r} on {printable_bus_url(bus)};"
            " list names with 'magent2 keys ls' and 'magent2 users ls'"
            f"{'; the storage holds no deleted text any more' if is_scrubbed else ''}"
        )
    if as_json:
        found = {
            "keys": erased.keys,
            "conversations": erased.conversations,
            "schedules": erased.schedules,
            "entries": erased.entries,
            "webhooks": erased.webhooks,
        }
        print_json({"user": user, **found, "scrubbed": is_scrubbed})
        return
    print_data(
        f"erased {len(erased.conversations)} conversations,"
        f"{f' {len(erased.schedules)} schedules,' if erased.schedules else ''} {len(erased.keys)} API keys"
        f" and {len(erased.entries)} directory entries of {user}"
    )
    if erased.webhooks:
        print_note(f"erased {len(erased.webhooks)} webhooks of {user}")
    if is_scrubbed:
        print_note("the storage holds no deleted text any more")
    else:
        print_note(
            "the storage still holds deleted text: it is in use, or too large to be rewritten beside other work;"
            " to remove the text, run the command again with --wait"
        )


def _scrub(bus: Engine, wait: bool) -> bool:
    """Remove deleted text from the storage; return whether all of it is gone. `wait`: try again until it is."""
    from magent2.bus.operations import Scrub
    from magent2.bus.scrub import SCRUB_RETRY_S

    deadline = time.monotonic() + ERASE_WAIT_MAX_S
    while not bus.call(Scrub(any_size=wait)):
        if not wait:
            return False
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"the user is erased, but the storage has been in use for {ERASE_WAIT_MAX_S:g} s and still holds"
                " deleted text; end long reads and backups, then run the command again"
            )
        time.sleep(SCRUB_RETRY_S)
    return True
