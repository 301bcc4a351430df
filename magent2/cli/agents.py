"""`agents`: who there is."""

from __future__ import annotations

import click

from magent2.cli.options import Door, bus_option, gateway_options, json_option
from magent2.cli.people import told
from magent2.cli.printing import note, say_json, say_table
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
            " ".join(f"{name}:{count}" for name, count in agent.lanes if count) or "-",
        )
        for agent in found
    ]
    say_table(("AGENT", "STATE", "WORKERS", "PENDING", "LANES"), rows)


@agents.command(epilog="Example: magent2 agents place digger --role sub --parent research")
@click.argument("agent")
@click.option("--role", type=click.Choice(["foreground", "background", "sub"]), required=True)
@click.option("--parent", help="Of a sub-agent: whom it writes to when it names nobody.")
@bus_option
@json_option
def place(agent: str, role: str, parent: str | None, bus: str | None, as_json: bool) -> None:
    """Say what an agent is to others. This opens the bus itself; no gateway is needed."""
    from magent2.directory.agents import placing_agent

    placed = told(bus, placing_agent(agent, role, parent))
    if as_json:
        say_json({"name": placed.name, "role": placed.role, "parent": placed.parent})
    else:
        note(f"{placed.name} is {placed.role}" + (f" of {placed.parent}" if placed.parent else ""))


@agents.command()
@click.argument("agent")
@bus_option
def retire(agent: str, bus: str | None) -> None:
    """Let nobody send messages to an agent with a tool any more, until it is placed again."""
    from magent2.directory.agents import removing_agent

    told(bus, removing_agent(agent))
    note(f"no tool writes to {agent} any more")
