"""`connectors`, `outbox`: where messages go besides the session page, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import bus_option, json_option
from magent2.cli.people import told
from magent2.cli.printing import note, say_json, say_table, shortened

if TYPE_CHECKING:
    from magent2.bus.flow import Flow
    from magent2.connectors.outbox import Item
    from magent2.directory.connectors import Registration


@click.group()
def connectors() -> None:
    """Places where users are reached."""


@connectors.command(
    epilog="Example: magent2 connectors add hook --kind webhook --url https://example.com/in --secret-file secret.txt"
)
@click.argument("connector")
@click.option("--kind", type=click.Choice(["console", "webhook"]), required=True)
@click.option("--url", help="Of a webhook.")
@click.option("--secret-file", type=click.File(), help="What a webhook's requests are signed with; '-' reads it.")
@click.option("--takes-key", is_flag=True, help="The receiver knows an Idempotency-Key again.")
@click.option("--allow-private", is_flag=True, help="It may be at an address that is not public, and without TLS.")
@bus_option
@json_option
def add(connector: str, kind: str, bus: str | None, as_json: bool, **given: Any) -> None:
    """Set a connector up; workers relay to it from then on."""
    from magent2.connectors.builtin import capabilities_of
    from magent2.directory.connectors import registering

    secret = given.pop("secret_file")
    config = {name: value for name, value in given.items() if value}
    if secret is not None:
        config["secret"] = secret.read().strip()
    made = told(bus, registering(connector, kind, capabilities_of(kind, config), config))
    say_json(_connector(made)) if as_json else note(f"connector {made.id} is set up")


@connectors.command("ls")
@bus_option
@json_option
def list_connectors(bus: str | None, as_json: bool) -> None:
    """List the connectors. Their secrets are not shown."""
    from magent2.directory.connectors import listing_connectors

    found = [_connector(known) for known in told(bus, listing_connectors())]
    if as_json:
        say_json(found)
        return
    rows = [
        (known["id"], known["kind"], " ".join(name for name, can in known["capabilities"].items() if can))
        for known in found
    ]
    say_table(("CONNECTOR", "KIND", "CAN"), rows)


@connectors.command("rm")
@click.argument("connector")
@bus_option
def remove(connector: str, bus: str | None) -> None:
    """Take a connector away; what waits in its outbox is not sent."""
    from magent2.directory.connectors import unregistering

    told(bus, unregistering(connector))
    note(f"connector {connector} is gone")


def _connector(known: Registration) -> dict[str, Any]:
    from dataclasses import asdict

    return {"id": known.id, "kind": known.kind, "capabilities": asdict(known.capabilities)}


@click.group()
def outbox() -> None:
    """Messages to places outside, and what became of them."""


@outbox.command("ls")
@click.argument("connector", required=False)
@click.option("--state", help="Only what is waiting, begun, sent, dead, unknown or dropped.")
@bus_option
@json_option
def list_items(connector: str | None, state: str | None, bus: str | None, as_json: bool) -> None:
    """List messages, oldest first."""
    found = [_item(item) for item in told(bus, _items(connector)) if state in (None, item.state)]
    if as_json:
        say_json(found)
        return
    rows = [
        (item["connector"], item["id"], item["target"] or "-", item["state"], item["tries"], shortened(item["reason"]))
        for item in found
    ]
    say_table(("CONNECTOR", "ID", "TO", "STATE", "TRIED", "REASON"), rows)


def _items(connector: str | None) -> Flow[list[Item]]:
    from magent2.connectors.outbox import reading_outbox
    from magent2.directory.connectors import reading_roll

    names = (yield from reading_roll()) if connector is None else [connector]
    items: list[Item] = []
    for name in names:
        items += yield from reading_outbox(name)
    return items


@outbox.command()
@click.argument("connector")
@click.argument("item")
@bus_option
def retry(connector: str, item: str, bus: str | None) -> None:
    """Send a message again that is dead, or whose outcome nobody knows."""
    from magent2.connectors.outbox import retrying_item

    told(bus, retrying_item(connector, item))
    note(f"message {item} is sent again")


@outbox.command()
@click.argument("connector")
@click.argument("item")
@bus_option
def drop(connector: str, item: str, bus: str | None) -> None:
    """Give such a message up for good."""
    from magent2.connectors.outbox import dropping_item

    told(bus, dropping_item(connector, item))
    note(f"message {item} is dropped")


def _item(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "connector": item.message.connector,
        "target": item.message.target,
        "conversation_id": item.message.conversation_id,
        "state": item.state,
        "tries": item.tries,
        "reason": item.reason,
        "receipt": item.receipt,
    }
