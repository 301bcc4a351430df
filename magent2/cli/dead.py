"""`dead`: messages that nobody could answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import note, say_json, say_table, shortened

if TYPE_CHECKING:
    from magent2.client import Client, DeadLetterInfo


@click.group()
def dead() -> None:
    """Look after messages that nobody could answer."""


@dead.command("ls")
@click.option("--agent", help="Only this agent's.")
@json_option
@gateway_options
def list_(agent: str | None, as_json: bool, door: Door) -> None:
    """List dead letters, oldest first."""
    with door.open() as client:
        found = list(_letters(client, agent))
    if as_json:
        say_json(found)
        return
    rows = [
        (letter.agent, letter.seq, letter.conversation_id, letter.attempts, shortened(letter.reason), _text(letter))
        for letter in found
    ]
    say_table(("AGENT", "SEQ", "CONVERSATION", "TRIED", "REASON", "TEXT"), rows)


def _letters(client: Client, agent: str | None) -> Iterator[DeadLetterInfo]:
    after: int | None = None
    while True:
        page = client.dead(agent, after)
        yield from page.letters
        after = page.next
        if after is None:
            return


def _text(letter: DeadLetterInfo) -> str:
    return shortened(letter.text, 40)


@dead.command()
@click.argument("agent")
@click.argument("seq", type=click.IntRange(min=1))
@gateway_options
def retry(agent: str, seq: int, door: Door) -> None:
    """Give a dead letter another chance."""
    with door.open() as client:
        client.retry_dead(agent, seq)
    note(f"letter {seq} is mail of {agent} again")


@dead.command()
@click.argument("agent")
@click.argument("seq", type=click.IntRange(min=1))
@gateway_options
def drop(agent: str, seq: int, door: Door) -> None:
    """Take a dead letter off the list."""
    with door.open() as client:
        client.drop_dead(agent, seq)
    note(f"letter {seq} of {agent} is gone")
