"""The commands `dead`, `connectors` and `outbox`: messages that were not delivered, and the ways out of the system."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, TypeVar

import click

from magent2.cli.options import GatewayOptions, bus_option, gateway_options, json_option, open_bus, run_on_bus
from magent2.cli.output import print_json, print_note, print_table, shortened

if TYPE_CHECKING:
    from magent2.client import Client, DeadLetterInfo, DeadLettersResponse
    from magent2.connectors.outbox import OutboxItem, OutboxState
    from magent2.directory.connectors import ConnectorRegistration
    from magent2.models.api.administration import RefusedDeadLetter

R = TypeVar("R")

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
    else:
        print_dead(found)


def print_dead(letters: Iterable[DeadLetterInfo]) -> None:
    rows = [
        (
            letter.agent,
            letter.seq,
            letter.conversation_id,
            letter.attempts,
            shortened(letter.reason),
            shortened(letter.text, 40),
        )
        for letter in letters
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


SINCE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # seconds


class Since(click.ParamType[datetime]):
    """A time, or how long ago it was."""

    name = "WHEN"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            if text[-1:] in SINCE_UNITS and text[:-1].isdecimal():
                return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * SINCE_UNITS[text[-1]])
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a time; use 30m, 2h, 7d or 2026-09-21T14:00:00Z", param, ctx)


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """The dead letters that a command is about: one, or all that meet the conditions."""

    agent: str | None
    seq: int | None
    all_letters: bool
    of_agent: str | None
    since: datetime | None
    reason: str | None
    dry_run: bool
    as_json: bool

    @property
    def single(self) -> tuple[str, int] | None:
        """The one letter that the arguments name. Raises `UsageError` unless exactly one way of choosing is used."""
        by_condition = self.all_letters or self.of_agent or self.since or self.reason
        if (self.seq is not None) == bool(by_condition) or (self.agent is not None) != (self.seq is not None):
            raise click.UsageError("name one dead letter by AGENT and SEQ, or use --all, --agent, --since or --reason")
        if self.agent is None or self.seq is None:
            return None
        if self.dry_run:
            raise click.UsageError(
                "--dry-run needs --all, --agent, --since or --reason; 'magent2 dead ls' shows letters"
            )
        return self.agent, self.seq

    def print_single(self, agent: str, seq: int, note: str) -> None:
        """Print what happened to the one letter."""
        if self.as_json:
            print_json({"agent": agent, "seq": seq})
        print_note(note)

    def process(self, batches: Callable[..., Iterator[DeadLettersResponse]], done: str, planned: str) -> None:
        """Process the letters batch by batch and print what happened. The exit code is 1 if one was refused."""
        letters: list[DeadLetterInfo] = []
        refused: list[RefusedDeadLetter] = []
        conditions = (self.of_agent, self.since, self.reason)
        for batch in batches(*conditions, all_letters=self.all_letters, dry_run=self.dry_run):
            letters += batch.letters
            refused += batch.refused
        if self.as_json:
            print_json({"letters": letters, "refused": refused})
        elif self.dry_run:
            print_dead(letters)
        many = "1 dead letter" if len(letters) == 1 else f"{len(letters)} dead letters"
        print_note(f"{planned} {many}; nothing was changed" if self.dry_run else done.format(many))
        for letter in refused:
            print_note(f"dead letter {letter.seq} of {letter.agent} was refused: {letter.error}")
        if refused:
            raise SystemExit(1)


def chosen_letters(command: Callable[..., R]) -> Callable[..., R]:
    """Add the arguments and options that choose dead letters."""

    @click.argument("agent", required=False)
    @click.argument("seq", type=click.IntRange(min=1), required=False)
    @click.option("--all", "all_letters", is_flag=True, help="Choose every dead letter.")
    @click.option("--agent", "of_agent", metavar="NAME", help="Choose dead letters of this agent.")
    @click.option("--since", type=Since(), help="Choose dead letters from this time on: 30m, 2h, 7d or a date.")
    @click.option("--reason", metavar="TEXT", help="Choose dead letters whose reason contains this text.")
    @click.option("--dry-run", is_flag=True, help="List the chosen dead letters and change nothing.")
    @json_option
    @functools.wraps(command)
    def with_chosen(
        agent: str | None,
        seq: int | None,
        all_letters: bool,
        of_agent: str | None,
        since: datetime | None,
        reason: str | None,
        dry_run: bool,
        as_json: bool,
        **options: object,
    ) -> R:
        chosen = ChosenLetters(agent, seq, all_letters, of_agent, since, reason, dry_run, as_json)
        return command(chosen=chosen, **options)

    return with_chosen


@dead.command("retry", epilog="Example: magent2 dead retry --agent general --since 2h --reason 503 --dry-run")
@chosen_letters
@gateway_options
def retry_dead(chosen: ChosenLetters, gateway: GatewayOptions) -> None:
    """Send dead letters to their agents again.

    Name one letter by AGENT and SEQ, which 'magent2 dead ls' lists, or choose many by conditions. Conditions combine.
    """
    single = chosen.single
    with gateway.connect() as client:
        if single is not None:
            client.retry_dead(*single)
            chosen.print_single(*single, f"sent dead letter {single[1]} to {single[0]} again")
        else:
            chosen.process(client.retry_dead_letters, "sent {} again", "would send again:")


@dead.command("drop", epilog="Example: magent2 dead drop --agent general --reason 'told to fail'")
@chosen_letters
@gateway_options
def drop_dead(chosen: ChosenLetters, gateway: GatewayOptions) -> None:
    """Remove dead letters from the list.

    Name one letter by AGENT and SEQ, which 'magent2 dead ls' lists, or choose many by conditions. Conditions combine.
    """
    single = chosen.single
    with gateway.connect() as client:
        if single is not None:
            client.drop_dead(*single)
            chosen.print_single(*single, f"dropped dead letter {single[1]} of {single[0]}")
        else:
            chosen.process(client.drop_dead_letters, "dropped {}", "would drop:")


# --- connectors, on the bus


@click.group()
def connectors() -> None:
    """Manage connectors, which deliver messages to users.

    These commands open the bus itself and need no gateway.
    """


@connectors.command(
    epilog="Example: magent2 connectors add hook --kind webhook --url https://example.com/in"
    " --secret-env MAGENT2_SECRET_HOOK"
)
@click.argument("connector")
@click.option("--kind", type=click.Choice(["console", "webhook"]), required=True, help="Kind of connector.")
@click.option("--url", metavar="URL", help="URL of the webhook.")
@click.option(
    "--secret-env",
    metavar="NAME",
    help="Environment variable MAGENT2_SECRET_... of the workers with the secret that signs the requests of a webhook.",
)
@click.option(
    "--secret-file", type=click.File(), help="File with that secret, which is stored on the bus; '-' is stdin."
)
@click.option("--takes-key", is_flag=True, help="The receiver honours the Idempotency-Key header.")
@click.option("--allow-private", is_flag=True, help="Allow a URL with a private address, or without TLS.")
@bus_option
@json_option
def add(
    connector: str,
    kind: str,
    secret_file: IO[str] | None,
    bus: str | None,
    as_json: bool,
    **settings: str | bool | None,
) -> None:
    """Add a connector. Workers deliver to it from then on."""
    from magent2.connectors.builtin import capabilities_of
    from magent2.directory.connectors import register_connector

    config = {name: value for name, value in settings.items() if value}
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
    """List the messages of CONNECTOR, or of all connectors and webhooks, oldest first.

    The outbox of a webhook is called webhook:ID, or webhook:config.NAME if the agents file describes it.
    """
    from magent2.bus.log import run_sync
    from magent2.connectors.outbox import list_outboxes, read_outbox

    with open_bus(bus) as engine:
        names = run_sync(engine, list_outboxes) if connector is None else [connector]
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
