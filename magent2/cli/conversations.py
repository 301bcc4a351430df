"""`conversations`: list, show, export, delete."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Door, Failure, gateway_options, json_option
from magent2.cli.printing import note, say, say_json, say_table, shortened

if TYPE_CHECKING:
    from magent2.client import Client, Conversation, ConversationEvent

PAGE_CONVERSATIONS = 100
PAGE_EVENTS = 500
SPOKEN = ("user_message", "output", "message", "tool_step", "handoff", "error")


@click.group()
def conversations() -> None:
    """List, show, export and delete conversations."""


@conversations.command("ls")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option("--owner", help="Only those of this owner.")
@json_option
@gateway_options
def list_(limit: int, owner: str | None, as_json: bool, door: Door) -> None:
    """List conversations, most recently active first."""
    with door.open() as client:
        found = list(_listed(client, limit, owner))
    if as_json:
        say_json(found)
        return
    rows = [
        (row.conversation_id, row.active_agent or "-", row.run_status or "-", _when(row), shortened(row.title))
        for row in found
    ]
    say_table(("ID", "AGENT", "RUN", "ACTIVE", "TITLE"), rows)


def _listed(client: Client, limit: int, owner: str | None) -> Iterator[Conversation]:
    before: str | None = None
    while limit > 0:
        page = client.conversations(min(limit, PAGE_CONVERSATIONS), before, owner)
        yield from page.conversations
        limit, before = limit - len(page.conversations), page.next
        if before is None:
            return


def _when(row: Conversation) -> str:
    return f"{row.last_active_at:%Y-%m-%d %H:%M:%S}"


@conversations.command()
@click.argument("conversation_id", metavar="ID")
@json_option
@gateway_options
def show(conversation_id: str, as_json: bool, door: Door) -> None:
    """Show a conversation and what was said in it."""
    from magent2.cli.lines import line_of

    with door.open() as client:
        found = client.conversation(conversation_id)
        spoken = [event for event in _events(client, conversation_id) if event.kind in SPOKEN]
    if as_json:
        say_json({"conversation": found, "events": [_row(event) for event in spoken]})
        return
    say(f"{found.conversation_id}  agent {found.active_agent or '-'}  run {found.run_status or '-'}  {_when(found)}")
    for event in spoken:
        say(line_of(event))


def _events(client: Client, conversation_id: str) -> Iterator[ConversationEvent]:
    since, more = 0, True
    while more:
        page = client.events(conversation_id, since, PAGE_EVENTS)
        yield from page.events
        since, more = page.next_since, page.has_more


def _row(event: ConversationEvent) -> dict[str, object]:
    return {"seq": event.seq, **event.data}


@conversations.command()
@click.argument("conversation_id", metavar="ID")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; else stdout.")
@gateway_options
def export(conversation_id: str, output: Path | None, door: Door) -> None:
    """Write every event of a conversation, one JSON object per line."""
    with door.open() as client:
        client.conversation(conversation_id)
        rows = map(_row, _events(client, conversation_id))
        if output is None:
            for row in rows:
                say_json(row)
        else:
            note(f"{_write(output, rows)} events in {output}")


def _write(path: Path, rows: Iterator[dict[str, object]]) -> int:
    count = 0
    try:
        with path.open("x", encoding="utf-8") as file:
            for count, row in enumerate(rows, 1):  # noqa: B007  the count is the answer
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except FileExistsError:
        raise Failure(f"{path} exists already; choose another name or move it away") from None
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error
    return count


@conversations.command("rm")
@click.argument("conversation_ids", metavar="ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@gateway_options
def remove(conversation_ids: tuple[str, ...], yes: bool, door: Door) -> None:
    """Delete conversations for good: all that was said, and mail that waits."""
    if not yes:
        _confirm(len(conversation_ids))
    with door.open() as client:
        for conversation_id in conversation_ids:
            client.delete(conversation_id)
            note(f"deleted {conversation_id}")


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("deleting cannot be undone; say --yes")
    click.confirm(f"Delete {count} conversation{'s' if count > 1 else ''} for good?", abort=True, err=True)
