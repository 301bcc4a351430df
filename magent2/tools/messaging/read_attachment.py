"""`read_attachment`: text that came attached to a message of this conversation, a piece at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from magent2.bus.log import Log
from magent2.bus.operations import GetBlob
from magent2.errors import BlobMissing, InvalidInput
from magent2.models.address import chat_topic
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult, ToolSignature

PIECE_CHARS = 8_000
PIECE_MAX_CHARS = 20_000
LOOK_BACK = 10_000  # records of the conversation that are looked through
PAGE = 1000

NAME = "read_attachment"
DESCRIPTION = "Read text that came attached to a message of this conversation, a piece at a time."


class ReadArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="The attachment's name, as the message gives it.")
    start: int = Field(default=0, ge=0, description="From which character on.")
    length: int = Field(default=PIECE_CHARS, ge=1, le=PIECE_MAX_CHARS, description="How many characters.")


async def find_attachment_text(log: Log, conversation: str, sha256: str) -> str:
    """The whole text; only what a message of the conversation itself names can be read."""
    before: int | None = None
    for _ in range(LOOK_BACK // PAGE):
        page = await log.read(chat_topic(conversation), None, PAGE, before)
        if any(sha256 in record.blobs for record in page.records):
            break
        before = page.records[0].seq if page.records else 1
        if before <= 1:
            raise _unknown(sha256)
    else:
        raise _unknown(sha256)
    try:
        data = await log.run(GetBlob(sha256))
        return data.decode()
    except BlobMissing:
        raise _unknown(sha256) from None
    except UnicodeDecodeError:
        raise InvalidInput("the attachment is no text") from None


def _unknown(sha256: str) -> InvalidInput:
    return InvalidInput(f"no message of this conversation has an attachment {sha256}; take its name from the message")


def read_attachment_definition() -> ToolDefinition:
    schema = ReadArguments.model_json_schema()
    schema.pop("title", None)

    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[dict[str, Any]]:
        asked = ReadArguments.model_validate(dict(given))
        run = context.run
        text = await find_attachment_text(Log(run.bus), run.conversation_id, asked.sha256)
        piece = text[asked.start : asked.start + asked.length]
        answer = {"text": piece, "start": asked.start, "of": len(text)}
        return ToolExecutionResult(answer, answer)

    return ToolDefinition(ToolSignature(NAME, DESCRIPTION, schema), {"type": "object"}, execute)
