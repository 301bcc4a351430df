"""`tail` and `replay`: the events of a conversation, live or again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import note, say, say_json

if TYPE_CHECKING:
    from magent2.client import Client, ConversationEvent

PAGE_EVENTS = 500
PAUSE_MAX_S = 5.0  # a night between two messages is not played


@click.command(epilog="Tokens are left out of the readable form unless --kinds asks for them.")
@click.argument("conversation_id", metavar="ID")
@click.option("--since", type=click.IntRange(min=0), metavar="SEQ", help="Only what comes after this number.")
@click.option("--kinds", metavar="A,B", help="Only these kinds of events, such as 'output,error'.")
@click.option("--no-follow", is_flag=True, help="Print what there is and leave.")
@json_option
@gateway_options
def tail(
    conversation_id: str,
    since: int | None,
    kinds: str | None,
    no_follow: bool,
    as_json: bool,
    door: Door,
) -> None:
    """Show the events of a conversation as they come.

    It goes on until Ctrl-C, also over a restart of the gateway.
    """
    wanted = tuple(kind.strip() for kind in kinds.split(",")) if kinds else None
    with door.open() as quick:
        quick.health()
        if no_follow:
            _print(_recorded(quick, conversation_id, since or 0), wanted, as_json)
            return
    with door.open(math.inf) as client, closing(client.follow(conversation_id, since, wanted)) as events:
        _print(events, wanted, as_json)


def _print(events: Iterator[ConversationEvent], wanted: tuple[str, ...] | None, as_json: bool) -> None:
    from magent2.cli.lines import DRAFTS, line_of

    for event in events:
        if wanted is not None and event.kind not in (*wanted, "gap", "end"):
            continue
        if as_json:
            say_json({"seq": event.seq, **event.data})
        elif wanted is not None or event.kind not in DRAFTS:
            say(line_of(event))


def _recorded(client: Client, conversation_id: str, since: int = 0) -> Iterator[ConversationEvent]:
    """Every event that is there now, a page at a time."""
    more = True
    while more:
        page = client.events(conversation_id, since, PAGE_EVENTS)
        yield from page.events
        since, more = page.next_since, page.has_more


@click.command(epilog="Example: magent2 replay c-1a2b3c --speed 10")
@click.argument("conversation_id", metavar="ID")
@click.option(
    "--speed", type=click.FloatRange(min=0.0, min_open=True), default=1.0, show_default=True, help="Times as fast."
)
@json_option
@gateway_options
def replay(conversation_id: str, speed: float, as_json: bool, door: Door) -> None:
    """Play a recorded conversation again.

    Events come at the pace at which they were recorded; long silences are cut.
    """
    from magent2.cli.screen import Screen

    screen = Screen()
    with door.open() as client:
        client.conversation(conversation_id)
        for event, pause_s in paced(_recorded(client, conversation_id), speed):
            time.sleep(pause_s)
            if as_json:
                say_json({"seq": event.seq, **event.data})
            elif event.kind == "user_message":
                screen.close()
                note(f"{event.data.get('sender')}: {event.text}")
            else:
                screen.show(event)
    screen.close()


def paced(events: Iterator[ConversationEvent], speed: float) -> Iterator[tuple[ConversationEvent, float]]:
    """Each event with the pause before it."""
    before: datetime | None = None
    for event in events:
        at = _time_of(event)
        pause_s = 0.0 if at is None or before is None else max(0.0, (at - before).total_seconds())
        before = at or before
        yield event, min(pause_s / speed, PAUSE_MAX_S)


def _time_of(event: ConversationEvent) -> datetime | None:
    try:
        return datetime.fromisoformat(str(event.data.get("created_at")))
    except ValueError:  # somebody's own event
        return None
