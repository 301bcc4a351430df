"""`steer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import note, say, say_json

if TYPE_CHECKING:
    from magent2.client import AgentReceipt


@click.command(epilog="Example: magent2 steer c-1a2b 'in Celsius, please' --wait")
@click.argument("conversation_id", metavar="ID")
@click.argument("text")
@click.option("--target", metavar="AGENT", help="To this agent alone; else to all that have a run under way.")
@click.option("--require-active", is_flag=True, help="Refuse it when no run is under way.")
@click.option("--id", "client_message_id", metavar="ID", help="The message's key: the same again says nothing new.")
@click.option("--wait", is_flag=True, help="Wait until an agent has seen it.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="How long to --wait.")
@json_option
@gateway_options
def steer(
    conversation_id: str, text: str, wait: bool, timeout_s: float | None, as_json: bool, door: Door, **how: Any
) -> None:
    """Say something to an agent at work.

    ID is the conversation. Every agent that has a run under way there sees TEXT in its next request to the model; when
    nobody is at work, it begins a run of the active agent.
    """
    with door.open() as client:
        steered = client.steer(conversation_id, text, **how)
        if wait and not as_json:
            note(f"receipt {steered.receipt_id} seq {steered.seq}")
        found = client.seen(steered, timeout_s) if wait else None
    if as_json:
        say_json(steered if found is None else {"steered": steered, "receipt": found})
    elif found is None:
        say(f"receipt {steered.receipt_id} seq {steered.seq}")
    else:
        for line in found.receipts:
            say(_told(line))


def _told(line: AgentReceipt) -> str:
    where = "answers it in a run of its own" if line.turn is None else f"has seen it in turn {line.turn}"
    return f"{line.agent_id} {where}: {line.status}"
