"""`message_status`: what became of a message that an agent has sent."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from magent2.bus.log import Log, run_sync
from magent2.errors import InvalidInput, Refused
from magent2.mail.headers import PRINCIPAL
from magent2.models.address import check_name
from magent2.sessions.history import History, read_history
from magent2.sessions.receipts import MessageProgress, find_message_progress
from magent2.tools.interface import RunFacts
from magent2.tools.registry import tool

UNKNOWN = "you have sent no message of this id there, and this conversation has none"


@tool
def message_status(
    context: RunFacts,
    envelope_id: Annotated[str, Field(description="The envelope_id that chat_send has returned.")],
    conversation_id: Annotated[
        str | None, Field(description="The conversation that it was sent to; this one when left out.")
    ] = None,
) -> dict[str, Any]:
    """What became of a message: accepted (nobody has seen it yet), seen, answered, or dead."""
    conversation = (conversation_id or "").strip() or context.conversation_id
    try:
        check_name(conversation, "conversation id")
        fate = run_sync(context.bus, find_message_progress, conversation, envelope_id.strip(), _reading(context))
    except (InvalidInput, Refused) as refusal:  # the model can do better, if it is told what was wrong
        return {"ok": False, "error": str(refusal)}
    if fate is None or not may_know(context, conversation, fate):
        return {"ok": False, "error": UNKNOWN}
    receipts = [{name: value for name, value in asdict(one).items() if value is not None} for one in fate.receipts]
    return {
        "ok": True,
        "envelope_id": envelope_id,
        "status": fate.status,
        "waiting": fate.waiting,
        "receipts": receipts,
    }


def may_know(context: RunFacts, conversation: str, fate: MessageProgress) -> bool:
    """Of its own conversation an agent may know all; elsewhere what it sent itself, for the same principal."""
    if conversation == context.conversation_id:
        return True
    return fate.sender == f"agent:{context.agent}" and fate.headers.get(PRINCIPAL) == context.principal


def _reading(context: RunFacts) -> Any:
    """What the run knows of its conversation is not read again."""
    known = getattr(context, "history", None)

    async def reading(log: Log, conversation: str) -> History:
        return await read_history(log, conversation, known if conversation == context.conversation_id else None)

    return reading
