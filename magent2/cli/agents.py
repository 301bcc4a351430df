"""`agents`: who there is."""

from __future__ import annotations

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import say_json, say_table
from magent2.cli.roster_check import check


@click.group()
def agents() -> None:
    """See which agents there are, and check a file of them."""


agents.add_command(check)


@agents.command("ls")
@json_option
@gateway_options
def list_(as_json: bool, door: Door) -> None:
    """List agents, whether somebody serves them, and what waits for them."""
    with door.open() as client:
        found = client.agents()
    if as_json:
        say_json(found)
        return
    rows = [
        (
            agent.name,
            "alive" if agent.alive else "nobody serves it",
            len(agent.workers),
            agent.pending,
            " ".join(f"{name}:{count}" for name, count in agent.lanes.items() if count) or "-",
        )
        for agent in found
    ]
    say_table(("AGENT", "STATE", "WORKERS", "PENDING", "LANES"), rows)
