"""`send` and `stop`."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import note, safe, say, say_json

if TYPE_CHECKING:
    from magent2.client import Client, SentMessage

TEXT_MAX_BYTES = 64 << 20  # of stdin; the gateway has the say about less


@click.command(epilog="Example: magent2 send general 'hello' --wait")
@click.argument("agent")
@click.argument("text")
@click.option("-c", "--conversation", "conversation_id", metavar="ID", help="Which conversation; else a new one.")
@click.option("--sender", help="Who says it; else whoever the token or the key stands for.")
@click.option("--id", "envelope_id", metavar="ID", help="The message's id: the same again sends nothing new.")
@click.option("--wait", "mode", flag_value="wait", help="Wait for the answer and print it.")
@click.option("--stream", "mode", flag_value="stream", help="Print the answer as it comes.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="How long to --wait.")
@json_option
@gateway_options
def send(
    agent: str, text: str, mode: str | None, timeout_s: float | None, as_json: bool, door: Door, **message: Any
) -> None:
    """Send a message to an agent.

    AGENT is a name, or 'chat:ID' for whoever is active in that conversation. TEXT '-' is read from stdin.
    """
    body = _stdin() if text == "-" else text
    with door.open() as client:
        sent = client.send(agent, body, **message)
        if sent.notice:
            note(f"note: {sent.notice}")
        if mode == "wait":
            _wait(client, sent, timeout_s, as_json)
        elif mode == "stream":
            _stream(client, sent, as_json)
        else:
            _tell(sent, as_json)


def _stdin() -> str:
    data = sys.stdin.buffer.read(TEXT_MAX_BYTES + 1)
    if len(data) > TEXT_MAX_BYTES:
        raise click.UsageError(f"stdin has more than {TEXT_MAX_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise click.UsageError("stdin is not UTF-8 text") from None


def _tell(sent: SentMessage, as_json: bool) -> None:
    if as_json:
        say_json(sent)
    else:
        say(f"conversation {sent.conversation_id} seq {sent.seq}")


def _wait(client: Client, sent: SentMessage, timeout_s: float | None, as_json: bool) -> None:
    _point(sent, as_json)
    answer = client.wait(sent, timeout_s)
    if as_json:
        say_json({"sent": sent, "answer": answer})
    else:
        say(safe(answer.text))


def _stream(client: Client, sent: SentMessage, as_json: bool) -> None:
    from magent2.cli.screen import Screen

    _point(sent, as_json)
    screen = Screen()
    with closing(client.replies(sent)) as events:
        for event in events:
            if as_json:
                say_json({"seq": event.seq, **event.data})
            else:
                screen.show(event)
    screen.close()


def _point(sent: SentMessage, as_json: bool) -> None:
    if not as_json:
        note(f"conversation {sent.conversation_id} seq {sent.seq}")


@click.command()
@click.argument("conversation_id", metavar="ID")
@click.option("--agent", help="Whose run; else the active agent's.")
@json_option
@gateway_options
def stop(conversation_id: str, agent: str | None, as_json: bool, door: Door) -> None:
    """Stop the run of a conversation."""
    with door.open() as client:
        stopping = client.stop(conversation_id, agent)
    if as_json:
        say_json(stopping)
    else:
        say(f"told {stopping.agent} to stop")
