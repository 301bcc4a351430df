"""`read_attachment` and `message_status`: what an agent can read about messages of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from magent2.bus.log import Log, run_sync
from magent2.bus.operations import GetBlob
from magent2.errors import BlobMissing, InvalidInput, Refused
from magent2.mail.headers import PRINCIPAL
from magent2.models.address import chat_topic, check_name
from magent2.sessions.history import History, read_history
from magent2.sessions.message_outcome import MessageProgress, find_message_progress
from magent2.tools.definition import (
    ToolAnswer,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    parse_arguments,
)
from magent2.tools.interface import RunFacts
from magent2.tools.registry import tool

READ_ATTACHMENT = "read_attachment"
PIECE_CHARS = 8_000
PIECE_MAX_CHARS = 20_000
LOOK_BACK_MAX = 10_000  # newest messages of the conversation that are searched for an attachment
PAGE = 1000
UNKNOWN_MESSAGE = "you have sent no message of this id there, and this conversation has none"


class ReadArguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="The SHA-256 of the attachment, as the message gives it.")
    start: int = Field(default=0, ge=0, description="Index of the first character.")
    length: int = Field(default=PIECE_CHARS, ge=1, le=PIECE_MAX_CHARS, description="How many characters to read.")


def read_attachment_definition() -> ToolDefinition:
    schema = ReadArguments.model_json_schema()
    schema.pop("title", None)
    signature = ToolSignature(
        READ_ATTACHMENT, "Read the text of an attachment to a message of this conversation, in pieces.", schema
    )
    return ToolDefinition(signature, {"type": "object"}, _read_attachment, parses_arguments=True)


async def _read_attachment(raw: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[ToolAnswer]:
    arguments, run = parse_arguments(READ_ATTACHMENT, ReadArguments, raw), context.run
    text = await find_attachment_text(Log(run.bus), run.conversation_id, arguments.sha256)
    piece = text[arguments.start : arguments.start + arguments.length]
    answer = {"text": piece, "start": arguments.start, "of": len(text)}
    return ToolExecutionResult(answer, answer)


async def find_attachment_text(log: Log, conversation: str, sha256: str) -> str:
    """The text of an attachment. Only what a message of the conversation names can be read: blobs have no owner."""
    unknown = InvalidInput(f"no message of this conversation has an attachment {sha256}; use the name in the message")
    before: int | None = None
    for _ in range(LOOK_BACK_MAX // PAGE):
        page = await log.read(chat_topic(conversation), None, PAGE, before)
        if any(sha256 in record.blobs for record in page.records):
            break
        before = page.records[0].seq if page.records else 1
        if before <= 1:
            raise unknown
    else:
        raise unknown
    try:
        data = await log.run(GetBlob(sha256))
        return data.decode()
    except BlobMissing:
        raise unknown from None
    except UnicodeDecodeError:
        raise InvalidInput("the attachment is not text") from None


@tool
def message_status(
    context: RunFacts,
    envelope_id: Annotated[str, Field(description="The envelope_id that chat_send returned.")],
    conversation_id: Annotated[
        str | None, Field(description="The conversation that it was sent to. Defaults to this conversation.")
    ] = None,
) -> ToolAnswer:
    """Get the status of a message: accepted (not seen yet), seen, answered, or dead."""
    conversation = (conversation_id or "").strip() or context.conversation_id
    try:
        check_name(conversation, "conversation id")
        progress = run_sync(
            context.bus, find_message_progress, conversation, envelope_id.strip(), _history_reader(context)
        )
    except (InvalidInput, Refused) as refusal:  # the model can correct the call if it reads what was wrong
        return {"ok": False, "error": str(refusal)}
    if progress is None or not may_know(context, conversation, progress):
        return {"ok": False, "error": UNKNOWN_MESSAGE}
    receipts = [{name: value for name, value in asdict(one).items() if value is not None} for one in progress.receipts]
    return {
        "ok": True,
        "envelope_id": envelope_id,
        "status": progress.status,
        "waiting": progress.waiting,
        "receipts": receipts,
    }


def may_know(context: RunFacts, conversation: str, progress: MessageProgress) -> bool:
    """An agent may know about all messages of its own conversation; elsewhere about those it sent for its principal."""
    if conversation == context.conversation_id:
        return True
    return progress.sender == f"agent:{context.agent}" and progress.headers.get(PRINCIPAL) == context.principal


def _history_reader(context: RunFacts) -> Callable[[Log, str], Coroutine[object, object, History]]:
    """Read histories; that of the run's own conversation starts from what the run has already read."""
    own_history = getattr(context, "history", None)

    async def read(log: Log, conversation: str) -> History:
        return await read_history(log, conversation, own_history if conversation == context.conversation_id else None)

    return read
