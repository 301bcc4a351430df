"""The command `demo`: a short conversation that needs no API key and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from magent2.cli.event_display import PlainDisplay
from magent2.cli.options import DEFAULT_AGENT, ListenOptions
from magent2.cli.output import print_data, print_note

if TYPE_CHECKING:
    from magent2.client import AsyncClient

PAUSE_S = 0.05  # between two words
LINES = (
    ("Tokens arrive while the model writes; this model repeats what it reads.", "tokens"),
    ("What time is it?", "a tool call"),
    ("talk to Ada", "a handoff"),
)


@click.command()
@click.option(
    "--pause",
    "pause_s",
    metavar="SECONDS",
    type=click.FloatRange(0.0, 5.0),
    default=PAUSE_S,
    show_default=True,
    help="Pause between words.",
)
def demo(pause_s: float) -> None:
    """Show a short conversation with the demo model.

    A gateway and an agent run in this process, with a log in memory. The messages go over HTTP.
    """
    import secrets

    from magent2.cli.server_process import GatewayResources, command_name, run_gateway, stop_event_on_signals
    from magent2.client import AsyncClient
    from magent2.loop import run_on_loop
    from magent2.runner.demo.model import demo_team
    from magent2.worker.service import WorkerService

    token = secrets.token_urlsafe(24)
    resources = GatewayResources.open(ListenOptions("127.0.0.1", 0, token), "memory://")
    with resources.closed_on_error():
        runner = demo_team(DEFAULT_AGENT, pause_s)

    def worker() -> WorkerService:
        service = WorkerService(resources.bus, {DEFAULT_AGENT: runner})
        service.fires_schedules = True  # the gateway accepts them
        return service

    async def run() -> None:
        stop = stop_event_on_signals("stopping the demo")
        serving = asyncio.create_task(run_gateway(resources, worker, lambda: None, stop))
        async with AsyncClient(resources.url, token) as client:
            playing = asyncio.create_task(play(client))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([playing, serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if playing.done():
                playing.result()
            playing.cancel()
            await asyncio.wait([playing])
        stop.set()
        await serving

    run_on_loop(run())
    magent2 = command_name()
    print_note(
        f"\nNext: '{magent2} serve', and in another terminal '{magent2} chat'. '{magent2} --help' lists all commands."
    )


async def play(client: AsyncClient) -> None:
    """Send the lines one after the other in one conversation, and show the answers."""
    conversation: str | None = None
    for text, title in LINES:
        print_note(f"\n{title}:")
        print_data(f"you: {text}", bold=True)
        sent = await client.send(DEFAULT_AGENT, text, conversation_id=conversation, sender="user:you")
        conversation = sent.conversation_id
        display = PlainDisplay()
        async with aclosing(client.replies(sent)) as events:
            async for event in events:
                display.show(event)
        display.close()
