"""The commands that act on runs: `steer`, `stop`, `approvals`, `approve` and `reject`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import click

from magent2.cli.options import GatewayOptions, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note

if TYPE_CHECKING:
    from magent2.client import ApprovalInfo


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
@json_option
@gateway_options
def stop(conversation_id: str, agent: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """Stop the run of a conversation.

    ID is the conversation.
    """
    with gateway.connect() as client:
        stopping = client.stop(conversation_id, agent)
    if as_json:
        print_json({"agent": stopping.agent, "envelope_id": stopping.envelope_id, "seq": stopping.seq})
    else:
        print_data(f"asked {stopping.agent} to stop")


@click.command(epilog="Example: magent2 approvals c-1a2b")
@click.argument("conversation_id", metavar="ID")
@json_option
@gateway_options
def approvals(conversation_id: str, as_json: bool, gateway: GatewayOptions) -> None:
    """List the tool calls of a conversation that need approval.

    ID is the conversation. Calls that are already decided are listed with the decision.
    """
    with gateway.connect() as client:
        found = client.approvals(conversation_id)
    if as_json:
        print_json(list(found))
        return
    for approval in found:
        print_data(_approval_line(approval))


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
        print_data(_approval_line(approval))


def _approval_line(approval: ApprovalInfo) -> str:
    args = json.dumps(approval.args, ensure_ascii=False)
    line = f"{approval.call_id} {approval.status} {approval.agent_id} {approval.tool} {args}"
    return f"{line} ({approval.reason})" if approval.reason else line
