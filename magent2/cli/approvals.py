"""`approvals`, `approve` and `reject`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import say, say_json

if TYPE_CHECKING:
    from magent2.client import ApprovalInfo


@click.command(epilog="Example: magent2 approvals c-1a2b")
@click.argument("conversation_id", metavar="ID")
@json_option
@gateway_options
def approvals(conversation_id: str, as_json: bool, door: Door) -> None:
    """List the calls that wait for a person.

    ID is the conversation. What was decided on earlier calls is in the list too.
    """
    with door.open() as client:
        found = client.approvals(conversation_id)
    if as_json:
        say_json(list(found))
        return
    for approval in found:
        say(_line(approval))


@click.command(epilog="Example: magent2 approve c-1a2b call-9")
@click.argument("conversation_id", metavar="ID")
@click.argument("call_id", metavar="CALL")
@json_option
@gateway_options
def approve(conversation_id: str, call_id: str, as_json: bool, door: Door) -> None:
    """Let a call be made that waits for approval.

    ID is the conversation, CALL the call, as 'magent2 approvals ID' shows it.
    """
    _decide(door, conversation_id, call_id, "approve", None, as_json)


@click.command(epilog="Example: magent2 reject c-1a2b call-9 --reason 'too dear'")
@click.argument("conversation_id", metavar="ID")
@click.argument("call_id", metavar="CALL")
@click.option("--reason", metavar="TEXT", help="Why; the model is told.")
@json_option
@gateway_options
def reject(conversation_id: str, call_id: str, reason: str | None, as_json: bool, door: Door) -> None:
    """Refuse a call that waits for approval.

    The run goes on without it. ID is the conversation, CALL the call, as 'magent2 approvals ID' shows it.
    """
    _decide(door, conversation_id, call_id, "reject", reason, as_json)


def _decide(
    door: Door,
    conversation_id: str,
    call_id: str,
    decision: Literal["approve", "reject"],
    reason: str | None,
    as_json: bool,
) -> None:
    with door.open() as client:
        approval = client.decide(conversation_id, call_id, decision, reason)
    if as_json:
        say_json(approval)
    else:
        say(_line(approval))


def _line(approval: ApprovalInfo) -> str:
    args = json.dumps(approval.args, ensure_ascii=False)
    told = f"{approval.call_id} {approval.status} {approval.agent_id} {approval.tool} {args}"
    return f"{told} ({approval.reason})" if approval.reason else told
