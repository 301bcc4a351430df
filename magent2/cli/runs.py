"""The commands that start runs and act on them: `send`, `regenerate`, `edit`, `python`, `steer`, `stop` …"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from magent2.cli.event_display import PlainDisplay, approval_text
from magent2.cli.options import GatewayOptions, file_option, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note

if TYPE_CHECKING:
    from magent2.client import ApprovalInfo, Client, ConversationEvent, SentMessage
    from magent2.models.api.messages import WhenBusy
    from magent2.models.json_types import JsonObject

TEXT_MAX_BYTES = 64 << 20  # of stdin; the gateway has a lower limit of its own
TOOL = "run_python"
FILE_MAX_BYTES = 64 << 10  # the sandbox takes no more
STOP_TIMEOUT_S = 5.0
RECEIPT_PAUSE_S = 0.1  # between two looks for the receipt of a stop


@click.command(epilog="Example: magent2 send general 'hello' --wait")
@click.argument("agent")
@click.argument("text")
@click.option("-c", "--conversation", "conversation_id", metavar="ID", help="Conversation. Default: a new one.")
@click.option("--sender", metavar="ADDRESS", help="Sender, as user:ann. Default: the owner of the token or API key.")
@click.option("--id", "envelope_id", metavar="ID", help="Id of the message. A second message with the id is not sent.")
@click.option(
    "--when-busy",
    type=click.Choice(["queue", "steer", "interrupt", "reject"]),
    default="queue",
    show_default=True,
    help="While another message is being answered: wait, join its run, stop its run first, or fail.",
)
@click.option("--wait", "mode", flag_value="wait", help="Wait for the answer and print it.")
@click.option("--stream", "mode", flag_value="stream", help="Print the answer while the agent writes it.")
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Wait for an answer that matches the JSON schema in this file.",
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@file_option
@json_option
@gateway_options
def send(  # noqa: PLR0913  one parameter per option
    agent: str,
    text: str,
    *,
    conversation_id: str | None,
    sender: str | None,
    envelope_id: str | None,
    when_busy: WhenBusy,
    mode: str | None,
    schema: Path | None,
    timeout_s: float | None,
    files: tuple[Path, ...],
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Send a message to an agent.

    AGENT is a name, or 'chat:ID' for the active agent of that conversation. TEXT '-' reads the text from stdin.
    With a file, TEXT may be empty ('').
    """
    if schema is not None and mode == "stream":
        raise click.UsageError("--schema prints the answer when it was checked; use --wait in place of --stream")
    wanted = None if schema is None else {"output_schema": {"schema": _read_schema(schema)}}
    mode = mode if schema is None else "wait"
    body = _read_stdin() if text == "-" else text
    with gateway.connect() as client:
        sent = client.send(
            agent,
            body,
            conversation_id=conversation_id,
            sender=sender,
            envelope_id=envelope_id,
            when_busy=when_busy,
            files=files,
            metadata=wanted and {"run_options": wanted},
        )
        _show_sent(client, sent, mode, timeout_s, as_json)


def _show_sent(client: Client, sent: SentMessage, mode: str | None, timeout_s: float | None, as_json: bool) -> None:
    """Print where the message is, and its answer if `mode` asks for it."""
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
    answer = client.wait(sent, timeout_s, on_approval=_note_approval)
    print_json({"sent": sent, "answer": answer}) if as_json else print_data(answer.text)


@click.command(epilog="Example: magent2 regenerate c-1a2b3c --wait")
@click.argument("conversation_id", metavar="ID")
@click.option("--wait", "mode", flag_value="wait", help="Wait for the answer and print it.")
@click.option("--stream", "mode", flag_value="stream", help="Print the answer while the agent writes it.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@json_option
@gateway_options
def regenerate(
    conversation_id: str, mode: str | None, timeout_s: float | None, as_json: bool, gateway: GatewayOptions
) -> None:
    """Answer the last message of a conversation again.

    The answer so far stays on the log. Later answers do not take it into account.
    """
    with gateway.connect() as client:
        _show_sent(client, client.regenerate(conversation_id), mode, timeout_s, as_json)


@click.command(epilog="Example: magent2 edit c-1a2b3c 'weather in Bergen' --wait")
@click.argument("conversation_id", metavar="ID")
@click.argument("text", metavar="TEXT")
@click.option("--message", "message_id", metavar="MESSAGE", help="Replace nothing if another message is the last.")
@click.option("--wait", "mode", flag_value="wait", help="Wait for the answer and print it.")
@click.option("--stream", "mode", flag_value="stream", help="Print the answer while the agent writes it.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@json_option
@gateway_options
def edit(
    conversation_id: str,
    text: str,
    message_id: str | None,
    mode: str | None,
    timeout_s: float | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Replace the last message of a conversation by another text, and answer that.

    The message and its answer stay on the log. Later answers do not take them into account.
    """
    with gateway.connect() as client:
        _show_sent(client, client.edit(conversation_id, message_id, text), mode, timeout_s, as_json)


def _read_schema(file: Path) -> JsonObject:
    """The JSON schema in a file. It is checked before the message is sent."""
    from magent2.models.output_schema import check_output_schema

    try:
        schema = json.loads(file.read_bytes())
        if not isinstance(schema, dict):
            raise ValueError(f"it must hold a JSON object, not {type(schema).__name__}")
        check_output_schema(schema)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"--schema {file}: {error}") from error
    return schema


def _note_approval(approval: ApprovalInfo) -> None:
    """Say what the run waits for, and leave the decision to a person at another terminal."""
    print_note(approval_text(approval))


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
        print_data(result.result)
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


@click.command(epilog="Example: magent2 steer c-1a2b 'in Celsius, please' --wait")
@click.argument("conversation_id", metavar="ID")
@click.argument("text")
@click.option("--target", metavar="AGENT", help="Send it to this agent only. Default: to all that are running.")
@click.option("--require-active", is_flag=True, help="Fail when no run is active.")
@click.option(
    "--id", "client_message_id", metavar="ID", help="Key of the message. A second message with the key is not sent."
)
@click.option("--wait", is_flag=True, help="Wait until an agent has read it.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Stop waiting after this time."
)
@json_option
@gateway_options
def steer(  # noqa: PLR0913  one parameter per option
    conversation_id: str,
    text: str,
    *,
    target: str | None,
    require_active: bool,
    client_message_id: str | None,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Send a message to agents while they are running.

    ID is the conversation. Every agent with an active run there reads TEXT in its next request to the model. When no
    run is active, TEXT starts a run of the conversation's active agent.
    """
    with gateway.connect() as client:
        steered = client.steer(
            conversation_id,
            text,
            target=target,
            require_active=require_active,
            client_message_id=client_message_id,
        )
        if wait and not as_json:
            print_note(f"receipt {steered.receipt_id} seq {steered.seq}")
        receipt = client.seen(steered, timeout_s) if wait else None
    if as_json:
        print_json(steered if receipt is None else {"steered": steered, "receipt": receipt})
    elif receipt is None:
        print_data(f"receipt {steered.receipt_id} seq {steered.seq}")
    else:
        for line in receipt.receipts:
            where = "answers it in a new run" if line.turn is None else f"read it in turn {line.turn}"
            print_data(f"{line.agent_id} {where}: {line.status}")


@click.command(epilog="Example: magent2 stop c-1a2b")
@click.argument("conversation_id", metavar="ID")
@click.option("--agent", metavar="NAME", help="Agent whose run to stop. Default: the active agent.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    default=STOP_TIMEOUT_S,
    show_default=True,
    help="Wait this long for the outcome.",
)
@json_option
@gateway_options
def stop(conversation_id: str, agent: str | None, timeout_s: float, as_json: bool, gateway: GatewayOptions) -> None:
    """Stop the run of a conversation.

    ID is the conversation. The exit code is also 0 when no run is in progress there.
    """
    with gateway.connect() as client:
        seq = client.conversation(conversation_id).last_seq
        stopping = client.stop(conversation_id, agent)
        outcome = _stop_outcome(client, conversation_id, seq, stopping.envelope_id, timeout_s)
    if as_json:
        sent = {"agent": stopping.agent, "envelope_id": stopping.envelope_id, "seq": stopping.seq}
        print_json({**sent, "outcome": outcome})
    else:
        print_data(_STOP_OUTCOMES[outcome].format(agent=stopping.agent, conversation=conversation_id))


_STOP_OUTCOMES = {
    "stopped": "stopped the run of {agent}",
    "too_late": "the run of {agent} had ended before the stop arrived",
    "not_meant": "the run of {agent} had ended before the stop arrived; a later run goes on",
    "nothing_to_stop": "no run of {agent} is in progress in {conversation}; nothing was stopped",
    None: "asked {agent} to stop; no worker has taken the stop yet ('magent2 agents ls' shows whether one runs)",
}


def _stop_outcome(client: Client, conversation_id: str, since: int, envelope_id: str, timeout_s: float) -> str | None:
    """The outcome of a stop, from its receipt in the conversation; `None` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        page = client.events(conversation_id, since)
        since = page.next_since
        for event in page.events:
            if (outcome := _outcome_in(event, envelope_id)) is not None:
                return outcome
        if page.has_more:
            continue
        if time.monotonic() >= deadline:
            return None
        time.sleep(RECEIPT_PAUSE_S)


def _outcome_in(event: ConversationEvent, envelope_id: str) -> str | None:
    """The outcome of a stop, if the event is its receipt."""
    messages = event.data.get("messages", ()) if event.kind == "message_received" else ()
    outcomes = (message.get("outcome") for message in messages if message.get("id") == envelope_id)
    return next((outcome for outcome in outcomes if outcome in _STOP_OUTCOMES), None)


@click.command(epilog="Examples: magent2 approvals; magent2 approvals c-1a2b")
@click.argument("conversation_id", metavar="[ID]", required=False)
@json_option
@gateway_options
def approvals(conversation_id: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List the tool calls that need approval.

    Each line ends with the commands that decide on the call. ID is a conversation. Its calls that are already decided
    are listed too, with the decision. Without ID, the calls of all conversations that wait for a decision are listed.
    """
    with gateway.connect() as client:
        found = client.approvals(conversation_id)
    if as_json:
        print_json(list(found))
        return
    for approval in found:
        print_data(f"{approval.session_id}: {approval_text(approval)}")
    if not found:
        print_note("no call needs approval")


@click.command(epilog="Example: magent2 approve c-1a2b call-9")
@click.argument("conversation_id", metavar="ID")
@click.argument("call_id", metavar="CALL")
@json_option
@gateway_options
def approve(conversation_id: str, call_id: str, as_json: bool, gateway: GatewayOptions) -> None:
    """Approve a tool call.

    ID is the conversation. CALL is the id of the call; 'magent2 approvals ID' lists them.
    """
    _decide(gateway, conversation_id, call_id, "approve", None, as_json)


@click.command(epilog="Example: magent2 reject c-1a2b call-9 --reason 'too expensive'")
@click.argument("conversation_id", metavar="ID")
@click.argument("call_id", metavar="CALL")
@click.option("--reason", metavar="TEXT", help="Reason, which the model is told.")
@json_option
@gateway_options
def reject(conversation_id: str, call_id: str, reason: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """Reject a tool call.

    The run continues without it. ID is the conversation. CALL is the id of the call; 'magent2 approvals ID' lists them.
    """
    _decide(gateway, conversation_id, call_id, "reject", reason, as_json)


def _decide(
    gateway: GatewayOptions,
    conversation_id: str,
    call_id: str,
    decision: Literal["approve", "reject"],
    reason: str | None,
    as_json: bool,
) -> None:
    with gateway.connect() as client:
        approval = client.decide(conversation_id, call_id, decision, reason)
    if as_json:
        print_json(approval)
    else:
        print_data(approval_text(approval))
