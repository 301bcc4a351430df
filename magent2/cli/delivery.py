"""The commands `dead`, `connectors` and `outbox`: messages that were not delivered, and the ways out of the system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

import click

from magent2.cli.options import GatewayOptions, bus_option, gateway_options, json_option, open_bus, run_on_bus
from magent2.cli.output import print_json, print_note, print_table, shortened

if TYPE_CHECKING:
    from magent2.client import Client, DeadLetterInfo
    from magent2.connectors.outbox import OutboxItem, OutboxState
    from magent2.directory.connectors import ConnectorRegistration

STATES: tuple[OutboxState, ...] = ("waiting", "begun", "sent", "dead", "unknown", "dropped")


# --- dead letters, through the gateway


@click.group()
def dead() -> None:
    """Manage dead letters: messages that no agent could answer."""


@dead.command("ls")
@click.option("--agent", metavar="NAME", help="List only dead letters of this agent.")
@json_option
@gateway_options
def list_dead(agent: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List dead letters, oldest first."""
    with gateway.connect() as client:
        found = list(_read_dead(client, agent))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            letter.agent,
            letter.seq,
            letter.conversation_id,
            letter.attempts,
            shortened(letter.reason),
            shortened(letter.text, 40),
        )
        for letter in found
    ]
    print_table(("AGENT", "SEQ", "CONVERSATION", "TRIED", "REASON", "TEXT"), rows)


def _read_dead(client: Client, agent: str | None) -> Iterator[DeadLetterInfo]:
    after: int | None = None
    while True:
        page = client.dead(agent, after)
        yield from page.letters
        after = page.next
        if after is None:
            return


@dead.command("retry")
@click.argument("agent")
@click.argument("seq", type=click.IntRange(min=1))
@gateway_options
def retry_dead(agent: str, seq: int, gateway: GatewayOptions) -> None:
    """Send a dead letter to its agent again.

    'magent2 dead ls' lists AGENT and SEQ.
    """
    with gateway.connect() as client:
        client.retry_dead(agent, seq)
    print_note(f"sent dead letter {seq} to {agent} again")


@dead.command("drop")
@click.argument("agent")
@click.argument("seq", type=click.IntRange(min=1))
@gateway_options
def drop_dead(agent: str, seq: int, gateway: GatewayOptions) -> None:
    """Remove a dead letter from the list.

    'magent2 dead ls' lists AGENT and SEQ.
    """
    with gateway.connect() as client:
        client.drop_dead(agent, seq)
    print_note(f"dropped dead letter {seq} of {agent}")


# --- connectors, on the bus


@click.group()
def connectors() -> None:
    """Manage connectors, which deliver messages to users.

    These commands open the bus itself and need no gateway.
    """


@connectors.command(
    epilog="Example: magent2 connectors add hook --kind webhook --url https://example.com/in --secret-file secret.txt"
)
@click.argument("connector")
@click.option("--kind", type=click.Choice(["console", "webhook"]), required=True, help="Kind of connector.")
@click.option("--url", metavar="URL", help="URL of the webhook.")
@click.option(
    "--secret-file", type=click.File(), help="File with the secret that signs the requests of a webhook; '-' is stdin."
)
@click.option("--takes-key", is_flag=True, help="The receiver honours the Idempotency-Key header.")
@click.option("--allow-private", is_flag=True, help="Allow a URL with a private address, or without TLS.")
@bus_option
@json_option
def add(
    connector: str,
    kind: str,
    url: str | None,
    secret_file: IO[str] | None,
    takes_key: bool,
    allow_private: bool,
    bus: str | None,
    as_json: bool,
) -> None:
    """Add a connector. Workers deliver to it from then on."""
    from magent2.connectors.builtin import capabilities_of
    from magent2.directory.connectors import register_connector

    given = {"url": url, "takes_key": takes_key, "allow_private": allow_private}
    config = {name: value for name, value in given.items() if value}
    if secret_file is not None:
        config["secret"] = secret_file.read().strip()
    added = run_on_bus(bus, register_connector, connector, kind, capabilities_of(kind, config), config)
    print_json(_connector_json(added)) if as_json else print_note(f"added connector {added.id}")


@connectors.command("ls")
@bus_option
@json_option
def list_connectors(bus: str | None, as_json: bool) -> None:
    """List the connectors, without their secrets."""
    from magent2.directory.connectors import list_connectors

    found = run_on_bus(bus, list_connectors)
    if as_json:
        print_json([_connector_json(connector) for connector in found])
        return
    rows = [
        (
            connector.id,
            connector.kind,
            " ".join(name for name, supported in asdict(connector.capabilities).items() if supported),
        )
        for connector in found
    ]
    print_table(("CONNECTOR", "KIND", "CAN"), rows)


@connectors.command("rm")
@click.argument("connector")
@bus_option
def remove(connector: str, bus: str | None) -> None:
    """Remove a connector. Messages that wait in its outbox are not sent."""
    from magent2.directory.connectors import unregister_connector

    run_on_bus(bus, unregister_connector, connector)
    print_note(f"removed connector {connector}")


def _connector_json(connector: ConnectorRegistration) -> dict[str, object]:
    return {"id": connector.id, "kind": connector.kind, "capabilities": asdict(connector.capabilities)}


# --- the outbox, on the bus


@click.group()
def outbox() -> None:
    """Manage messages that go out through connectors.

    These commands open the bus itself and need no gateway.
    """


@outbox.command("ls")
@click.argument("connector", required=False)
@click.option("--state", type=click.Choice(STATES), help="List only messages in this state.")
@bus_option
@json_option
def list_items(connector: str | None, state: str | None, bus: str | None, as_json: bool) -> None:
    """List the messages of CONNECTOR, or of all connectors, oldest first."""
    from magent2.bus.log import run_sync
    from magent2.connectors.outbox import read_outbox
    from magent2.directory.connectors import list_connector_ids

    with open_bus(bus) as engine:
        names = run_sync(engine, list_connector_ids) if connector is None else [connector]
        every = [item for name in names for item in run_sync(engine, read_outbox, name)]
    found = [item for item in every if state in (None, item.state)]
    if as_json:
        print_json([_item_json(item) for item in found])
        return
    rows = [
        (item.message.connector, item.id, item.message.target or "-", item.state, item.tries, shortened(item.reason))
        for item in found
    ]
    print_table(("CONNECTOR", "ID", "TO", "STATE", "TRIED", "REASON"), rows)


@outbox.command("retry")
@click.argument("connector")
@click.argument("item")
@bus_option
def retry_item(connector: str, item: str, bus: str | None) -> None:
    """Send a message again that is dead, or whose outcome is unknown.

    ITEM is the id of the message; 'magent2 outbox ls' lists them.
    """
    from magent2.connectors.outbox import retry_item

    run_on_bus(bus, retry_item, connector, item)
    print_note(f"message {item} is sent again")


@outbox.command("drop")
@click.argument("connector")
@click.argument("item")
@bus_option
def drop_item(connector: str, item: str, bus: str | None) -> None:
    """Drop a message that is dead, or whose outcome is unknown.

    ITEM is the id of the message; 'magent2 outbox ls' lists them.
    """
    from magent2.connectors.outbox import drop_item

    run_on_bus(bus, drop_item, connector, item)
    print_note(f"dropped message {item}")


def _item_json(item: OutboxItem) -> dict[str, object]:
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
