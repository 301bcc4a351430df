"""The commands `send` and `python`, which give an agent something to do."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.event_display import PlainDisplay
from magent2.cli.options import GatewayOptions, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note, safe

if TYPE_CHECKING:
    from magent2.client import Client, SentMessage

TEXT_MAX_BYTES = 64 << 20  # of stdin; the gateway has a lower limit of its own
TOOL = "run_python"
FILE_MAX_BYTES = 64 << 10  # the sandbox takes no more


@click.command(epilog="Example: magent2 send general 'hello' --wait")
@click.argument("agent")
@click.argument("text")
@click.option("-c", "--conversation", "conversation_id", metavar="ID", help="Conversation. Default: a new one.")
@click.option("--sender", metavar="ADDRESS", help="Sender, as user:ann. Default: the owner of the token or API key.")
@click.option("--id", "envelope_id", metavar="ID", help="Id of the message. A second message with the id is not sent.")
@click.option("--wait", "mode", flag_value="wait", help="Wait for the answer and print it.")
@click.option("--stream", "mode", flag_value="stream", help="Print the answer while the agent writes it.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@json_option
@gateway_options
def send(  # noqa: PLR0913  one parameter per option
    agent: str,
    text: str,
    *,
    conversation_id: str | None,
    sender: str | None,
    envelope_id: str | None,
    mode: str | None,
    timeout_s: float | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Send a message to an agent.

    AGENT is a name, or 'chat:ID' for the active agent of that conversation. TEXT '-' reads the text from stdin.
    """
    body = _read_stdin() if text == "-" else text
    with gateway.connect() as client:
        sent = client.send(agent, body, conversation_id=conversation_id, sender=sender, envelope_id=envelope_id)
        if sent.notice:
            print_note(f"note: {sent.notice}")
        place = f"conversation {sent.conversation_id} seq {sent.seq}"
        if mode is None:
            print_json(sent) if as_json else print_data(place)
            return
        if not as_json:
            print_note(place)
        if mode == "stream":
            _stream_answer(client, sent, as_json)
            return
        answer = client.wait(sent, timeout_s)
        print_json({"sent": sent, "answer": answer}) if as_json else print_data(safe(answer.text))


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(TEXT_MAX_BYTES + 1)
    if len(data) > TEXT_MAX_BYTES:
        raise click.UsageError(f"stdin has more than {TEXT_MAX_BYTES} bytes; send a shorter text")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise click.UsageError("stdin is not UTF-8 text") from None


def _stream_answer(client: Client, sent: SentMessage, as_json: bool) -> None:
    display = PlainDisplay()
    with closing(client.replies(sent)) as events:
        for event in events:
            if as_json:
                print_json({"seq": event.seq, **event.data})
            else:
                display.show(event)
    display.close()


@click.command(epilog="Example: magent2 python report.py --agent general")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--agent", metavar="NAME", required=True, help="Agent whose tools the code can call; it needs run_python."
)
@click.option("-c", "--conversation", "conversation_id", metavar="ID", help="Conversation. Default: a new one.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@json_option
@gateway_options
@click.pass_context
def python(
    context: click.Context,
    file: Path,
    agent: str,
    conversation_id: str | None,
    timeout_s: float | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Run a Python file with an agent's tools.

    The code calls the tools as functions. Its messages are sent when it succeeds. When it fails, none of them is sent
    and the exit code is 1. FILE '-' reads the code from stdin.
    """
    code = _read_code(file)
    with gateway.connect() as client:
        session = client.create_session(conversation_id, agent)
        if not as_json:
            print_note(f"conversation {session}")
        result = client.run_tool(session, TOOL, {"code": code}, timeout_s=timeout_s)
    if as_json:
        print_json(result)
    else:
        print_data(safe(result.result))
    if result.error is not None:
        context.exit(1)


def _read_code(file: Path) -> str:
    try:
        with click.open_file(str(file), "rb") as opened:
            data = opened.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    if len(data) > FILE_MAX_BYTES:
        raise click.UsageError(f"{file} has more than {FILE_MAX_BYTES} bytes; shorten it")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text") from None
