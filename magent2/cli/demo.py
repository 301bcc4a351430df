"""`demo`: what it is like, in half a minute and without a key."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Listening
from magent2.cli.printing import bold, note, say

if TYPE_CHECKING:
    from magent2.client import AsyncClient

AGENT = "general"
PAUSE_S = 0.05  # between two words
LINES = (
    ("Words come as the model speaks; this one only repeats what it hears.", "words"),
    ("What time is it?", "a tool call"),
    ("talk to Ada", "a handoff"),
)


@click.command()
@click.option("--pause", "pause_s", type=click.FloatRange(0.0, 5.0), default=PAUSE_S, help="Seconds between words.")
def demo(pause_s: float) -> None:
    """Show a short conversation with the demo model.

    A gateway and an agent run in this process, on a log in memory, and are talked to over HTTP.
    """
    import secrets

    from magent2.cli.running import Place, keep_house, leaving_on_signals
    from magent2.client import AsyncClient
    from magent2.loop import run_on_loop
    from magent2.runner.demo.model import demo_team
    from magent2.worker.service import WorkerService

    token = secrets.token_urlsafe(24)
    place = Place.open(Listening("127.0.0.1", 0, token), "memory://")
    with place.closed_on_error():
        runner = demo_team(AGENT, pause_s)

    async def work() -> None:
        leave = leaving_on_signals("leaving")
        house = asyncio.create_task(
            keep_house(place, lambda: WorkerService(place.bus, {AGENT: runner}), lambda: None, leave)
        )
        async with AsyncClient(place.url, token) as client:
            playing = asyncio.create_task(play(client))
            asking = asyncio.create_task(leave.wait())
            await asyncio.wait([playing, house, asking], return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
            if playing.done():
                playing.result()
            playing.cancel()
            await asyncio.wait([playing])
        leave.set()
        await house

    run_on_loop(work())
    farewell()


async def play(client: AsyncClient) -> None:
    """Say the lines, one after the other, in one conversation."""
    from magent2.cli.screen import Screen

    conversation: str | None = None
    for text, shown in LINES:
        note(f"\n{shown}:")
        say(bold(f"you: {text}"))
        sent = await client.send(AGENT, text, conversation_id=conversation, sender="user:you")
        conversation = sent.conversation_id
        screen = Screen()
        async with aclosing(client.replies(sent)) as events:
            async for event in events:
                screen.show(event)
        screen.close()


def farewell() -> None:
    from magent2.cli.running import command_name

    me = command_name()
    note(f"\nGo on with '{me} serve', and in another terminal '{me} chat'. '{me} --help' lists the rest.")
