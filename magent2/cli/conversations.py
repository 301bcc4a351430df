"""The commands `conversations`, `tail` and `replay`: what is recorded of conversations."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.event_display import PlainDisplay, event_line
from magent2.cli.options import (
    CommandFailed,
    GatewayOptions,
    confirm,
    gateway_options,
    json_option,
    yes_option,
)
from magent2.cli.output import json_line, print_data, print_json, print_note, print_table, shortened
from magent2.private_files import create_file

if TYPE_CHECKING:
    from magent2.client import Client, Conversation, ConversationEvent

PAGE_CONVERSATIONS = 100
PAGE_EVENTS = 500
PAUSE_MAX_S = 5.0  # replay shortens longer pauses to this
SHOWN_KINDS = ("user_message", "output", "message", "tool_step", "approval", "budget", "subagent", "handoff", "error")


@click.group()
def conversations() -> None:
    """List, show, export and delete conversations."""


@conversations.command("ls")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=20, show_default=True, help="List at most N.")
@click.option("--owner", metavar="USER", help="List only conversations of this owner.")
@json_option
@gateway_options
def list_(limit: int, owner: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List conversations, most recently active first."""
    with gateway.connect() as client:
        found = list(_read_conversations(client, limit + 1, owner))
    if len(found) > limit:
        found.pop()
        print_note("there are more conversations; list more of them with --limit")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.conversation_id,
            row.active_agent or "-",
            row.run_status or "-",
            _last_active(row),
            shortened(row.title),
        )
        for row in found
    ]
    print_table(("ID", "AGENT", "RUN", "ACTIVE", "TITLE"), rows)


def _read_conversations(client: Client, limit: int, owner: str | None) -> Iterator[Conversation]:
    before: str | None = None
    while limit > 0:
        page = client.conversations(min(limit, PAGE_CONVERSATIONS), before, owner)
        yield from page.conversations
        limit, before = limit - len(page.conversations), page.next
        if before is None:
            return


def _last_active(row: Conversation) -> str:
    return f"{row.last_active_at:%Y-%m-%d %H:%M:%S}"


@conversations.command()
@click.argument("conversation_id", metavar="ID")
@json_option
@gateway_options
def show(conversation_id: str, as_json: bool, gateway: GatewayOptions) -> None:
    """Show a conversation and its messages."""
    with gateway.connect() as client:
        found = client.conversation(conversation_id)
        events = _without_replaced(list(_read_events(client, conversation_id)))
    if as_json:
        print_json({"conversation": found, "events": [_json_row(event) for event in events]})
        return
    agent, run = found.active_agent or "-", found.run_status or "-"
    print_data(f"{found.conversation_id}  agent {agent}  run {run}  {_last_active(found)}")
    for event in events:
        print_data(event_line(event))


def _without_replaced(events: list[ConversationEvent]) -> list[ConversationEvent]:
    """The events to show, without the runs whose answer was replaced and the messages that go with them."""
    replaced = [event.data for event in events if event.kind == "superseded"]
    runs = {data.get("run_id") for data in replaced}
    messages = {message for data in replaced for message in data.get("messages") or ()}
    return [
        event
        for event in events
        if event.kind in SHOWN_KINDS
        and (event.data.get("run_id") is None or event.data["run_id"] not in runs)
        and (event.kind != "user_message" or event.data.get("message_id") not in messages)
    ]


def _read_events(client: Client, conversation_id: str, since: int = 0) -> Iterator[ConversationEvent]:
    """Every event that is recorded now, read page by page."""
    more = True
    while more:
        page = client.events(conversation_id, since, PAGE_EVENTS)
        yield from page.events
        since, more = page.next_since, page.has_more


def _json_row(event: ConversationEvent) -> dict[str, object]:
    return {"seq": event.seq, **event.data}


@conversations.command()
@click.argument("conversation_id", metavar="ID")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: stdout.",
)
@gateway_options
def export(conversation_id: str, output: Path | None, gateway: GatewayOptions) -> None:
    """Export every event of a conversation, one JSON object per line."""
    with gateway.connect() as client:
        client.conversation(conversation_id)
        rows = map(_json_row, _read_events(client, conversation_id))
        if output is None:
            for row in rows:
                print_json(row)
        else:
            print_note(f"wrote {_write_rows(output, rows)} events to {output}")


def _write_rows(path: Path, rows: Iterator[dict[str, object]]) -> int:
    count = 0
    try:
        with os.fdopen(create_file(path), "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json_line(row) + "\n")
                count += 1
    except FileExistsError:
        raise CommandFailed(f"{path} already exists; choose another name or remove it first") from None
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}; choose another place") from error
    return count


@conversations.command("rm")
@click.argument("conversation_ids", metavar="ID...", nargs=-1, required=True)
@yes_option
@gateway_options
def remove(conversation_ids: tuple[str, ...], yes: bool, gateway: GatewayOptions) -> None:
    """Delete conversations and all their messages.

    Messages that wait for an answer are deleted too.
    """
    if not yes:
        count = len(conversation_ids)
        confirm(f"Delete {count} conversation{'s' if count > 1 else ''}? This cannot be undone.")
    with gateway.connect() as client:
        for conversation_id in conversation_ids:
            client.delete(conversation_id)
            print_note(f"deleted {conversation_id}")


@click.command(epilog="The readable form leaves out tokens, unless --kinds names them.")
@click.argument("conversation_id", metavar="ID")
@click.option("--since", type=click.IntRange(min=0), metavar="SEQ", help="Only events after this sequence number.")
@click.option("--kinds", metavar="KIND,...", help="Only events of these kinds, as in 'output,error'.")
@click.option("--no-follow", is_flag=True, help="Print the recorded events and exit.")
@json_option
@gateway_options
def tail(
    conversation_id: str,
    since: int | None,
    kinds: str | None,
    no_follow: bool,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Follow the events of a conversation.

    It runs until Ctrl-C, also across restarts of the gateway.
    """
    wanted = tuple(kind.strip() for kind in kinds.split(",")) if kinds else None
    # This client gives up soon, so that a wrong URL or token is reported. The one that follows never gives up.
    with gateway.connect() as client:
        client.health()
        if no_follow:
            _print_events(_read_events(client, conversation_id, since or 0), wanted, as_json)
            return
    with gateway.connect(math.inf) as client, closing(client.follow(conversation_id, since, wanted)) as events:
        _print_events(events, wanted, as_json)


def _print_events(events: Iterator[ConversationEvent], wanted: tuple[str, ...] | None, as_json: bool) -> None:
    for event in events:
        if wanted is not None and event.kind not in (*wanted, "gap", "end"):
            continue
        if as_json:
            print_json(_json_row(event))
        elif wanted is not None or event.kind != "token":  # the output contains the tokens
            print_data(event_line(event))


@click.command(epilog="Example: magent2 replay c-1a2b3c --speed 10")
@click.argument("conversation_id", metavar="ID")
@click.option(
    "--speed",
    metavar="FACTOR",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Replay this many times as fast.",
)
@json_option
@gateway_options
def replay(conversation_id: str, speed: float, as_json: bool, gateway: GatewayOptions) -> None:
    """Replay a recorded conversation.

    Events appear at the pace at which they were recorded; long pauses are shortened.
    """
    display = PlainDisplay()
    with gateway.connect() as client:
        client.conversation(conversation_id)
        for event, pause_s in with_pauses(_read_events(client, conversation_id), speed):
            time.sleep(pause_s)
            if as_json:
                print_json(_json_row(event))
            elif event.kind == "user_message":
                display.close()
                print_note(f"{event.data.get('sender')}: {event.text}")
            else:
                display.show(event)
    display.close()


def with_pauses(events: Iterator[ConversationEvent], speed: float) -> Iterator[tuple[ConversationEvent, float]]:
    """Each event with the pause before it, in seconds. An event without a time has none."""
    previous: datetime | None = None
    for event in events:
        created_at = _created_at(event)
        pause_s = 0.0
        if created_at is not None:
            pause_s = max(0.0, (created_at - (previous or created_at)).total_seconds())
            previous = created_at
        yield event, min(pause_s / speed, PAUSE_MAX_S)


def _created_at(event: ConversationEvent) -> datetime | None:
    try:
        return datetime.fromisoformat(str(event.data.get("created_at")))
    except ValueError:  # an event that another program has written
        return None
